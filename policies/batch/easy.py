"""EASY backfilling (Lifka 1995): the first job that does not fit has a reservation.

Later jobs start if by their expected run times they end before it, or if they leave it what it
needs. Several jobs may have reservations: each is made beside the ones before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from policies.batch.plan import BatchPlan, Choice
from policies.contract.plan import LAST_S, Expected
from policies.placement.cluster_state import ClusterState
from policies.placement.layout import RESOURCES, Allocation, NodeSet, Request, node_set
from policies.placement.timeline import earliest


@dataclass(frozen=True, slots=True)
class Head:
    """Job with a reservation: its start (s) and its units.

    `later`: the state of the cluster at its start, without these units. `alone`: the job has its
    nodes to itself.
    """

    row: int
    start_s: float
    units: Allocation
    later: ClusterState
    expected: Expected
    alone: bool

    @property
    def nodes(self) -> NodeSet:
        """Nodes of the reservation."""
        return node_set(self.units)


def start_in_order(
    plan: BatchPlan,
    rows: Iterable[int],
    *,
    backfills: bool = True,
    reservations: int = 1,
) -> list[Head]:
    """Start jobs in this order; return the first ones that do not fit, with their reservations.

    A job has no reservation if no expected end of others makes room for it. Without `backfills` no
    later job starts before one that waits.
    """
    heads: list[Head] = []
    misses: set[tuple[Request, NodeSet, bool]] = set()
    for row in rows:
        choices = plan.choices(row)
        if _start(plan, row, choices, heads, misses) or len(heads) >= reservations:
            continue
        if plan.fits_when_empty(row):
            heads += _reserved(plan, row, choices[0], heads)
            if not backfills:
                break
    return heads


def starts_of(heads: Iterable[Head]) -> dict[int, Expected]:
    """Return the expected starts of jobs with reservations, by row."""
    return {head.row: head.expected for head in heads}


def expected(plan: BatchPlan, start_s: float, run_s: float, units: Allocation) -> Expected:
    """Return the expected start of a job that is to have these units."""
    layout = plan.state.layout
    names = tuple([layout.nodes[part.node].id for part in units.parts])
    gpus = sum(part.devices.bit_count() for part in units.parts)
    end_s = start_s + run_s if start_s + run_s <= LAST_S else None
    return Expected(min(start_s, LAST_S), end_s, names, gpus)


def _start(
    plan: BatchPlan,
    row: int,
    choices: Iterable[Choice],
    heads: Sequence[Head],
    misses: set[tuple[Request, NodeSet, bool]],
) -> bool:
    """Start a job with the first of its choices that fits and keeps the reservations.

    Return if it was started. `misses`: choices that do not fit, and will not in this round, as free
    capacity only shrinks.
    """
    for choice in choices:
        key = choice.request, choice.nodes, plan.is_alone(row)
        if key in misses:
            continue
        units = plan.find(row, choice)
        if units is None:
            misses.add(key)
            continue
        passed = passed_by(plan, choice, heads)
        units = keeping(plan, row, choice, passed, units)
        if units is not None:
            _take(plan, row, choice, passed, units)
            return True
    return False


def passed_by(plan: BatchPlan, choice: Choice, heads: Iterable[Head]) -> list[Head]:
    """Return the reservations that begin before the end of a job that started now."""
    return [head for head in heads if plan.view.now_s + choice.run_s > head.start_s]


def keeping(
    plan: BatchPlan, row: int, choice: Choice, passed: Sequence[Head], units: Allocation
) -> Allocation | None:
    """Return `units`, or others for this choice, that leave passed reservations what they need.

    None if there are none.
    """
    if not passed:
        return units
    # Nodes that the job cannot share with a reservation, as one of both wants them for itself.
    apart = _nodes_of(head for head in passed if head.alone or plan.is_alone(row))
    for candidate in (units, plan.find(row, choice, within=~_nodes_of(passed))):
        if candidate is None or node_set(candidate) & apart:
            continue
        if all(head.later.place(choice.request, _where(candidate)) for head in passed):
            return candidate
    return None


def _take(
    plan: BatchPlan, row: int, choice: Choice, passed: Iterable[Head], units: Allocation
) -> None:
    """Start a job, and note its units beside the reservations that it passes."""
    plan.take(row, units, choice.run_s)
    for head in passed:
        beside = head.later.place(choice.request, _where(units))
        assert beside is not None  # it was looked at before
        head.later.take(beside)


def _where(units: Allocation) -> list[tuple[int, int]]:
    """Return (node, number of units) of each part."""
    return [(part.node, part.units) for part in units.parts]


def _reserved(plan: BatchPlan, row: int, choice: Choice, heads: Sequence[Head]) -> list[Head]:
    """Return the reservation of a job beside others; [] if no expected end makes room."""
    shareable = ~_nodes_of(head for head in heads if head.alone or plan.is_alone(row))

    def search(state: ClusterState) -> Allocation | None:
        return plan.find(row, choice, without(state, heads), shareable)

    start = earliest(plan.state, search, plan.view.now_s)
    if start is None:
        return []
    start_s, state = start
    if start_s <= plan.view.now_s:  # it fits now, but only where a better fit is reserved
        return []
    later = without(state, heads)
    units = search(state)
    assert units is not None  # `earliest` found it
    later.take(units)
    expected_start = expected(plan, start_s, choice.run_s, units)
    return [Head(row, start_s, units, later, expected_start, plan.is_alone(row))]


def without(state: ClusterState, heads: Sequence[Head]) -> ClusterState:
    """Return the state less what reservations need, now or later."""
    if not heads:
        return state
    layout = state.layout
    idle = state.idle.copy()
    free = state.free.copy()
    for head in heads:
        for node, units, devices in head.units.parts:
            idle[node] &= ~devices
            amounts = free[node][RESOURCES : RESOURCES + len(layout.resources)]
            used = head.units.request.used(units) or (0,) * len(amounts)
            left = [max(0, has - uses) for has, uses in zip(amounts, used, strict=True)]
            free[node] = layout.free(node, idle[node], tuple(left))
    new = ClusterState(layout, state.cap_mw, idle, free)
    new.open = state.open
    new.held = state.held
    return new


def _nodes_of(heads: Iterable[Head]) -> NodeSet:
    """Return the nodes of these reservations."""
    nodes: NodeSet = 0
    for head in heads:
        nodes |= head.nodes
    return nodes
