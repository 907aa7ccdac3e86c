"""Recheck of a placement as in `controlplane.loop.live.recheck`, and its launch."""

from math import isnan

from controlplane.loop.rounds import RejectCode, Rejected
from controlplane.simulation.cluster.fleet import Fleet
from controlplane.simulation.world.job_table import JobTable, Launch
from policies.contract.plan import Placement


def refusal(
    table: JobTable, fleet: Fleet, placement: Placement, *, is_stopping: bool, rate: float
) -> Rejected | None:
    """Reason why the placement cannot be launched, or None. `rate`: steps/s, 0 unknown."""
    if not isnan(table.completed_s[table.row_of[placement.job]]):
        return Rejected(placement.key, RejectCode.STALE, "the job is done")
    if is_stopping:
        return Rejected(placement.key, RejectCode.DEFERRED, "the job is being stopped")
    if taken := fleet.taken(placement.ranks):
        return Rejected(placement.key, RejectCode.DEFERRED, f"still held: {taken}")
    if away := [seat.node for seat in placement.ranks if not fleet.nodes[seat.node].takes_training]:
        return Rejected(placement.key, RejectCode.STALE, f"takes nothing new: {', '.join(away)}")
    if not rate and any(not other.goes_on for other in fleet.beside(placement.ranks)):
        words = "a job that is being stopped is still there, and no company for it"
        return Rejected(placement.key, RejectCode.DEFERRED, words)
    if not rate:
        words = "no speed is known there, or beside the jobs there: it would never end"
        return Rejected(placement.key, RejectCode.STALE, words)
    return None


def new_launch(
    table: JobTable, placement: Placement, now_s: float, setup_s: float, steps_per_s: float
) -> Launch:
    """Launch of an accepted placement, `setup_s` before its first step."""
    row = table.row_of[placement.job]
    steps, until_s, quota = int(table.steps_done[row]), placement.until_s, placement.steps_quota
    return Launch(
        placement.job, placement.ranks, now_s, steps, now_s + setup_s, steps_per_s, until_s, quota,
        row=row,
    )  # fmt: skip
