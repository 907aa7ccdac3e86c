"""Backfilling that starts small jobs first, as long as later jobs take little from a waiting one.

Jobs start in order of their size. While a job waits, jobs that came later may use the cluster for a
part of the time. When they have had more than that, the waiting job goes first, with a reservation.
Wide jobs cannot use small gaps, so they go first sooner. All of this is relative: no constant is in
seconds, and what a job loses to later ones is measured, not predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from policies.batch.area import Areas
from policies.batch.backfilling import built
from policies.batch.easy import start_in_order, starts_of
from policies.batch.fit import FITS, NODE_ORDERS, with_node_order
from policies.batch.later_work import LaterWork
from policies.batch.plan import BatchPlan
from policies.contract.plan import Plan
from policies.contract.policy import parameter
from policies.contract.snapshot import Bools, Floats, Snapshot

NARROWNESS_POWER = 16
"""Power of the part of the cluster that a job leaves free, by which its patience falls.

A job of 4% of the cluster has half the patience of a narrow one, a job of 25% a hundredth.
"""


@dataclass(frozen=True, slots=True)
class AreaBackfilling:
    """Batch and training jobs in one queue; a started job is never touched."""

    places_batch: ClassVar[bool] = True
    keeps_started: ClassVar[bool] = True
    retired_parameters: ClassVar[frozenset[str]] = frozenset(
        ("pass_s", "pass_backlog", "limit_s", "limit_backlog", "search", "budget")
    )

    patience: float = parameter(
        0.8,
        meaning=(
            "part of a narrow job's wait during which later jobs may use the whole cluster; then"
            " the job goes first. Greater values favour small jobs; 0 is about the order of arrival"
        ),
        minimum=0.0,
        maximum=1.0,
    )
    reservations: int = parameter(
        1,
        meaning="number of first jobs that do not fit and get reservations, which no job may delay",
        minimum=1,
        maximum=10,
    )
    fit: str = parameter(
        "scarce",
        meaning="which of the nodes with room are taken first, as in backfilling",
        choices=tuple(FITS),
    )
    node_order: str = parameter(
        "given",
        meaning="which of equally good nodes is taken: in this order of the cluster's nodes",
        choices=NODE_ORDERS,
    )

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Start jobs in order; the first ones that do not fit have reservations."""
        snapshot = with_node_order(snapshot, self.node_order)
        plan = BatchPlan(snapshot, range(len(snapshot.jobs)), (), self.fit, scale_free=True)
        areas = Areas(plan)
        arrival_s = plan.columns.numbers["arrival_s"]

        # 1. Go on measuring how much later jobs have used the cluster, for each waiting one.
        waiting = plan.eligible()
        later = LaterWork(snapshot.now_s, arrival_s[waiting], snapshot.memory)

        # 2. Start jobs: those that lost their patience by arrival, then the others by size.
        is_passed = self._is_passed(later, arrival_s[waiting], areas.shares(waiting))
        rows = _in_order(plan, areas, waiting, is_passed)
        heads = start_in_order(plan, rows, reservations=self.reservations)

        # 3. Remember who runs now: their work counts in the next round.
        running = sorted(plan.rows)
        memory = later.remembered(arrival_s[running], areas.shares(running))
        return built("area_backfilling", plan, starts_of(heads), memory)

    def _is_passed(self, later: LaterWork, arrival_s: Floats, share: Floats) -> Bools:
        """bool[J]: True for the waiting jobs that lost more to later ones than their patience.

        With the work W (s) of jobs that came later, measured for T seconds, and the job's share s:
        W > patience (1 - s)^NARROWNESS_POWER T.
        """
        work_s, waited_s = later.of(arrival_s)
        narrowness = (1.0 - share) ** NARROWNESS_POWER
        is_passed: Bools = work_s > self.patience * narrowness * waited_s
        return is_passed


def _in_order(plan: BatchPlan, areas: Areas, waiting: Sequence[int], is_passed: Bools) -> list[int]:
    """Return waiting jobs by priority; of equal ones those passed by arrival, others by size."""
    arrival_s = plan.columns.listed["arrival_s"]
    priority = plan.columns.listed["priority"]
    passed = {row for row, is_one in zip(waiting, is_passed.tolist(), strict=True) if is_one}

    def turn(row: int) -> tuple[int, bool, float, float, int]:
        size_s = 0.0 if row in passed else areas.size_s(row)
        return -priority[row], row not in passed, size_s, arrival_s[row], row

    return sorted(waiting, key=turn)
