"""Speeds that nobody knows: policies plan with assumed ones, and nobody is told what follows."""

from dataclasses import replace

from policies.contract.plan import Placement, Plan, Waiting
from policies.contract.snapshot import Snapshot


def without_assumed_times(plan: Plan, snapshot: Snapshot) -> Plan:
    """Return the plan without run times, ends and costs that rest on assumed speeds alone."""
    kinds = {kind.id for kind in snapshot.kinds if kind.is_assumed}
    if not kinds:
        return plan
    columns = snapshot.jobs.columns
    jobs = {job for job, kind in zip(columns.ids, columns.kinds, strict=True) if kind in kinds}
    return replace(
        plan,
        placements=tuple(_placed(p) if p.job in jobs else p for p in plan.placements),
        waiting=tuple(_waiting(w) if w.job in jobs else w for w in plan.waiting),
    )


def _placed(placement: Placement) -> Placement:
    return replace(placement, predicted_run_s=None, predicted_energy_cost=None)


def _waiting(waiting: Waiting) -> Waiting:
    if waiting.expected is None:
        return waiting
    return replace(waiting, expected=replace(waiting.expected, end_s=None))
