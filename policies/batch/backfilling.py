"""Backfilling: a queue in which jobs may pass those that do not fit, without delaying them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from policies.batch.conservative import Conservative
from policies.batch.easy import start_in_order, starts_of
from policies.batch.fit import FITS, NODE_ORDERS, with_node_order
from policies.batch.orders import ORDERS
from policies.batch.plan import BatchPlan
from policies.contract.plan import Expected, Plan, PlanStatus
from policies.contract.policy import parameter
from policies.contract.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Backfilling:
    """Batch and training jobs in one queue; a started job is never touched."""

    places_batch: ClassVar[bool] = True
    keeps_started: ClassVar[bool] = True

    order: str = parameter(
        "arrival",
        meaning=(
            "of jobs with equal priority: arrival; shortest, longest or smallest area first;"
            " slowdown: the greatest (wait + run time) / run time now; or a score of wait, run time"
            " and cores"
        ),
        choices=tuple(ORDERS),
    )
    backfill: str = parameter(
        "easy",
        meaning=(
            "easy: later jobs start if they do not delay the first waiting job, by predicted run"
            " times (Lifka's EASY); conservative: if they delay no waiting job; none: no job"
            " passes the first"
        ),
        choices=("easy", "conservative", "none"),
    )
    fit: str = parameter(
        "best",
        meaning=(
            "of the nodes with room: the fullest first, the first one, the emptiest first, or"
            " scarce: the fewest free GPUs and named resources, then the fullest"
        ),
        choices=tuple(FITS),
    )
    node_order: str = parameter(
        "given",
        meaning="which of equally good nodes is taken: in this order of the cluster's nodes",
        choices=NODE_ORDERS,
    )

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Start jobs in order, each on its first option that fits."""
        snapshot = with_node_order(snapshot, self.node_order)
        plan = BatchPlan(snapshot, range(len(snapshot.jobs)), (), self.fit)
        rows = plan.sorted_by(self.order, plan.eligible())
        if self.backfill != "conservative":
            heads = start_in_order(plan, rows, backfills=self.backfill == "easy")
            return built("backfilling", plan, starts_of(heads))
        reservations = Conservative(plan, snapshot.memory)
        reservations.start_in_order(rows)
        memory = reservations.to_memory()
        return built("backfilling", plan, reservations.expected_starts(), memory)


def built(
    name: str,
    plan: BatchPlan,
    expected: Mapping[int, Expected],
    memory: Mapping[str, Any] | None = None,
) -> Plan:
    """Return the finished plan of a policy. `expected`: starts of waiting jobs by row."""
    position = plan.view.jobs.position
    placements = tuple(sorted(plan.placements, key=lambda placement: position[placement.job]))
    reasons = plan.waiting(placements, expected)
    waiting = tuple(sorted(reasons, key=lambda reason: position[reason.job]))
    return Plan(name, PlanStatus.HEURISTIC, placements, waiting, memory=dict(memory or {}))
