"""Backfilling: a queue in which jobs may pass those that do not fit, without delaying the first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from policies.batch.plan import BatchPlan
from policies.contract.plan import LAST_S, Expected, Plan, PlanStatus
from policies.contract.policy import parameter
from policies.contract.snapshot import Snapshot
from policies.placement.cluster_state import ClusterState, Hold
from policies.placement.layout import Allocation, Request
from policies.placement.timeline import earliest

LEAST_LEFT_S = 1.0
"""Least time that a running job is taken to need still: it may outlive what was expected."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Start of the first job that does not fit, its nodes (a set), and what is free then beside."""

    row: int
    start_s: float
    nodes: int
    later: ClusterState
    expected: Expected


@dataclass(frozen=True, slots=True)
class Backfilling:
    """Batch and training jobs in one queue; a started job is never touched."""

    places_batch: ClassVar[bool] = True

    order: str = parameter(
        "arrival",
        meaning=(
            "of jobs with equal priority: arrival, shortest or longest first, or slowdown: the"
            " greatest (wait + run time) / run time now"
        ),
        choices=("arrival", "shortest", "longest", "slowdown"),
    )
    backfill: str = parameter(
        "easy",
        meaning=(
            "easy: later jobs start if they do not delay the first one that waits, by the run times"
            " that are told (Lifka's EASY); none: nobody passes it"
        ),
        choices=("easy", "none"),
    )

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Start jobs in order by best fit, each on its first option that fits."""
        plan = _with_ends(BatchPlan(snapshot, range(len(snapshot.jobs)), ()), snapshot)
        head: Reservation | None = None
        misses = set[tuple[Request, int]]()
        for row in self._in_order(plan):
            options = list(_options(plan, row))
            if _started(plan, row, options, head, misses):
                continue
            if head is None and _can_ever_start(plan, row, options):
                if self.backfill == "none":
                    break
                head = _reserved(plan, row, options[0])
        return _built(plan, head)

    def _in_order(self, plan: BatchPlan) -> list[int]:
        """Return the waiting jobs that may start, the first first."""
        columns, fixed = plan.columns, plan.rows | plan.plan.not_eligible.keys()
        rows = [row for row in range(len(columns.ids)) if row not in fixed]
        priority = columns.listed["priority"]
        arrival_s = columns.listed["arrival_s"]
        return sorted(
            rows,
            key=lambda row: (-priority[row], self._rank(plan, row), arrival_s[row], row),
        )

    def _rank(self, plan: BatchPlan, row: int) -> float:
        if self.order == "arrival":
            return 0.0
        run_s = max(1.0, _run_s(plan, row))
        waited_s = plan.view.now_s - float(plan.columns.numbers["arrival_s"][row])
        slowdown = (waited_s + run_s) / run_s if run_s < inf else 1.0
        return {"shortest": run_s, "longest": -run_s, "slowdown": -slowdown}[self.order]


def _with_ends(plan: BatchPlan, snapshot: Snapshot) -> BatchPlan:
    """Note when the running jobs are expected to end."""
    for stay in plan.plan.pinned:
        left_s = max(LEAST_LEFT_S, plan.left_s[stay.row])
        plan.state.held[stay.row] = Hold(snapshot.now_s + left_s, stay.allocation)
    return plan


def _run_s(plan: BatchPlan, row: int) -> float:
    """Return the run time that is told: of a training job on its first option."""
    if row in plan.queued:
        return plan.run_s(row)
    return next((run_s for _, run_s in plan.plan.options.ranked(row)), inf)


def _options(plan: BatchPlan, row: int) -> Iterator[tuple[Request, int, float]]:
    """Yield (request, nodes, run time) of a job, the preferred first."""
    if row in plan.queued:
        yield plan.request(row), plan.nodes(row), plan.run_s(row)
        return
    for option, run_s in plan.plan.options.ranked(row):
        yield option.request, option.nodes, run_s


def _started(
    plan: BatchPlan,
    row: int,
    options: list[tuple[Request, int, float]],
    head: Reservation | None,
    misses: set[tuple[Request, int]],
) -> bool:
    """Start a job with the first of its options that fits and keeps the reservation.

    `misses`: what does not fit, and will not: free capacity only shrinks.
    """
    now_s = plan.view.now_s
    for request, nodes, run_s in options:
        if (request, nodes) in misses:
            continue
        if (found := plan.state.find(request, nodes)) is None:
            misses.add((request, nodes))
            continue
        if head is not None and now_s + run_s > head.start_s:
            kept = _clear_of(plan.state, head, request, nodes, found)
            if kept is None:
                continue
            found = kept
        plan.take(row, found, run_s, now_s)
        return True
    return False


def _clear_of(
    state: ClusterState, head: Reservation, request: Request, nodes: int, found: Allocation
) -> Allocation | None:
    """Return an allocation that leaves the reservation what it needs, and note it there."""
    for tried in (found, state.find(request, nodes & ~head.nodes)):
        if tried is None:
            continue
        beside = head.later.place(request, [(part.node, part.units) for part in tried.parts])
        if beside is not None:
            head.later.take(beside)
            return tried
    return None


def _can_ever_start(plan: BatchPlan, row: int, options: list[tuple[Request, int, float]]) -> bool:
    return plan.fits_when_empty(row) if row in plan.queued else bool(options)


def _reserved(plan: BatchPlan, row: int, option: tuple[Request, int, float]) -> Reservation | None:
    """Return the earliest start of a job; None if no end that is told makes room for it."""
    request, nodes, run_s = option
    if plan.columns.others["exclusive"][row]:
        return None
    found = earliest(plan.state, request, plan.view.now_s, nodes)
    if found is None:
        return None
    start_s, later = found
    allocation = later.find(request, nodes)
    assert allocation is not None  # `earliest` found it
    later.take(allocation)
    layout = plan.state.layout
    names = tuple([layout.nodes[part.node].id for part in allocation.parts])
    gpus = sum(part.devices.bit_count() for part in allocation.parts)
    end_s = start_s + run_s if start_s + run_s <= LAST_S else None
    on = sum(1 << part.node for part in allocation.parts)
    return Reservation(row, start_s, on, later, Expected(start_s, end_s, names, gpus))


def _built(plan: BatchPlan, head: Reservation | None) -> Plan:
    expected = {} if head is None else {head.row: head.expected}
    position = plan.view.jobs.position
    placements = tuple(sorted(plan.placements, key=lambda p: position[p.job]))
    waiting = sorted(plan.waiting(placements, expected), key=lambda w: position[w.job])
    return Plan("backfilling", PlanStatus.HEURISTIC, placements, tuple(waiting))
