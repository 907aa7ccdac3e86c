"""Jobs that share devices of nodes which take nothing new: they stay there, as those do that have
their devices to themselves.
"""

from __future__ import annotations

from collections import Counter

from policies.andreas.problem import Problem
from policies.contract.plan import Placement, Plan, PlanStatus
from policies.contract.snapshot import Running, Snapshot
from policies.contract.validation import power_w, validate_plan
from policies.gavel.colocation.tandems import WHOLE
from policies.gavel.colocation.vacancies import Vacancies
from policies.placement.from_snapshot import free_devices, training_run


def staying_halves(problem: Problem, vacancies: Vacancies) -> list[Placement]:
    """Their placements, as far as the judge, profile runs that were given their devices, and the
    watts let them stay, until a drain ends; the watts are taken.
    """
    snapshot, ids = problem.snapshot, problem.snapshot.jobs.columns.ids
    kept = [Placement(ids[stay.row], stay.run.ranks, stay.run.copy) for stay in problem.pinned]
    pinned, used = len(kept), Counter[str]()
    for row in problem.rows.tolist():
        run = training_run(snapshot.jobs.columns.others["running"][row])
        if run is None or not _is_shared_outside(snapshot, run):
            continue
        placement = Placement(ids[row], run.ranks, run.copy, until_s=_until_s(snapshot, run))
        needed = used + Counter({seat.node: len(seat.devices) for seat in run.ranks})
        if (
            _breaks_no_rule(snapshot, (*kept, placement))
            and power_w(snapshot.node_by_id, needed) <= vacancies.watts
        ):
            kept.append(placement)
            used = needed
    vacancies.watts -= power_w(snapshot.node_by_id, used)
    return kept[pinned:]


def _breaks_no_rule(snapshot: Snapshot, placements: tuple[Placement, ...]) -> bool:
    """But that it says nothing of the other jobs; watts are looked at for themselves."""
    found = validate_plan(Plan("halves", PlanStatus.KEPT, placements), snapshot)
    return {violation.code for violation in found} <= {"job_missing", "power_cap"}


def _is_shared_outside(snapshot: Snapshot, run: Running) -> bool:
    """Whether it holds a part of devices that are still training's, of nodes that take no
    training.
    """
    nodes = [snapshot.node_by_id.get(seat.node) for seat in run.ranks]
    if not all(node is not None and not node.takes_training for node in nodes) or all(
        seat.share == WHOLE for seat in run.ranks
    ):
        return False
    known = snapshot.jobs.position
    free = {node.id: free_devices(node, known) for node in nodes if node is not None}
    return all(device in free[seat.node] for seat in run.ranks for device in seat.devices)


def _until_s(snapshot: Snapshot, run: Running) -> float | None:
    """When a drain ends it."""
    ends = [snapshot.node_by_id[seat.node].drain_until_s for seat in run.ranks]
    return min((end_s for end_s in ends if end_s is not None), default=None)
