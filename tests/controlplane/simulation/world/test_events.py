"""Events of the simulated world: each has its function, and a late one changes nothing."""

from typing import get_args

import pytest

from controlplane.simulation.cluster.launch import Launch
from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.switches import Switches
from controlplane.simulation.world.events import (
    DeadlinePassed,
    DrainEnd,
    Event,
    FirstSteps,
    LastStep,
    LaunchFailure,
    NodeFailure,
    StopEnd,
    TermEnd,
    WalltimeEnd,
)
from controlplane.simulation.world.run import Simulation
from controlplane.simulation.world.world import ANSWERS, answer
from policies.baselines.fifo import Fifo
from tests.builders_policies import a_job, a_kind, a_node


def a_simulation() -> Simulation:
    """One job of 50 s, killed and overdue later than that, beside one that arrives at 100 s."""
    scenario = Scenario((a_node("n1", "V100", 1),), (a_kind("k", {("V100", 1): 2.0}),), ())
    jobs = [a_job("a", walltime_s=60.0, deadline_s=70.0), a_job("b", arrival_s=100.0)]
    return Simulation(scenario, jobs, Fifo(), switches=Switches(first_run_steps=10))


def test_every_event_has_a_function_that_answers_it() -> None:
    assert ANSWERS.keys() == set(get_args(Event))


@pytest.mark.parametrize("event_type", [LastStep, LaunchFailure, WalltimeEnd, StopEnd])
def test_late_events_of_an_ended_launch_change_nothing(
    event_type: type[LastStep | LaunchFailure | WalltimeEnd | StopEnd],
) -> None:
    simulation, launch = _after_the_end_of_a_launch()
    launch.breaks_s = 0.0
    _assert_nothing_changes(simulation, event_type(launch))


def test_late_terms_and_first_steps_of_a_launch_change_nothing() -> None:
    simulation, launch = _after_the_end_of_a_launch()
    launch.until_s = 80.0
    _assert_nothing_changes(simulation, TermEnd(launch, 80.0))
    _assert_nothing_changes(simulation, FirstSteps(launch, ("V100", 1)))


def test_a_deadline_after_the_end_of_a_job_changes_nothing() -> None:
    simulation, launch = _after_the_end_of_a_launch()
    _assert_nothing_changes(simulation, DeadlinePassed(launch.row))


def test_the_end_of_a_drain_that_was_taken_back_changes_nothing() -> None:
    simulation, _ = _after_the_end_of_a_launch()
    _assert_nothing_changes(simulation, DrainEnd("n1", 80.0))


def test_no_node_fails_after_the_last_job() -> None:
    simulation = a_simulation().run()
    _assert_nothing_changes(simulation, NodeFailure("n1", 0))


def _after_the_end_of_a_launch() -> tuple[Simulation, Launch]:
    """Return a simulation at 80 s, and the launch of its first job, which ended at 50 s."""
    simulation = a_simulation()
    simulation.run(until_s=20.0)
    (launch,) = simulation.state.launches.values()
    simulation.run(until_s=80.0)
    assert launch.end_s == 50.0
    return simulation, launch


def _assert_nothing_changes(simulation: Simulation, event: Event) -> None:
    state = simulation.state
    before = state.jobs, list(state.active), list(state.queue), dict(state.running)
    requests = len(state.round_reasons)
    answer(state, event)
    assert (state.jobs, state.active, state.queue, state.running) == before
    assert len(state.round_reasons) == requests
