"""EASY backfilling (Lifka 1995): the first job that does not fit has a reservation.

Later jobs start if they end before it, by the run times told, or leave it what it needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from policies.batch.plan import BatchPlan, Choice
from policies.contract.plan import LAST_S, Expected
from policies.placement.cluster_state import ClusterState
from policies.placement.layout import Allocation, Request, node_set
from policies.placement.timeline import earliest


@dataclass(frozen=True, slots=True)
class Head:
    """First job that does not fit: its start, its nodes (a set), and what is free then beside it.

    `alone`: it has its nodes to itself.
    """

    row: int
    start_s: float
    nodes: int
    later: ClusterState
    expected: Expected
    alone: bool


def start_in_order(plan: BatchPlan, rows: Iterable[int], *, backfills: bool = True) -> Head | None:
    """Start jobs in this order, and return the first one that does not fit, with its reservation.

    None if all fit or no end that is told makes room. Without `backfills` nobody passes it.
    """
    head: Head | None = None
    misses = set[tuple[Request, int, bool]]()
    for row in rows:
        choices = plan.choices(row)
        if _start(plan, row, choices, head, misses) or head is not None:
            continue
        if plan.fits_when_empty(row):
            head = _reserved(plan, row, choices[0])
            if not backfills:
                break
    return head


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
    head: Head | None,
    misses: set[tuple[Request, int, bool]],
) -> bool:
    """Start a job with the first of its choices that fits and keeps the reservation.

    `misses`: what does not fit, and will not: free capacity only shrinks.
    """
    for choice in choices:
        key = choice.request, choice.nodes, plan.is_alone(row)
        if key in misses:
            continue
        if (found := plan.find(row, choice)) is None:
            misses.add(key)
            continue
        if head is not None and plan.view.now_s + choice.run_s > head.start_s:
            kept = _clear_of(plan, row, choice, head, found)
            if kept is None:
                continue
            found = kept
        plan.take(row, found, choice.run_s)
        return True
    return False


def _clear_of(
    plan: BatchPlan, row: int, choice: Choice, head: Head, found: Allocation
) -> Allocation | None:
    """Return units that leave the reservation what it needs, and note them there."""
    apart = head.alone or plan.is_alone(row)
    for tried in (found, plan.find(row, choice, only=~head.nodes)):
        if tried is None or (apart and node_set(tried) & head.nodes):
            continue
        beside = head.later.place(choice.request, [(p.node, p.units) for p in tried.parts])
        if beside is not None:
            head.later.take(beside)
            return tried
    return None


def _reserved(plan: BatchPlan, row: int, choice: Choice) -> Head | None:
    """Return the reservation of a job; None if no end that is told makes room for it."""
    found = earliest(plan.state, lambda state: plan.find(row, choice, state), plan.view.now_s)
    if found is None:
        return None
    start_s, later = found
    units = plan.find(row, choice, later)
    assert units is not None  # `earliest` found it
    later.take(units)
    told = expected(plan, start_s, choice.run_s, units)
    return Head(row, start_s, node_set(units), later, told, plan.is_alone(row))
