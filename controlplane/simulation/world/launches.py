"""Launches of jobs: recheck of a placement, begin, stop, failure and release.

A placement is rechecked as in `controlplane.loop.live.recheck`.
"""

from bisect import bisect_left, insort

from controlplane.loop.rounds import ENDED_STOP, RejectCode, Rejected
from controlplane.simulation.cluster.launch import Launch
from controlplane.simulation.world.colocation import speed_of, update_neighbours, update_speed
from controlplane.simulation.world.events import FirstStart, LaunchFailure, StopEnd, TermEnd
from controlplane.simulation.world.job_table import JobEnd
from controlplane.simulation.world.measuring import watch_first_steps
from controlplane.simulation.world.state import WorldState
from controlplane.simulation.world.timers import time_last_step, time_term, time_walltime
from policies.contract.plan import Placement
from policies.contract.snapshot import Running

# ---- begin


def launch_placement(state: WorldState, placement: Placement) -> Rejected | None:
    """Launch a placement now; return why if that cannot be done."""
    speed = speed_of(state, placement)
    rejected = _recheck(state, placement, speed)
    if rejected is None:
        _begin(state, _new_launch(state, placement, speed))
    return rejected


def resume(state: WorldState, job: str, run: Running) -> None:
    """Go on with a launch of before the simulation; it never ends if its speed is unknown."""
    if not state.fleet.has(run.ranks) or state.fleet.taken(run.ranks):
        return
    placement = Placement(job, run.ranks, steps_quota=run.steps_quota, until_s=run.until_s)
    launch = _new_launch(state, placement, speed_of(state, placement))
    first_step_s = run.since_s + _setup_s(state, launch.row)
    launch.start_s = run.since_s
    launch.first_step_s = max(state.engine.now_s, first_step_s)
    _begin(state, launch)


def keep(state: WorldState, launch: Launch, placement: Placement) -> None:
    """Let a launch go on, with the placement's term and quota."""
    launch.until_s = placement.until_s
    launch.steps_quota = placement.steps_quota
    state.running[launch.row] = (launch.running(),)
    time_term(state, launch)


def change_quotas(state: WorldState, launch: Launch, placement: Placement) -> None:
    """Let a launch go on with the quotas of a placement, and its term."""
    state.fleet.release(launch)
    launch.ranks = placement.ranks
    state.fleet.take(launch)
    update_speed(state, launch)
    keep(state, launch, placement)


def _recheck(state: WorldState, placement: Placement, speed: float) -> Rejected | None:
    """Return why the placement cannot be launched, or None. `speed`: steps/s, 0 unknown."""
    row = state.table.row_of[placement.job]
    fleet = state.fleet
    ranks = placement.ranks

    # 1. The job must not have ended since the decision began, nor be on other devices.
    if state.table.state[row] != JobEnd.OPEN:
        return Rejected(placement.key, RejectCode.STALE, "the job is over")
    if row in state.launches:
        return Rejected(placement.key, RejectCode.DEFERRED, "the job is being stopped")

    # 2. Its seats must be free, and on nodes that take jobs.
    if taken := fleet.taken(ranks):
        return Rejected(placement.key, RejectCode.DEFERRED, f"still held: {taken}")
    if shared := fleet.with_company(row, ranks):
        words = f"not alone on {', '.join(shared)}"
        return Rejected(placement.key, RejectCode.DEFERRED, words)
    if short := fleet.lacking(row, ranks):
        words = f"too little is free on {', '.join(short)}"
        return Rejected(placement.key, RejectCode.DEFERRED, words)
    if closed := [seat.node for seat in ranks if not fleet.nodes[seat.node].takes_training]:
        words = f"takes nothing new: {', '.join(closed)}"
        return Rejected(placement.key, RejectCode.STALE, words)

    # 3. It must have a speed there, beside the jobs that are there.
    if speed:
        return None
    if any(not other.goes_on for other in fleet.beside(ranks)):
        words = "a job that is being stopped is still there, and no company for it"
        return Rejected(placement.key, RejectCode.DEFERRED, words)
    words = "no speed is known there, or beside the jobs there: it would never end"
    return Rejected(placement.key, RejectCode.STALE, words)


def _new_launch(state: WorldState, placement: Placement, speed: float) -> Launch:
    """Return the launch of an accepted placement now; `speed` in steps/s is without noise."""
    table = state.table
    now_s = state.engine.now_s
    row = table.row_of[placement.job]
    return Launch(
        placement.job,
        placement.ranks,
        start_s=now_s,
        start_steps=int(table.steps_done[row]),
        first_step_s=now_s + _time_to_first_step_s(state, row),
        steps_per_s=speed * _noise_of_next(state, row),
        until_s=placement.until_s,
        steps_quota=placement.steps_quota,
        row=row,
    )


