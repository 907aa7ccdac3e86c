"""Timers: events that will end a launch or a job, scheduled beforehand."""

from math import inf

from controlplane.simulation.cluster.launch import Launch
from controlplane.simulation.workloads.base import ENDLESS_S
from controlplane.simulation.world.events import (
    DeadlinePassed,
    LastStep,
    LaunchFailure,
    TermEnd,
    WalltimeEnd,
)
from controlplane.simulation.world.state import WorldState


def time_last_step(state: WorldState, launch: Launch) -> None:
    """Schedule the last step of a launch, and its failure if one is drawn, if its speed is known.

    Called again after a change of speed; the events of the earlier speed then change nothing.
    """
    if not launch.steps_per_s:
        return
    now_s = state.engine.now_s
    steps = int(state.table.total_steps[launch.row]) - launch.start_steps
    work_s = steps / launch.steps_per_s
    if work_s >= ENDLESS_S:
        return
    launch.ends_s = max(now_s, launch.first_step_s + work_s)
    state.schedule(launch.ends_s, LastStep(launch))

    fraction = state.noise.fails_after(launch.job, int(state.table.launched[launch.row]))
    if fraction is not None:
        launch.breaks_s = max(now_s, launch.first_step_s + fraction * work_s)
        state.schedule(launch.breaks_s, LaunchFailure(launch))


def time_term(state: WorldState, launch: Launch) -> None:
    """Schedule the stop at the end of the launch's term, if it has one."""
    if launch.until_s is not None:
        at_s = max(launch.until_s, state.engine.now_s)
        state.schedule(at_s, TermEnd(launch, launch.until_s))


def time_walltime(state: WorldState, launch: Launch) -> None:
    """Schedule the kill of a launch whose job is killed at its walltime.

    As live, the walltime counts from the start of the process, a restart included.
    """
    if is_killed_at_walltime(state, launch.row):
        walltime_s = float(state.table.columns.numbers["walltime_s"][launch.row])
        at_s = max(state.engine.now_s, launch.start_s + walltime_s)
        state.schedule(at_s, WalltimeEnd(launch))


def time_deadline(state: WorldState, row: int) -> None:
    """Schedule the end of a job at its deadline, if it has one."""
    deadline_s = float(state.table.columns.numbers["deadline_s"][row])
    if deadline_s < inf:
        state.schedule(max(state.engine.now_s, deadline_s), DeadlinePassed(row))


def is_killed_at_walltime(state: WorldState, row: int) -> bool:
    """Return True if a launch of the job ends at its walltime."""
    columns = state.table.columns
    by_switch = bool(state.switches.kill_at_walltime) and columns.others["batch"][row]
    is_killed = state.rules.kills.get(columns.ids[row], by_switch)
    return is_killed and bool(columns.numbers["walltime_s"][row] < inf)
