"""The plan of a queue: started jobs are left alone, the others start in order where they fit."""

from __future__ import annotations

from policies.contract.plan import Plan
from policies.contract.snapshot import Ints, Snapshot
from policies.placement.options import GroupingKey
from policies.placement.plan_builder import PlanBuilder


def queue_plan(snapshot: Snapshot, policy: str, order: Ints) -> Plan:
    """Return the plan that starts jobs in `order` (int64[J], rows of all jobs).

    Each gets its cheapest option that meets its due date, else its fastest, by best fit. One that
    does not fit lets the next one try; its class is then skipped, as what is free only shrinks.
    """
    plan = PlanBuilder(snapshot, never_touch=True)
    classes, decided, unplaceable = plan.classes, plan.decided, set[GroupingKey]()
    for row in order.tolist():
        if row in decided or classes.keys[row] in unplaceable:
            continue
        if not start(plan, row):
            unplaceable.add(classes.keys[row])
    return plan.build(policy)


def start(plan: PlanBuilder, row: int) -> bool:
    """Start a job with the first of its options that fits. Return False if none does."""
    for option, run_s in plan.classes.ranked(row):
        allocation = plan.state.find(option.request, option.nodes)
        if allocation is not None:
            plan.place(row, allocation, run_s)
            return True
    return False
