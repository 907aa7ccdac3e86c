"""Arrival of jobs in a simulated world. Jobs that can never run do not enter; they are reported."""

from collections.abc import Iterable
from math import inf

from controlplane.simulation.workloads.base import ENDLESS_S, LONGEST_RUN_S
from controlplane.simulation.world.ends import check_dependencies
from controlplane.simulation.world.launches import launch_placement, wait_in_queue
from controlplane.simulation.world.measuring import meet_kind
from controlplane.simulation.world.outcome import Unplaceable
from controlplane.simulation.world.state import WorldState
from controlplane.simulation.world.timers import is_killed_at_walltime, time_deadline
from policies.contract.plan import Placement


def submit(state: WorldState, rows: range) -> None:
    """Submit jobs of the workload together; `rows`: their rows in the table of jobs."""
    # 1. Jobs that can never run do not enter.
    state.arrived = rows.stop
    entering = [row for row in rows if _may_enter(state, row)]

    # 2. The others wait, and their new kinds are measured.
    for row in entering:
        state.active.append(row)
        wait_in_queue(state, row)
        if state.builder.enter(row):
            meet_kind(state, row)

    # 3. Some may end while they wait.
    for row in entering:
        time_deadline(state, row)
        check_dependencies(state, row)
    if entering:
        state.request_round("submission")


def seat(state: WorldState, placements: Iterable[Placement]) -> None:
    """Launch the jobs that run when the simulation begins, each by its first placement.

    A job goes on waiting if its devices are missing or taken. One that has not arrived is not
    launched.
    """
    waiting_rows = set(state.queue)
    for placement in placements:
        row = state.table.row_of.get(placement.job)
        if row in waiting_rows and state.fleet.has(placement.ranks):
            launch_placement(state, placement)


def _may_enter(state: WorldState, row: int) -> bool:
    """Return True if a job can run, and note its shortest run time; else note why it cannot."""
    columns = state.table.columns
    fastest_s, reason = _fastest_run(state, row)
    # A job that runs already can run, whatever is known of its speeds.
    if reason and not columns.others["running"][row]:
        job = columns.ids[row]
        state.unplaceable[job] = Unplaceable(row, job, reason)
        return False

    # A job that is killed at its walltime runs no longer than that.
    if is_killed_at_walltime(state, row):
        fastest_s = min(fastest_s, float(columns.numbers["walltime_s"][row]))
    state.fastest_s[row] = fastest_s
    return True


def _fastest_run(state: WorldState, row: int) -> tuple[float, str]:
    """Return a job's shortest run time in seconds, and why it can never run: "" if it can.

    The time is that without a kill at the walltime; inf if the job runs nowhere.
    """
    # 1. The time where the job is fastest.
    columns = state.table.columns
    steps_per_s, reason = state.speeds.best(columns, row)
    fastest_s = inf
    if not reason:
        fastest_s = int(state.table.total_steps[row]) / steps_per_s

    # 2. Other reasons: a job on which it depends, and a time that is absurd. A batch job may be
    #    endless.
    dependencies = columns.others["dependencies"][row]
    if any(dependency in state.unplaceable for dependency in dependencies):
        return fastest_s, "it waits for a job that can never run"
    is_endless = fastest_s >= ENDLESS_S and columns.others["batch"][row]
    if not reason and fastest_s > LONGEST_RUN_S and not is_endless:
        reason = f"where it is fastest it takes {fastest_s:.3g} s, which is no run time"
    return fastest_s, reason