def _begin(state: WorldState, launch: Launch) -> None:
    """Let a launch take its devices, and schedule all that may end it."""
    row = launch.row
    # 1. The job leaves the queue for its devices.
    state.table.begin(launch)
    state.journal.begin(launch)
    state.predictions.begin(launch)
    state.fleet.take(launch)
    state.launches[row] = launch
    state.running[row] = (launch.running(),)
    del state.queue[bisect_left(state.queue, row)]
    _meter_nodes(state, launch)

    # 2. What happens later.
    time_last_step(state, launch)
    time_walltime(state, launch)
    watch_first_steps(state, launch)
    time_term(state, launch)
    update_neighbours(state, launch)
    if state.table.launched[row] == 1 and state.start_rules.is_start_awaited(row):
        state.schedule_in(0.0, FirstStart(row))


# ---- stop and release


def ask_to_stop(state: WorldState, launch: Launch) -> None:
    """Begin the stop of a launch that goes on; its job waits."""
    if not launch.goes_on:
        return
    state.table.want_stop(launch, state.engine.now_s)
    del state.running[launch.row]
    wait_in_queue(state, launch.row)
    state.schedule_in(state.scenario.stop_s, StopEnd(launch))


def end_stop(state: WorldState, event: StopEnd) -> None:
    """Release a launch whose stop has ended, unless its node was lost meanwhile."""
    launch = event.launch
    if launch.is_over:
        return
    release(state, launch, launch.steps_at(state.engine.now_s))
    state.request_round(ENDED_STOP)


def end_term(state: WorldState, event: TermEnd) -> None:
    """Stop a launch at the end of its term, unless the term was changed."""
    if event.launch.until_s == event.until_s:
        ask_to_stop(state, event.launch)


def break_launch(state: WorldState, event: LaunchFailure) -> None:
    """Let a launch fail that was drawn to, unless a change of speed has put that off."""
    if event.launch.breaks_s <= state.engine.now_s:
        fail(state, event.launch)


def fail(state: WorldState, launch: Launch) -> None:
    """Fail a launch that is not over: its job waits, with the steps of its last checkpoint."""
    if launch.is_over:
        return
    state.table.failed[launch.row] += 1
    saves = state.table.columns.others["preemptible"][launch.row]
    every_s = state.switches.checkpoint_every_s if saves else 0.0
    release(state, launch, launch.saved_at(state.engine.now_s, every_s))
    state.request_round("failure")


def release(state: WorldState, launch: Launch, steps: int) -> None:
    """Free the devices of a launch with `steps` of its job done; the job waits."""
    row = launch.row
    if launch.goes_on:
        del state.running[row]
        wait_in_queue(state, row)
    state.table.end(launch, state.engine.now_s, steps)
    state.journal.end(launch)
    state.fleet.release(launch)
    state.builder.receive(launch)
    del state.launches[row]
    _meter_nodes(state, launch)
    update_neighbours(state, launch)


def wait_in_queue(state: WorldState, row: int) -> None:
    """Let a job wait for its next launch, with a new prediction of its run time."""
    insort(state.queue, row)
    if state.predictions.needs_true_run_s:
        state.predictions.wait(row, _true_run_s(state, row))
    else:
        state.predictions.wait(row)


def _meter_nodes(state: WorldState, launch: Launch) -> None:
    """Meter the nodes of a launch that began or ended.

    In the order of its seats: sums of floats depend on it, and equal runs have equal results.
    """
    for node in dict.fromkeys([seat.node for seat in launch.ranks]):
        works = state.fleet.works(node)
        state.meter.use(state.engine.now_s, node, state.fleet.in_use[node], works=works)


# ---- times and speed of a job's next launch


def _setup_s(state: WorldState, row: int) -> float:
    """Return the set-up time of a job's kind."""
    kind = state.speeds.kinds.get(state.table.columns.kinds[row])
    return kind.setup_s if kind is not None else 0.0


def _time_to_first_step_s(state: WorldState, row: int) -> float:
    """Return the time from the next launch of a job to its first step."""
    return state.scenario.launch_s + max(_setup_s(state, row), state.table.restart_s(row))


def _noise_of_next(state: WorldState, row: int) -> float:
    """Return the factor of a job's true speed at its next launch."""
    return state.noise.speed(state.table.columns.ids[row], int(state.table.launched[row]))


def _true_run_s(state: WorldState, row: int) -> float:
    """Return how long a job's next launch will run on its fastest devices."""
    run_s = float(state.fastest_s[row]) / _noise_of_next(state, row)
    return _time_to_first_step_s(state, row) + run_s
