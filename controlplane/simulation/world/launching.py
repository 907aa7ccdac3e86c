"""Recheck of a job and of a placement as in `controlplane.loop.live.recheck`, and its launch."""

from __future__ import annotations

from collections.abc import Container
from math import inf, isnan
from typing import TYPE_CHECKING

from controlplane.loop.rounds import RejectCode, Rejected
from controlplane.simulation.cluster.fleet import Fleet
from controlplane.simulation.cluster.speeds import Speeds
from controlplane.simulation.workloads.base import ENDLESS_S, LONGEST_RUN_S
from controlplane.simulation.world.job_table import JobTable, Launch
from policies.contract.plan import Placement

if TYPE_CHECKING:
    from controlplane.simulation.world.world import SimulatedWorld


def fastest_run(
    table: JobTable, speeds: Speeds, row: int, unplaceable: Container[str]
) -> tuple[float, str]:
    """Return a job's shortest run time, and why it can never run: "" if it can."""
    rate, why = speeds.best(table.columns, row)
    fastest_s = inf if why else int(table.total_steps[row]) / rate
    if any(other in unplaceable for other in table.columns.others["dependencies"][row]):
        return fastest_s, "it waits for a job that can never run"
    endless = fastest_s >= ENDLESS_S and table.columns.others["batch"][row]
    if not why and fastest_s > LONGEST_RUN_S and not endless:
        why = f"where it is fastest it takes {fastest_s:.3g} s, which is no run time"
    return fastest_s, why


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
    if shared := fleet.with_company(table.row_of[placement.job], placement.ranks):
        words = f"not alone on {', '.join(shared)}"
        return Rejected(placement.key, RejectCode.DEFERRED, words)
    if short := fleet.lacking(table.row_of[placement.job], placement.ranks):
        words = f"too little is free on {', '.join(short)}"
        return Rejected(placement.key, RejectCode.DEFERRED, words)
    if away := [seat.node for seat in placement.ranks if not fleet.nodes[seat.node].takes_training]:
        return Rejected(placement.key, RejectCode.STALE, f"takes nothing new: {', '.join(away)}")
    if not rate and any(not other.goes_on for other in fleet.beside(placement.ranks)):
        words = "a job that is being stopped is still there, and no company for it"
        return Rejected(placement.key, RejectCode.DEFERRED, words)
    if not rate:
        words = "no speed is known there, or beside the jobs there: it would never end"
        return Rejected(placement.key, RejectCode.STALE, words)
    return None


def new_launch(world: SimulatedWorld, placement: Placement, steps_per_s: float) -> Launch:
    """Launch of an accepted placement now; `steps_per_s` is without noise."""
    table, now_s, row = world.table, world.engine.now_s, world.table.row_of[placement.job]
    return Launch(
        placement.job,
        placement.ranks,
        now_s,
        int(table.steps_done[row]),
        now_s + time_to_start_s(world, row),
        steps_per_s * next_noise(world, row),
        placement.until_s,
        placement.steps_quota,
        row=row,
    )


def setup_s(world: SimulatedWorld, row: int) -> float:
    """Return the set-up time of a job's kind."""
    kind = world.speeds.kinds.get(world.table.columns.kinds[row])
    return kind.setup_s if kind is not None else 0.0


def time_to_start_s(world: SimulatedWorld, row: int) -> float:
    """Return the time from the next launch of a job to its first step."""
    return world.scenario.launch_s + max(setup_s(world, row), world.table.restart_s(row))


def next_noise(world: SimulatedWorld, row: int) -> float:
    """Return the factor of a job's speed at its next launch."""
    return world.noise.speed(world.table.columns.ids[row], int(world.table.launched[row]))
