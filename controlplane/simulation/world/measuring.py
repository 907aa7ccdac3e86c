"""Measurements of kinds whose speed policies do not know beforehand."""

from controlplane.simulation.cluster.launch import Launch
from controlplane.simulation.world.events import FirstSteps, KindMeasured
from controlplane.simulation.world.state import WorldState


def meet_kind(state: WorldState, row: int) -> None:
    """Begin to measure the new kind of a job, where its speed is not known beforehand."""
    if state.first_runs is not None:
        state.first_runs.assume(row)
        state.builder.learn(state.first_runs.views)
    if state.switches.profiling_s:
        kind = state.table.columns.kinds[row]
        state.builder.profiling.add(kind)
        state.schedule_in(state.switches.profiling_s, KindMeasured(kind))


def end_profiling(state: WorldState, event: KindMeasured) -> None:
    """Let the jobs of a kind start whose profiling is over."""
    state.builder.profiling.discard(event.kind)
    state.request_round("profile")


def watch_first_steps(state: WorldState, launch: Launch) -> None:
    """Schedule the measurement of a launch that shows the speed of its configuration."""
    if state.first_runs is None:
        return
    config = state.first_runs.config_shown_by(launch)
    if config is not None:
        state.schedule(state.first_runs.known_at_s(launch), FirstSteps(launch, config))


def measure_first_steps(state: WorldState, event: FirstSteps) -> None:
    """Record the speed that a launch has shown, unless it was stopped or ended before."""
    launch = event.launch
    if launch.stop_wanted_s is not None or launch.end_s < state.engine.now_s:
        return
    assert state.first_runs is not None
    is_new = state.first_runs.record(launch, event.config)
    state.builder.learn(state.first_runs.views)
    if is_new:
        state.request_round("profile")
