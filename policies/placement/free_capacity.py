"""Free capacity of a cluster while one plan is made: groups of like nodes, take and release.

Nodes of one class with equal free capacity form a group, kept as one set of nodes, so a search
costs as much as there are groups. `release` undoes `take` exactly. The searches are in
`finders.py`, and `cluster_state.py` puts both together.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from math import inf
from typing import NamedTuple, Self

from policies.placement.layout import (
    DEVICES,
    EVERY,
    RESOURCES,
    Allocation,
    DeviceSet,
    Free,
    Layout,
    NodeClass,
    NodeSet,
    Part,
    Request,
    node_set,
)


class Group(NamedTuple):
    """Interchangeable nodes: class, free capacity of each, their set, units that fit on each."""

    of_class: NodeClass
    free: Free
    nodes: NodeSet
    units: int


class Taking(NamedTuple):
    """Devices and amounts of resources (in billionths) that allocations take of one node."""

    devices: DeviceSet
    amounts: tuple[int, ...]


class Hold(NamedTuple):
    """Allocation of a job and its expected end (s); inf if unknown.

    `closed`: nodes that are closed until then, as the job is to be alone there.
    """

    end_s: float
    allocation: Allocation
    closed: NodeSet = 0


class FreeCapacity:
    """Free capacity of every node, power in use, and held allocations.

    `free[n]`: free capacity of node n; `idle[n]`: its free devices; `open`: nodes that are
    searched. `cap_mw`, `used_mw`: power, counted only under a cap. `held`: by job.
    """

    def __init__(
        self,
        layout: Layout,
        cap_mw: float = inf,
        idle: Sequence[DeviceSet] | None = None,
        free: Sequence[Free] | None = None,
    ) -> None:
        """`idle`, `free`: by default all that the nodes have."""
        self.layout = layout
        self.cap_mw = cap_mw
        self.open: NodeSet = EVERY
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
    def groups(self) -> list[dict[Free, NodeSet]]:
        """By class, the nodes with each free capacity; made by the first search."""
        groups: list[dict[Free, NodeSet]] = [{} for _ in self.layout.classes]
        for n, (c, free) in enumerate(zip(self.layout.class_of, self.free, strict=True)):
            groups[c][free] = groups[c].get(free, 0) | 1 << n
        return groups

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

    def keep_idle(self, node: int, devices: DeviceSet) -> None:
        """Give free devices of a node to nobody: they are kept for a job that starts later."""
        self._use(node, devices, (), 1)

    # ---- what fits

    def groups_for(self, request: Request, only: NodeSet = EVERY) -> Iterator[Group]:
        """Yield groups of open nodes with room for a unit, class by class, each by best fit."""
        classes, allowed = self.layout.admitting(request)
        for c in classes:
            yield from self.groups_of(c, request, allowed & self.open & only)

    def groups_of(self, c: int, request: Request, allowed: NodeSet) -> Iterator[Group]:
        """Yield the groups of class c with room for a unit, the least free capacity first."""
        of_class = self.layout.classes[c]
        groups = self.groups[c]
        order = self.order[c]
        # Free devices come first in `Free`: the groups before have too few.
        for i in range(bisect_left(order, (request.gpus,)), len(order)):
            free = order[i]
            nodes = groups[free] & allowed
            if nodes:
                units = request.fitting(free)
                if units > 0:
                    yield Group(of_class, free, nodes, units)

    def fits(self, request: Request, node: int) -> bool:
        """Return True if all units fit on this node now, within the power cap."""
        for group in self.groups_for(request, 1 << node):
            if group.units == request.units and self.affordable(request, group):
                return True
        return False

    def place(
        self, request: Request, units_on_nodes: Iterable[tuple[int, int]]
    ) -> Allocation | None:
        """Return units on given nodes, [(node, units)], if they fit there and the power suffices.

        The caller checks types, labels and closed nodes.
        """
        where = list(units_on_nodes)
        if any(request.fitting(self.free[node]) < units for node, units in where):
            return None
        if self.cap_mw < inf and self.extra_mw(request, where) > self.cap_mw - self.used_mw:
            return None
        return self.allocation(request, where)

    def allocation(self, request: Request, where: Iterable[tuple[int, int]]) -> Allocation:
        """Return units on given nodes, [(node, units)], each on the node's first free devices."""
        parts = [Part(node, units, self.devices(request, node, units)) for node, units in where]
        return Allocation(request, tuple(parts))

    def devices(self, request: Request, node: int, units: int, wanted: DeviceSet = 0) -> DeviceSet:
        """Return the first free devices of a node for `units` units, those in `wanted` first."""
        suitable = self.idle[node]
        if request.devices_at != DEVICES:
            level = request.devices_at - RESOURCES - len(self.layout.resources)
            suitable &= self.layout.wide[node][level]
        chosen: DeviceSet = 0
        for _ in range(units * request.gpus):
            left = suitable & wanted or suitable
            lowest_bit = left & -left
            chosen |= lowest_bit
            suitable &= ~lowest_bit
        return chosen

    def free_gpus(self) -> dict[str, int]:
        """Return the free devices of open nodes by GPU type."""
        gpus_of: dict[str, int] = {}
        for of_class, groups in zip(self.layout.classes, self.groups, strict=True):
            for free, nodes in groups.items():
                gpus = free[DEVICES] * (nodes & self.open).bit_count()
                gpus_of[of_class.gpu_type] = gpus_of.get(of_class.gpu_type, 0) + gpus
        return gpus_of

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
        """Return the additional power of units on given nodes, [(node, units)], each node once."""
        extra_mw = 0
        for node, units in where:
            of_class = self.layout.classes[self.layout.class_of[node]]
            extra_mw += _step_mw(of_class, self.free[node], request, units)
        return extra_mw

    def has_power_for(self, allocation: Allocation) -> bool:
        """Return True if the power cap allows an allocation beside what is in use."""
        if self.cap_mw == inf:
            return True
        units: dict[int, int] = {}
        for part in allocation.parts:
            units[part.node] = units.get(part.node, 0) + part.units
        return self.extra_mw(allocation.request, units.items()) <= self.cap_mw - self.used_mw

    def _power_mw(self) -> int:
        """Return the power of all nodes as they are used."""
        classes = self.layout.classes
        power_mw = 0
        for c, free in zip(self.layout.class_of, self.free, strict=True):
            power_mw += classes[c].draw(free)
        return power_mw

    # ---- change

    def take(
        self,
        allocation: Allocation,
        job: Hashable | None = None,
        end_s: float = inf,
        *,
        alone: bool = False,
    ) -> None:
        """Take an allocation, whatever its power; `job` holds it as in `hold`.

        ValueError, and no change, if it is not free.
        """
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
        """Undo `take`. ValueError, and no change, if one of its devices is free."""
        if any(devices & self.idle[node] for node, _, devices in allocation.parts):
            raise ValueError(f"not held: {allocation}")
        for part in allocation.parts:
            self._change(part, allocation.request, -1)
        if job is not None:
            self.open |= self.held.pop(job).closed

    def is_free(self, allocation: Allocation) -> bool:
        """Return True if an allocation's devices and resources are free; power is not looked at."""
        request = allocation.request
        parts = allocation.parts
        if len(parts) > 1 and len({part.node for part in parts}) < len(parts):
            return self._taken_together((allocation,)) is not None
        counts_resources = bool(self.layout.resources)
        for node, units, devices in parts:
            if devices & ~self.idle[node]:
                return False
            if counts_resources and not self._has(node, request.used(units)):
                return False
        return True

    def take_together(self, allocations: Sequence[Allocation]) -> bool:
        """Take all of these if they are free together within the power cap; return if so."""
        takings = self._taken_together(allocations)
        if takings is None:
            return False
        before = self.copy()
        for n, taking in takings.items():
            self._use(n, taking.devices, taking.amounts, 1)
        if self.used_mw <= self.cap_mw:
            return True

        # Too much power: as before, with groups to be made anew.
        self.idle = before.idle
        self.free = before.free
        self.used_mw = before.used_mw
        vars(self).pop("groups", None)
        vars(self).pop("order", None)
        return False

    def _taken_together(self, allocations: Iterable[Allocation]) -> dict[int, Taking] | None:
        """Return what these take of each node; None if they are not free together."""
        # 1. Devices of each node, and how often each number of a request's units is on it: many
        #    jobs have equal requests.
        devices: dict[int, DeviceSet] = {}
        times: dict[Request, dict[tuple[int, int], int]] = {}
        for request, parts in allocations:
            times_on = times.setdefault(request, {})
            for n, units, part_devices in parts:
                if part_devices:
                    taken = devices.get(n, 0)
                    if part_devices & (taken | ~self.idle[n]):
                        return None
                    devices[n] = taken | part_devices
                times_on[n, units] = times_on.get((n, units), 0) + 1

        # 2. Amounts of each node.
        nothing = (0,) * len(self.layout.resources)
        amounts: dict[int, tuple[int, ...]] = {}
        for request, times_on in times.items():
            for (n, units), count in times_on.items():
                used = request.used(units) or nothing
                pairs = zip(amounts.get(n, nothing), used, strict=True)
                amounts[n] = tuple([so_far + count * amount for so_far, amount in pairs])
        if not all(self._has(n, of_node) for n, of_node in amounts.items()):
            return None
        return {n: Taking(devices.get(n, 0), of_node) for n, of_node in amounts.items()}

    def _has(self, node: int, amounts: tuple[int, ...]) -> bool:
        """Return True if these amounts of resources are free on a node."""
        if not amounts:
            return True
        left = self.free[node][RESOURCES:]
        for amount, has in zip(amounts, left, strict=False):
            if amount and amount > has:
                return False
        return True

    def _change(self, part: Part, request: Request, sign: int) -> None:
        """Take (sign 1) or release (-1) a part of an allocation."""
        amounts: tuple[int, ...] = ()
        if request.amounts or request.per_node:
            amounts = request.used(part.units)
        self._use(part.node, part.devices, amounts, sign)

    def _use(self, n: int, devices: DeviceSet, amounts: tuple[int, ...], sign: int) -> None:
        """Take (sign 1) or release (-1) devices and resources of a node."""
        before = self.free[n]
        self.idle[n] ^= devices
        left = before[RESOURCES : RESOURCES + len(self.layout.resources)]
        if left and amounts:
            pairs = zip(left, amounts, strict=True)
            left = tuple([amount - sign * used for amount, used in pairs])
        after = self.layout.free(n, self.idle[n], left)
        if "groups" in self.__dict__:  # as `_is_grouped`, which would cost a call for each change
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
