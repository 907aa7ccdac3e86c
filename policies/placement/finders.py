"""Searches of free capacity, one for each `Span`.

Exact under the power cap: where the preferred choice needs too much power, dynamic programming over
the nodes finds the one that adds the least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Protocol, TypeAlias

from policies.placement.free_capacity import FreeCapacity, Group
from policies.placement.layout import Allocation, Free, Request, Span, lowest, members

Where: TypeAlias = list[tuple[int, int]]
"""(node, units), each node once."""


Order: TypeAlias = Callable[["Group"], tuple[float, ...]]
"""Sort key of groups, least first."""


class Finder(Protocol):
    """A search; `key` orders groups where it may, None is best fit."""

    def __call__(
        self,
        state: FreeCapacity,
        request: Request,
        only: int,
        key: Order | None,
    ) -> Allocation | None:
        """Return the preferred allocation; None exactly if there is none."""
        ...


def on_one_node(
    state: FreeCapacity, request: Request, only: int, key: Order | None
) -> Allocation | None:
    """By best fit: the least free capacity in each class, GPUs first, then the least of all."""
    best: Group | None = None
    best_key: tuple[float, ...] = ()
    if request.nodes > 1:
        return None
    classes, allowed = state.layout.admitting(request)
    for c in classes:
        for group in state.groups_of(c, request, allowed & state.open & only):
            if group.units == request.units and state.affordable(request, group):
                of_group = group.free if key is None else key(group)
                if best is None or of_group < best_key:
                    best, best_key = group, of_group
                if key is None:
                    break
    if best is None:
        return None
    return state.allocation(request, [(lowest(best.nodes), request.units)])


def on_one_type(
    state: FreeCapacity, request: Request, only: int, key: Order | None
) -> Allocation | None:
    """On one node, else type by type in the request's order on the fewest nodes."""
    found = on_one_node(state, request, only, key)
    if found is not None or request.units == 1:
        return found
    of_types = by_type(state, request, only).values()
    return next(filter(None, (_spread(state, request, groups) for groups in of_types)), None)


def on_types_mixed(
    state: FreeCapacity, request: Request, only: int, key: Order | None
) -> Allocation | None:
    """On the shortest prefix of the request's types that has room: the slowest is fastest so."""
    usable: list[Group] = []
    for groups in by_type(state, request, only).values():
        usable += groups
        if groups and (found := _spread(state, request, usable)) is not None:
            return found
    return None


def anywhere(
    state: FreeCapacity, request: Request, only: int, key: Order | None
) -> Allocation | None:
    """On groups by `key` (node by node) or best fit, several units on a node."""
    found = state.groups_for(request, only)
    if key is not None:
        found = (g._replace(nodes=1 << n) for g in found for n in members(g.nodes))
    groups = sorted(found, key=key or _free_of)
    if request.nodes:
        return _spread(state, request, groups)
    return _within_power(state, request, groups, lambda: _filled(request.units, groups))


FINDERS: Mapping[Span, Finder] = {
    Span.ONE_NODE: on_one_node,
    Span.ONE_TYPE: on_one_type,
    Span.MIXED: on_types_mixed,
    Span.ANY: anywhere,
}


def least_power_mw(state: FreeCapacity, request: Request, only: int) -> int | None:
    """Return the least additional power with which a request would fit; None if it would not."""
    if request.span is Span.ONE_NODE:
        steps = [
            state.step_mw(request, g, g.units)
            for g in state.groups_for(request, only)
            if g.units == request.units and request.nodes < 2
        ]
        return min(steps, default=None)
    groups = list(state.groups_for(request, only))
    apart = by_type(state, request, only).values() if request.span is Span.ONE_TYPE else [groups]
    found = [_least_power(state, request, of) for of in apart]
    return min((state.extra_mw(request, where) for where in found if where), default=None)


def by_type(state: FreeCapacity, request: Request, only: int) -> dict[str, list[Group]]:
    """Return the groups with room by GPU type, in the request's order, else by name."""
    groups = list(state.groups_for(request, only))
    types = request.types or sorted({g.of_class.gpu_type for g in groups})
    return {t: [g for g in groups if g.of_class.gpu_type == t] for t in types}


def _spread(state: FreeCapacity, request: Request, groups: Sequence[Group]) -> Allocation | None:
    """Return units on the fewest nodes: the roomiest first, the last one by best fit."""
    roomiest = sorted(groups, key=lambda g: (-g.units, g.free))
    if request.nodes:
        return _within_power(state, request, groups, lambda: _exactly(request, roomiest))
    return _within_power(state, request, groups, lambda: _fewest(request.units, roomiest))


def _within_power(
    state: FreeCapacity, request: Request, groups: Sequence[Group], choose: Callable[[], Where]
) -> Allocation | None:
    """Return the chosen units, or those of least power under the power cap."""
    if sum(g.units * g.nodes.bit_count() for g in groups) < request.units:
        return None
    found = state.place(request, where) if (where := choose()) else None
    if found is not None or state.cap_mw == inf:
        return found
    return state.place(request, where) if (where := _least_power(state, request, groups)) else None


def _filled(left: int, groups: Iterable[Group]) -> Where:
    where = []
    for group in groups:
        for node in members(group.nodes):
            where.append((node, min(left, group.units)))
            left -= group.units
            if left <= 0:
                return where
    return where


def _fewest(units: int, groups: Sequence[Group]) -> Where:
    *others, (_, left) = _filled(units, groups)
    taken = sum(1 << node for node, _ in others)
    fit = [g for g in groups if g.units >= left and g.nodes & ~taken]
    return [*others, (lowest(min(fit, key=_free_of).nodes & ~taken), left)]


def _exactly(request: Request, roomiest: Sequence[Group]) -> Where:
    """Return units on exactly `request.nodes` nodes, the first as full as can be, or []."""
    nodes = [(n, g.units) for g in roomiest for n in members(g.nodes)][: request.nodes]
    left = request.units
    if not len(nodes) == request.nodes <= left:
        return []
    where = []
    for after, (node, units) in zip(range(len(nodes) - 1, -1, -1), nodes, strict=True):
        where.append((node, min(units, left - after)))
        left -= where[-1][1]
    return [] if left else where


def _least_power(state: FreeCapacity, request: Request, groups: Iterable[Group]) -> Where:
    """Return the units with the least additional power; [] if they do not fit.

    Dynamic programming over nodes, by units placed (and nodes used, where their number is given);
    of equal nodes no more than `units` are needed.
    """
    best: dict[tuple[int, int], tuple[int, Where]] = {(0, 0): (0, [])}
    count = 1 if request.nodes else 0
    for group in groups:
        extra = [state.step_mw(request, group, units) for units in range(group.units + 1)]
        for _, node in zip(range(request.units), members(group.nodes), strict=False):
            for (done, used), (power, where) in sorted(best.items(), reverse=True):
                for units in range(1, min(group.units, request.units - done) + 1):
                    key, total = (done + units, used + count), power + extra[units]
                    if key[1] <= request.nodes and total < best.get(key, (inf,))[0]:
                        best[key] = total, [*where, (node, units)]
    return best.get((request.units, request.nodes), (0, []))[1]


def _free_of(group: Group) -> Free:
    return group.free
