"""Backfilling that starts small jobs first and lets none wait without end.

A job passes those that came shortly before it and are larger: by run time and share of the cluster.
The job that came first passes all others once it has waited longer than a limit. Both times grow
with the backlog: the area of all jobs that wait and of what is left of those that run, which is
about the time that the cluster needs to work it off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log1p
from typing import ClassVar

from policies.batch.area import Areas
from policies.batch.backfilling import built
from policies.batch.easy import start_in_order, starts_of
from policies.batch.fit import FITS, NODE_ORDERS, with_node_order
from policies.batch.packing import Packing
from policies.batch.plan import BatchPlan
from policies.contract.plan import LAST_S, Plan
from policies.contract.policy import parameter
from policies.contract.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class AreaBackfilling:
    """Batch and training jobs in one queue; a started job is never touched."""

    places_batch: ClassVar[bool] = True
    keeps_started: ClassVar[bool] = True

    pass_s: float = parameter(
        70_000.0,
        meaning=(
            "seconds that a job may come later and still pass another of e = 2.7 times its size"
            " (run time times its share of the cluster to the power of 0.75, plus a second):"
            " greater values favour small jobs, 0 is the order of arrival"
        ),
        minimum=0.0,
    )
    pass_backlog: float = parameter(
        0.2, meaning="the same as a part of the backlog; the greater of both counts", minimum=0.0
    )
    limit_s: float = parameter(
        75_000.0,
        meaning=(
            "seconds of waiting after which the job that came first is first, whatever its size"
            " and priority, with a reservation that nobody may delay"
        ),
        minimum=0.0,
    )
    limit_backlog: float = parameter(
        2.0,
        meaning="the same as a multiple of the backlog; the greater of both counts",
        minimum=0.0,
    )
    reservations: int = parameter(
        2,
        meaning="jobs, the first ones that do not fit, whose reservations nobody may delay",
        minimum=1,
        maximum=10,
    )
    search: str = parameter(
        "none",
        meaning=(
            "of the jobs that pass the reserved ones: none, in order; packing: those of the"
            " greatest sum of weights, e^(-rank / pass_s), by the best of several orders and CP-SAT"
        ),
        choices=("none", "packing"),
    )
    budget: float = parameter(
        0.02,
        meaning="CP-SAT's deterministic time for a decision, about seconds on a fast core",
        minimum=0.001,
        maximum=3600.0,
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
        plan = BatchPlan(snapshot, range(len(snapshot.jobs)), (), self.fit)
        rows, logs = self._in_order(plan, plan.eligible())
        if self.search == "none":
            heads = start_in_order(plan, rows, reservations=self.reservations)
            return built("area_backfilling", plan, starts_of(heads))
        packed = Packing(plan, rows, logs, self.reservations).best(self.budget)
        found = built("area_backfilling", packed.plan, starts_of(packed.heads))
        return replace(found, status=packed.status, objective=packed.lost, bound=packed.bound)

    def _in_order(self, plan: BatchPlan, rows: Sequence[int]) -> tuple[list[int], dict[int, float]]:
        """Return waiting jobs, the first first: one that waited too long, then by priority.

        Beside it the logarithm of each one's weight: what falls with the rank as areas rise.
        """
        areas = Areas(plan)
        backlog_s = areas.left_s() + sum(of for row in rows if (of := areas.of(row)) < LAST_S)
        pass_s = max(self.pass_s, self.pass_backlog * backlog_s)
        late = _late(plan, rows, max(self.limit_s, self.limit_backlog * backlog_s))
        arrival_s, priority = plan.columns.listed["arrival_s"], plan.columns.listed["priority"]

        rank = {row: arrival_s[row] + pass_s * log1p(areas.size(row)) for row in rows}

        def turn(row: int) -> tuple[bool, int, float, float, int]:
            return row != late, -priority[row], rank[row], arrival_s[row], row

        return sorted(rows, key=turn), {row: -rank[row] / max(1.0, pass_s) for row in rows}


def _late(plan: BatchPlan, rows: Sequence[int], limit_s: float) -> int | None:
    """Return the job that came first of those that waited longer and could start at all."""
    arrival_s = plan.columns.listed["arrival_s"]
    waited = [row for row in rows if plan.view.now_s - arrival_s[row] > limit_s]
    waited.sort(key=lambda row: (arrival_s[row], row))
    return next(filter(plan.fits_when_empty, waited), None)
