"""Searches of free capacity, one for each `Span`.

Exact under the power cap: where the preferred choice needs too much power, dynamic programming over
the nodes finds the one that adds the least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from math import inf
from typing import Protocol, TypeAlias

from policies.placement.free_capacity import FreeCapacity, Group
from policies.placement.layout import Allocation, Free, NodeSet, Request, Span, lowest, members

UnitsOnNodes: TypeAlias = list[tuple[int, int]]
"""(node, units), each node once."""

Order: TypeAlias = Callable[[Group], tuple[float, ...]]
"""Sort key of groups, least first."""


class Finder(Protocol):
    """Search for an allocation. `only`: nodes to look at."""

    def __call__(
        self,
        state: FreeCapacity,
        request: Request,
        only: NodeSet,
        key: Order | None,
    ) -> Allocation | None:
        """Return the preferred allocation; None exactly if there is none.

        `key` orders groups where the search may choose; None is best fit.
        """
        ...


def on_one_node(
    state: FreeCapacity, request: Request, only: NodeSet, key: Order | None
) -> Allocation | None:
    """Search for one node by best fit: the least free capacity, where GPUs are compared first."""
    if request.nodes > 1:
        return None
    best: Group | None = None
    best_key: tuple[float, ...] = ()
    classes, allowed = state.layout.admitting(request)
    for c in classes:
        for group in state.groups_of(c, request, allowed & state.open & only):
            if group.units == request.units and state.affordable(request, group):
                group_key = group.free if key is None else key(group)
                if best is None or group_key < best_key:
                    best = group
                    best_key = group_key
                if key is None:  # the first group of a class has the least free capacity
                    break
    if best is None:
        return None
    return state.allocation(request, [(lowest(best.nodes), request.units)])


def on_one_type(
    state: FreeCapacity, request: Request, only: NodeSet, key: Order | None
) -> Allocation | None:
    """Search for one node, else for the fewest nodes of one type, in the request's order."""
    allocation = on_one_node(state, request, only, key)
    if allocation is not None or request.units == 1:
        return allocation
    for groups in by_type(state, request, only).values():
        allocation = _on_fewest_nodes(state, request, groups)
        if allocation is not None:
            return allocation
    return None


def on_types_mixed(
    state: FreeCapacity, request: Request, only: NodeSet, key: Order | None
) -> Allocation | None:
    """Search for the fewest nodes of the first of the request's types that together have room.

    They are in the order of their speed, and a gang is as fast as its slowest process.
    """
    usable: list[Group] = []
    for groups in by_type(state, request, only).values():
        if not groups:
            continue
        usable += groups
        allocation = _on_fewest_nodes(state, request, usable)
        if allocation is not None:
            return allocation
    return None


def anywhere(
    state: FreeCapacity, request: Request, only: NodeSet, key: Order | None
) -> Allocation | None:
    """Search for any nodes, by `key` or else best fit, each filled with units in turn."""
    groups = list(state.groups_for(request, only))
    if key is not None:
        groups = [
            group._replace(nodes=1 << node) for group in groups for node in members(group.nodes)
        ]
    groups.sort(key=key or _free_of)
    if request.nodes:
        return _on_fewest_nodes(state, request, groups)
    return _within_power(state, request, groups, lambda: _filled(request.units, groups))


FINDERS: Mapping[Span, Finder] = {
    Span.ONE_NODE: on_one_node,
    Span.ONE_TYPE: on_one_type,
    Span.MIXED: on_types_mixed,
    Span.ANY: anywhere,
}


def least_power_mw(state: FreeCapacity, request: Request, only: NodeSet) -> int | None:
    """Return the least additional power with which a request would fit; None if it would not."""
    groups = list(state.groups_for(request, only))
    if request.span is Span.ONE_NODE:
        if request.nodes > 1:
            return None
        fitting = [group for group in groups if group.units == request.units]
        return min([state.step_mw(request, group, group.units) for group in fitting], default=None)

    # Over nodes: of one type, or of all together.
    choices: Iterable[list[Group]] = [groups]
    if request.span is Span.ONE_TYPE:
        choices = by_type(state, request, only).values()
    powers_mw = []
    for groups_together in choices:
        where = _of_least_power(state, request, groups_together)
        if where:
            powers_mw.append(state.extra_mw(request, where))
    return min(powers_mw, default=None)


