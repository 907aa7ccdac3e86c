"""Arrival of jobs; those that can never run are reported."""

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
    """Submit these jobs of the workload together."""
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
    """Launch jobs that run from the start; others wait.

    A job waits if its devices are missing or taken, or if it has not arrived; its first placement
    counts.
    """
    waiting = set(state.queue)
    for placement in placements:
        row = state.table.row_of.get(placement.job)
        if row in waiting and state.fleet.has(placement.ranks):
            launch_placement(state, placement)


def _may_enter(state: WorldState, row: int) -> bool:
    """Note a job's shortest run time; return False for one that can never run."""
    columns = state.table.columns
    fastest_s, reason = _fastest_run(state, row)
    if reason and not columns.others["running"][row]:
        job = columns.ids[row]
        state.unplaceable[job] = Unplaceable(row, job, reason)
        return False
    if is_killed_at_walltime(state, row):
        fastest_s = min(fastest_s, float(columns.numbers["walltime_s"][row]))
    state.fastest_s[row] = fastest_s
    return True


def _fastest_run(state: WorldState, row: int) -> tuple[float, str]:
    """Return a job's shortest run time, and why it can never run: "" if it can."""
    columns = state.table.columns
    speed, reason = state.speeds.best(columns, row)
    fastest_s = inf if reason else int(state.table.total_steps[row]) / speed
    if any(other in state.unplaceable for other in columns.others["dependencies"][row]):
        return fastest_s, "it waits for a job that can never run"
    is_endless = fastest_s >= ENDLESS_S and columns.others["batch"][row]
    if not reason and fastest_s > LONGEST_RUN_S and not is_endless:
        reason = f"where it is fastest it takes {fastest_s:.3g} s, which is no run time"
    return fastest_s, reason
