"""First in, first out, and the plan of any queue."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from policies.contract.plan import Plan
from policies.contract.snapshot import Ints, Snapshot
from policies.placement.plan_builder import PlanBuilder
from policies.placement.priced_options import GroupingKey


@dataclass(frozen=True, slots=True)
class Fifo:
    """Jobs by submission; a started job is never touched (ANDREAS' baseline FIFO)."""

    queue_only: ClassVar[bool] = True

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Start waiting jobs by `arrival_s`; one that does not fit lets the next one try."""
        arrival_s = snapshot.jobs.columns.numbers["arrival_s"]
        return queue_plan(snapshot, "fifo", np.argsort(arrival_s, kind="stable"))


def queue_plan(snapshot: Snapshot, policy: str, order: Ints) -> Plan:
    """Return the plan that starts jobs in `order` (int64[J], rows of all jobs).

    Each gets its cheapest option that meets its due date, else its fastest, by best fit. One that
    does not fit lets the next one try; its class is then skipped, as free capacity only shrinks.
    """
    plan = PlanBuilder(snapshot, never_touch=True)
    options, decided, unplaceable = plan.options, plan.decided, set[GroupingKey]()
    for row in order.tolist():
        if row in decided or options.keys[row] in unplaceable:
            continue
        if not start(plan, row):
            unplaceable.add(options.keys[row])
    return plan.build(policy)


def start(plan: PlanBuilder, row: int) -> bool:
    """Start a job with the first of its options that fits. Return False if none does."""
    for option, run_s in plan.options.ranked(row):
        allocation = plan.state.find(option.request, option.nodes)
        if allocation is not None:
            plan.place(row, allocation, run_s)
            return True
    return False
