"""An oracle for the placement engine that knows nothing of groups: it tries every distribution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from math import inf

from policies.contract.snapshot import NodeView
from policies.placement.layout import Allocation, Layout, Request, Span, capacity_of

Where = tuple[tuple[int, int], ...]
"""(node, units)."""


@dataclass
class BruteForce:
    """Free devices and resources by node, changed as allocations come and go."""

    layout: Layout
    nodes: Sequence[NodeView]
    cap_mw: float = inf
    closed: set[int] = field(default_factory=set)
    held: list[Allocation] = field(default_factory=list)

    def without(self, ended: Iterable[Allocation]) -> BruteForce:
        """The same cluster after these allocations have ended."""
        left = list(self.held)
        for allocation in ended:
            left.remove(allocation)
        return BruteForce(self.layout, self.nodes, self.cap_mw, self.closed, left)

    def check(self) -> None:
        """Nothing is given out twice, nothing beyond capacity, no power beyond the cap."""
        for n in range(len(self.nodes)):
            assert len(self.devices_of(n)) == len(set(self.devices_of(n)))
            assert all(amount >= 0 for amount in self.resources_left(n))
        assert self.power_mw(self.held) <= self.cap_mw

    def devices_of(self, n: int) -> list[int]:
        """Devices of a node that allocations hold."""
        bits = [part.devices for a in self.held for part in a.parts if part.node == n]
        return [i for of in bits for i in range(of.bit_length()) if of >> i & 1]

    def resources_left(self, n: int) -> list[int]:
        """What is left of each resource of a node."""
        left = list(capacity_of(self.nodes[n], self.layout.resources))
        for a in self.held:
            for part in a.parts:
                if part.node == n:
                    left = [
                        x - y
                        for x, y in zip(left, _used(a.request, part.units, len(left)), strict=True)
                    ]
        return left

    def power_mw(self, held: Iterable[Allocation], extra: Where = (), gpus: int = 0) -> float:
        """Power of the nodes that hold anything, by their devices in use."""
        used: Counter[int] = Counter()
        busy = {n for n, _ in extra}
        for a in held:
            for part in a.parts:
                used[part.node] += part.devices.bit_count()
                if part.devices or any(_used(a.request, part.units, len(self.layout.resources))):
                    busy.add(part.node)
        for n, units in extra:
            used[n] += units * gpus
        curves = {n: self.nodes[n].power_w for n in busy}
        return 1000 * sum(c[min(used[n], len(c) - 1)] for n, c in curves.items())

    def fits(self, request: Request, where: Where) -> bool:
        """Whether these units fit where they are to be, power and closed nodes included."""
        return all(self._allowed(request, n) for n, _ in where) and self.has_room(request, where)

    def has_room(self, request: Request, where: Where) -> bool:
        """The same without types, labels and closed nodes."""
        for n, units in where:
            free = self._usable(request, n) - set(self.devices_of(n))
            if units * request.gpus > len(free):
                return False
            wanted = _used(request, units, len(self.layout.resources))
            if any(a > b for a, b in zip(wanted, self.resources_left(n), strict=True)):
                return False
        return self.power_mw(self.held, where, request.gpus) <= self.cap_mw

    def options(self, request: Request) -> Iterator[Where]:
        """Every distribution of the units that fits."""
        for where in self._distributions(request):
            if self.fits(request, where):
                yield where

    def _distributions(self, request: Request) -> Iterator[Where]:
        numbers = range(len(self.nodes))
        counts = [request.nodes] if request.nodes else range(1, len(self.nodes) + 1)
        for count in counts if request.span is not Span.ONE_NODE else [1]:
            for nodes in combinations(numbers, count):
                types = {self.nodes[n].gpu_type for n in nodes}
                if request.span is Span.ONE_TYPE and len(types) > 1:
                    continue
                for units in product(range(1, request.units + 1), repeat=count):
                    if sum(units) == request.units:
                        yield tuple(zip(nodes, units, strict=True))

    def _allowed(self, request: Request, n: int) -> bool:
        node = self.nodes[n]
        of_type = not request.types or node.gpu_type in request.types
        return n not in self.closed and of_type and request.labels <= set(node.labels)

    def _usable(self, request: Request, n: int) -> set[int]:
        slots = 1
        if request.devices_at:
            level = request.devices_at - 1 - len(self.layout.resources)
            slots = self.layout.levels[level]
        devices = enumerate(self.nodes[n].devices)
        return {i for i, d in devices if d.healthy and d.slots >= slots}


def _used(request: Request, units: int, size: int) -> list[int]:
    once = [*request.per_node, *[0] * (size - len(request.per_node))]
    each = [*request.amounts, *[0] * (size - len(request.amounts))]
    return [a + units * b for a, b in zip(once, each, strict=True)]