def by_type(state: FreeCapacity, request: Request, only: NodeSet) -> dict[str, list[Group]]:
    """Return the groups with room by GPU type, in the request's order, else by name."""
    groups = list(state.groups_for(request, only))
    types = request.types or sorted({group.of_class.gpu_type for group in groups})
    groups_of_type: dict[str, list[Group]] = {gpu_type: [] for gpu_type in types}
    for group in groups:
        groups_of_type[group.of_class.gpu_type].append(group)
    return groups_of_type


def _on_fewest_nodes(
    state: FreeCapacity, request: Request, groups: Sequence[Group]
) -> Allocation | None:
    """Return units on the fewest nodes, or on as many as the request says: the roomiest first."""
    roomiest = sorted(groups, key=lambda group: (-group.units, group.free))
    if request.nodes:
        return _within_power(state, request, groups, lambda: _exactly(request, roomiest))
    return _within_power(state, request, groups, lambda: _fewest(request.units, roomiest))


def _within_power(
    state: FreeCapacity,
    request: Request,
    groups: Sequence[Group],
    choose: Callable[[], UnitsOnNodes],
) -> Allocation | None:
    """Return the chosen units, or those of least power if the power cap does not allow them."""
    room = sum(group.units * group.nodes.bit_count() for group in groups)
    if room < request.units:
        return None
    chosen = choose()
    allocation = state.place(request, chosen) if chosen else None
    if allocation is not None or state.cap_mw == inf:
        return allocation
    chosen = _of_least_power(state, request, groups)
    return state.place(request, chosen) if chosen else None


def _filled(units: int, groups: Iterable[Group]) -> UnitsOnNodes:
    """Return units on nodes in the order of the groups, each node as full as can be."""
    where = []
    left = units
    for group in groups:
        for node in members(group.nodes):
            where.append((node, min(left, group.units)))
            left -= group.units
            if left <= 0:
                return where
    return where


def _fewest(units: int, roomiest: Sequence[Group]) -> UnitsOnNodes:
    """Return units on the fewest nodes: all full but the last one, which is by best fit."""
    *full, (_, left) = _filled(units, roomiest)
    taken: NodeSet = 0
    for node, _ in full:
        taken |= 1 << node
    fitting = [group for group in roomiest if group.units >= left and group.nodes & ~taken]
    best = min(fitting, key=_free_of)
    return [*full, (lowest(best.nodes & ~taken), left)]


def _exactly(request: Request, roomiest: Sequence[Group]) -> UnitsOnNodes:
    """Return units on exactly `request.nodes` nodes, the first as full as can be, or []."""
    room_on = [(node, group.units) for group in roomiest for node in members(group.nodes)]
    room_on = room_on[: request.nodes]
    if len(room_on) < request.nodes or request.nodes > request.units:
        return []
    where = []
    left = request.units
    nodes_left = request.nodes
    for node, room in room_on:
        # Each of the nodes after this one needs at least a unit.
        nodes_left -= 1
        units = min(room, left - nodes_left)
        where.append((node, units))
        left -= units
    return [] if left else where


def _of_least_power(state: FreeCapacity, request: Request, groups: Iterable[Group]) -> UnitsOnNodes:
    """Return the units with the least additional power; [] if they do not fit.

    Dynamic programming over nodes, by units placed (and nodes used, where their number is given);
    of equal nodes no more than `units` are needed.
    """
    # best[units placed, nodes used]: least power, and the units on nodes that have it.
    best: dict[tuple[int, int], tuple[int, UnitsOnNodes]] = {(0, 0): (0, [])}
    node_step = 1 if request.nodes else 0
    for group in groups:
        extra_mw = [state.step_mw(request, group, units) for units in range(group.units + 1)]
        for node in islice(members(group.nodes), request.units):
            # Those with most units first, so that none of them has this node already.
            for (done, used), (power_mw, where) in sorted(best.items(), reverse=True):
                nodes_used = used + node_step
                if nodes_used > request.nodes:
                    continue
                for units in range(1, min(group.units, request.units - done) + 1):
                    key = done + units, nodes_used
                    total_mw = power_mw + extra_mw[units]
                    if key not in best or total_mw < best[key][0]:
                        best[key] = total_mw, [*where, (node, units)]
    key = request.units, request.nodes
    return best[key][1] if key in best else []


def _free_of(group: Group) -> Free:
    return group.free
