"""Free capacity of a cluster while one plan is made: groups of like nodes, take and release.

Nodes of one class with equal free capacity form a group, an int used as a set of node numbers, so a
search costs as much as there are groups. `release` undoes `take` exactly. The searches are in
`finders.py`, and `cluster_state.py` puts both together.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from math import inf
from typing import NamedTuple, Self, TypeAlias

from policies.placement.layout import (
    DEVICES,
    EVERY,
    RESOURCES,
    Allocation,
    Free,
    Layout,
    NodeClass,
    Part,
    Request,
    node_set,
)


class Group(NamedTuple):
    """Interchangeable nodes: class, free capacity of each, their set, units that fit on each."""

    of_class: NodeClass
    free: Free
    nodes: int
    units: int


Wanted: TypeAlias = tuple[dict[int, tuple[int, tuple[int, ...]]], bool]
"""(devices and resources by node, whether these devices are free)."""


class Hold(NamedTuple):
    """Allocation of a job and its expected end (s); inf if unknown.

    `closed`: nodes (a set) that are closed until then, as the job is to be alone there.
    """

    end_s: float
    allocation: Allocation
    closed: int = 0


class FreeCapacity:
    """Free capacity of every node, power in use, and held allocations.

    `free[n]`: free capacity of node n; `idle[n]`: its free devices as a bit set; `open`: nodes that
    are searched. `cap_mw`, `used_mw`: power, counted only under a cap. `held`: by job.
    """

    def __init__(
        self,
        layout: Layout,
        cap_mw: float = inf,
        idle: Sequence[int] | None = None,
        free: Sequence[Free] | None = None,
    ) -> None:
        self.layout = layout
        self.cap_mw = cap_mw
        self.open = EVERY
        self.idle = list(layout.present if idle is None else idle)
        if free is None:
            self.free = [layout.classes[c].capacity for c in layout.class_of]
        else:
            self.free = list(free)
        self.used_mw = 0 if cap_mw == inf else self._power_mw()
        self.held: dict[Hashable, Hold] = {}

    def copy(self) -> Self:
        """Return a copy that changes by itself, to try things."""
        new = object.__new__(type(self))
        new.layout = self.layout
        new.cap_mw = self.cap_mw
        new.open = self.open
        new.used_mw = self.used_mw
        new.idle = self.idle.copy()
        new.free = self.free.copy()
        if self._is_grouped:
            new.groups = [groups.copy() for groups in self.groups]
            new.order = [order.copy() for order in self.order]
        new.held = self.held.copy()
        return new

    @cached_property
    def groups(self) -> list[dict[Free, int]]:
        """By class, the nodes with each free capacity; made by the first search."""
        found: list[dict[Free, int]] = [{} for _ in self.layout.classes]
        for n, (c, free) in enumerate(zip(self.layout.class_of, self.free, strict=True)):
            found[c][free] = found[c].get(free, 0) | 1 << n
        return found

    @cached_property
    def order(self) -> list[list[Free]]:
        """By class, the free capacities of its groups, rising."""
        return [sorted(groups) for groups in self.groups]

    @property
    def _is_grouped(self) -> bool:
        return "groups" in vars(self)

    def close(self, node: int) -> None:
        """Leave a node out of searches (cordoned or draining); its jobs can be released."""
        self.open &= ~(1 << node)

    def keep_idle(self, node: int, devices: int) -> None:
        """Give free devices of a node to nobody: they are kept for a job that starts later."""
        self._use(node, devices, (), 1)

    # ---- what fits

    def groups_for(self, request: Request, only: int = EVERY) -> Iterator[Group]:
        """Yield groups of open nodes with room for a unit, class by class, each by best fit."""
        classes, allowed = self.layout.admitting(request)
        for c in classes:
            yield from self.groups_of(c, request, allowed & self.open & only)

    def groups_of(self, c: int, request: Request, allowed: int) -> Iterator[Group]:
        """Yield the groups of class c with room for a unit, the least free capacity first."""
        of_class = self.layout.classes[c]
        groups = self.groups[c]
        order = self.order[c]
        for i in range(bisect_left(order, (request.gpus,)), len(order)):
            free = order[i]
            nodes = groups[free] & allowed
            if nodes:
                units = request.fitting(free)
                if units > 0:
                    yield Group(of_class, free, nodes, units)

    def fits(self, request: Request, node: int) -> bool:
        """Return True if all units fit on this node now."""
        found = self.groups_for(request, 1 << node)
        return any(g.units == request.units and self.affordable(request, g) for g in found)

    def place(self, request: Request, where: Iterable[tuple[int, int]]) -> Allocation | None:
        """Return units on given nodes, [(node, units)], if they fit there and the power suffices.

        The caller checks types, labels and closed nodes.
        """
        where = list(where)
        if any(request.fitting(self.free[node]) < units for node, units in where):
            return None
        if self.cap_mw < inf and self.extra_mw(request, where) > self.cap_mw - self.used_mw:
            return None
        return self.allocation(request, where)

    def allocation(self, request: Request, where: Iterable[tuple[int, int]]) -> Allocation:
        """Return these units on the first free devices of their nodes."""
        parts = [Part(n, units, self.devices(request, n, units)) for n, units in where]
        return Allocation(request, tuple(parts))

    def devices(self, request: Request, node: int, units: int, wanted: int = 0) -> int:
        """Return the first free devices of a node for `units` units, those in `wanted` first."""
        rest = self.idle[node]
        if request.devices_at != DEVICES:
            level = request.devices_at - RESOURCES - len(self.layout.resources)
            rest &= self.layout.wide[node][level]
        chosen, preferred = 0, rest & wanted
        for _ in range(units * request.gpus):
            bit = (preferred or rest) & -(preferred or rest)
            chosen, preferred, rest = chosen | bit, preferred & ~bit, rest & ~bit
        return chosen

    def free_gpus(self) -> dict[str, int]:
        """Return the free devices of open nodes by GPU type."""
        found: dict[str, int] = {}
        for of, groups in zip(self.layout.classes, self.groups, strict=True):
            for free, nodes in groups.items():
                gpus = free[DEVICES] * (nodes & self.open).bit_count()
                found[of.gpu_type] = found.get(of.gpu_type, 0) + gpus
        return found

    # ---- power

    def affordable(self, request: Request, group: Group) -> bool:
        """Return True if the power cap allows a group's units on one of its nodes."""
        if self.cap_mw == inf:
            return True
        return self.step_mw(request, group, group.units) <= self.cap_mw - self.used_mw

    def step_mw(self, request: Request, group: Group, units: int) -> int:
        """Return the additional power of `units` units on a node of the group."""
        return _step_mw(group.of_class, group.free, request, units)

    def extra_mw(self, request: Request, where: Iterable[tuple[int, int]]) -> int:
        """Return the additional power of units on given nodes, each node once."""
        classes, of = self.layout.classes, self.layout.class_of
        return sum(_step_mw(classes[of[n]], self.free[n], request, units) for n, units in where)

    def has_power_for(self, allocation: Allocation) -> bool:
        """Return True if the power cap allows an allocation beside what is in use."""
        if self.cap_mw == inf:
            return True
        units: dict[int, int] = {}
        for part in allocation.parts:
            units[part.node] = units.get(part.node, 0) + part.units
        return self.extra_mw(allocation.request, units.items()) <= self.cap_mw - self.used_mw

    def _power_mw(self) -> int:
        classes, of = self.layout.classes, self.layout.class_of
        return sum(classes[of[n]].draw(free) for n, free in enumerate(self.free))

    # ---- change

    def take(
        self,
        allocation: Allocation,
        job: Hashable | None = None,
        end_s: float = inf,
        *,
        alone: bool = False,
    ) -> None:
        """Take what is free; `job` holds it as in `hold`. ValueError, no change, if it is not."""
        if not self.is_free(allocation):
            raise ValueError(f"not free: {allocation}")
        for part in allocation.parts:
            self._change(part, allocation.request, 1)
        if job is not None:
            self.hold(job, allocation, end_s, alone=alone)

    def hold(self, job: Hashable, allocation: Allocation, end_s: float, *, alone: bool) -> None:
        """Note that a job holds what was taken until `end_s`; `alone`: its nodes are closed."""
        closed = node_set(allocation) & self.open if alone else 0
        self.held[job] = Hold(end_s, allocation, closed)
        self.open &= ~closed

    def try_take(self, allocation: Allocation) -> bool:
        """Take an allocation if it is free and the power cap allows it; return if it was taken."""
        if not self.is_free(allocation) or not self.has_power_for(allocation):
            return False
        for part in allocation.parts:
            self._change(part, allocation.request, 1)
        return True

    def release(self, allocation: Allocation, job: Hashable | None = None) -> None:
        """Undo `take`. ValueError, no change, if its devices are free."""
        if any(devices & self.idle[node] for node, _, devices in allocation.parts):
            raise ValueError(f"not held: {allocation}")
        for part in allocation.parts:
            self._change(part, allocation.request, -1)
        if job is not None:
            self.open |= self.held.pop(job).closed

    def is_free(self, allocation: Allocation) -> bool:
        """Return True if an allocation's devices and resources are free; power is not looked at."""
        request, parts = allocation.request, allocation.parts
        if len(parts) > 1 and len({part.node for part in parts}) < len(parts):
            return self._has_all(self._wanted((allocation,)))
        uses = bool(self.layout.resources)
        for node, units, devices in parts:
            if devices & ~self.idle[node] or (uses and not self._has(node, request.used(units))):
                return False
        return True

    def take_together(self, allocations: Sequence[Allocation]) -> bool:
        """Take all of these if they are free together within the power cap; return if so."""
        wanted = self._wanted(allocations)
        if not self._has_all(wanted):
            return False
        before = self.copy()
        for n, (devices, amounts) in wanted[0].items():
            self._use(n, devices, amounts, 1)
        if self.used_mw <= self.cap_mw:
            return True
        self.idle, self.free, self.used_mw = before.idle, before.free, before.used_mw
        vars(self).pop("groups", None)
        vars(self).pop("order", None)
        return False

    def _wanted(self, allocations: Iterable[Allocation]) -> Wanted:
        """Return what these take of each node, and if all their devices are free for each."""
        devices: dict[int, int] = {}
        times: dict[Request, dict[tuple[int, int], int]] = {}
        for request, parts in allocations:
            of_request = times.setdefault(request, {})
            for n, units, bits in parts:
                if bits:
                    taken = devices.get(n, 0)
                    if bits & (taken | ~self.idle[n]):
                        return {}, False
                    devices[n] = taken | bits
                of_request[n, units] = of_request.get((n, units), 0) + 1
        amounts, nothing = dict[int, tuple[int, ...]](), (0,) * len(self.layout.resources)
        for request, of_request in times.items():
            for (n, units), count in of_request.items():
                before, used = amounts.get(n, nothing), request.used(units) or nothing
                amounts[n] = tuple([a + count * b for a, b in zip(before, used, strict=True)])
        return {n: (devices.get(n, 0), of) for n, of in amounts.items()}, True

    def _has_all(self, wanted: Wanted) -> bool:
        of_nodes, has_devices = wanted
        return has_devices and all(self._has(n, of[1]) for n, of in of_nodes.items())

    def _has(self, node: int, amounts: tuple[int, ...]) -> bool:
        if not amounts:
            return True
        left = self.free[node][RESOURCES:]
        for amount, has in zip(amounts, left, strict=False):
            if amount and amount > has:
                return False
        return True

    def _change(self, part: Part, request: Request, sign: int) -> None:
        uses = request.amounts or request.per_node
        self._use(part.node, part.devices, request.used(part.units) if uses else (), sign)

    def _use(self, n: int, devices: int, amounts: tuple[int, ...], sign: int) -> None:
        """Take (sign 1) or release (-1) devices and resources of a node."""
        before = self.free[n]
        self.idle[n] ^= devices
        left = before[RESOURCES : RESOURCES + len(self.layout.resources)]
        if left and amounts:
            left = tuple([a - sign * b for a, b in zip(left, amounts, strict=True)])
        after = self.layout.free(n, self.idle[n], left)
        if "groups" in self.__dict__:  # as `_is_grouped`, for every change
            self._regroup(n, before, after)
        self.free[n] = after
        if self.cap_mw < inf:
            of_class = self.layout.classes[self.layout.class_of[n]]
            self.used_mw += of_class.draw(after) - of_class.draw(before)

    def _regroup(self, n: int, before: Free, after: Free) -> None:
        """Move a node from the group of its free capacity before to that of after."""
        c = self.layout.class_of[n]
        groups = self.groups[c]
        order = self.order[c]
        bit = 1 << n
        rest = groups[before] ^ bit
        if rest:
            groups[before] = rest
        else:
            del groups[before], order[bisect_left(order, before)]
        if after not in groups:
            insort(order, after)
        groups[after] = groups.get(after, 0) | bit


def _step_mw(of_class: NodeClass, free: Free, request: Request, units: int) -> int:
    """Return the additional power of so many units on a node with this free capacity."""
    if not units:
        return 0
    used = of_class.capacity[DEVICES] - free[DEVICES] + units * request.gpus
    return of_class.power_at(used) - of_class.draw(free)
