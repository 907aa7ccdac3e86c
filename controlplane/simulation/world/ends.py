"""Ends of jobs: last step, walltime, deadline, and dependencies that can never be satisfied.

A kill takes no time.
"""

from bisect import bisect_left

from controlplane.simulation.cluster.launch import Launch
from controlplane.simulation.world.events import (
    DeadlinePassed,
    DelayEnd,
    FirstStart,
    LastStep,
    WalltimeEnd,
)
from controlplane.simulation.world.job_table import JobEnd
from controlplane.simulation.world.launches import release
from controlplane.simulation.world.state import WorldState


def complete(state: WorldState, event: LastStep) -> None:
    """Complete the job of a launch, unless the launch was stopped or slowed down meanwhile."""
    launch = event.launch
    if not launch.goes_on or launch.ends_s > state.engine.now_s:
        return
    release(state, launch, int(state.table.total_steps[launch.row]))
    state.predictions.end(launch)
    _finish(state, launch.row, JobEnd.COMPLETED)


def kill(state: WorldState, event: WalltimeEnd) -> None:
    """End a job at its walltime, unless its launch has ended or is being stopped."""
    launch = event.launch
    if not launch.goes_on:
        return
    walltime_s = float(state.table.columns.numbers["walltime_s"][launch.row])
    _stop_now(state, launch)
    state.predictions.end(launch)
    reason = f"it was killed at its walltime of {walltime_s:,.0f} s"
    _finish(state, launch.row, JobEnd.KILLED, reason)


def end_overdue(state: WorldState, event: DeadlinePassed) -> None:
    """End a job at its deadline; one that is being stopped when its nodes are free."""
    row = event.row
    if not state.is_active(row):
        return
    launch = state.launches.get(row)
    if launch is not None and not launch.goes_on:
        state.schedule_in(state.scenario.stop_s, event)
        return
    if launch is not None:
        if launch.ends_s <= state.engine.now_s:  # its last step is answered at this moment, too
            return
        _stop_now(state, launch)
    _finish(state, row, JobEnd.OVERDUE, "it was not done at its deadline")


def end_delay(state: WorldState, event: DelayEnd) -> None:
    """Ask for a round, which shows the job whose delay has ended."""
    state.request_round("submission")


def note_first_start(state: WorldState, event: FirstStart) -> None:
    """Ask for a round, which shows the jobs that waited for the start of this one."""
    state.request_round("submission")
    _check_waiters(state, event.row)


def check_dependencies(state: WorldState, row: int) -> None:
    """End a waiting job whose dependencies can no longer be satisfied, or begin its delay."""
    if not state.is_active(row) or row in state.launches:
        return
    if reason := state.start_rules.impossible_reason(row):
        _finish(state, row, JobEnd.NEVER_READY, reason)
        return
    ready_s = state.start_rules.begin_delay(row, state.engine.now_s)
    if ready_s is not None:
        state.schedule(ready_s, DelayEnd())


def _stop_now(state: WorldState, launch: Launch) -> None:
    """Release a launch with the whole steps that it has done."""
    release(state, launch, launch.steps_at(state.engine.now_s))


def _finish(state: WorldState, row: int, end: JobEnd, reason: str = "") -> None:
    """End a waiting job, and the jobs that wait for another end of it."""
    del state.queue[bisect_left(state.queue, row)]
    del state.active[bisect_left(state.active, row)]
    state.table.finish(row, end, state.engine.now_s)
    state.builder.leave(row)
    if reason:
        state.end_reasons[row] = reason
    state.request_round("completion" if end is JobEnd.COMPLETED else "failure")
    _check_waiters(state, row)


def _check_waiters(state: WorldState, row: int) -> None:
    """Check the dependencies of the jobs that wait for this one."""
    for waiter in state.start_rules.waiters(row):
        check_dependencies(state, waiter)
