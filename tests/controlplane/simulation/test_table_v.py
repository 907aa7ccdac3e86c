"""ANDREAS' validation (Table V, Section V-C): eight jobs on three nodes, a call every 300 s and on
events, the greedy as coded.

The paper predicts 1.08438 EUR of energy, all jobs in time, and shows J7 put off when J2 is
submitted. Measured here: 1.077 EUR with the authors' seconds per epoch (0.7% below; J9 cannot be in
time, 2849 s against 2600 s, and J6, which it then crowds out, is late too), 1.067 EUR (1.6% below)
with ConvNet at 0.85 of its time, J6 then being late by a second. At 0.79 and below nothing is late.
"""

from functools import cache

import pytest

from controlplane.simulation.world.run import Simulation
from experiments.reproduce.andreas.armida import FITTED_CONVNET, validate
from policies.andreas.randomized_greedy import RandomizedGreedy
from tests.builders_loop import a_scenario, armida_kinds, table_v_jobs

PREDICTED_EUR = 1.08438
MUST_BE_LATE_S = 2849.0 - 2600.0


@cache
def validation(convnet: float, stop_s: float = 0.0) -> Simulation:
    scenario = a_scenario(kinds=armida_kinds({"ConvNet": convnet}), round_s=300.0, stop_s=stop_s)
    return Simulation(scenario, table_v_jobs(), RandomizedGreedy(mode="coded")).run()


def late(simulation: Simulation) -> dict[str, float]:
    return {
        job.view.id: job.tardiness_s
        for job in simulation.state.jobs.values()
        if job.tardiness_s > 0.0
    }


@pytest.mark.parametrize("convnet", [1.0, 0.85])
def test_the_energy_of_the_validation_is_within_two_per_cent_of_the_papers_prediction(
    convnet: float,
) -> None:
    assert validation(convnet).state.meter.energy_cost == pytest.approx(PREDICTED_EUR, rel=0.02)


def test_no_decision_is_drawn_anew_because_a_stop_has_ended() -> None:
    asked_by_stops = [
        r for r in validation(1.0, stop_s=1.0).rounds if r.snapshot.trigger.reasons == ("stopped",)
    ]
    assert asked_by_stops
    assert all(r.carried is not None for r in asked_by_stops)


@pytest.mark.parametrize("convnet", [1.0, 0.85])
def test_j7_is_postponed_when_j2_is_submitted_and_goes_to_armida_07(convnet: float) -> None:
    jobs = validation(convnet).state.jobs
    first = jobs["J2"].launches[0]
    assert (first.start_s, first.ranks[0].node) == (7200.0, "armida-07")
    assert not [
        launch
        for launch in jobs["J7"].launches
        if launch.start_s < first.end_s and launch.end_s > first.start_s
    ]
    assert jobs["J7"].launches[-1].start_s > 7200.0


def test_with_the_times_as_they_are_j9_is_late_by_at_least_what_it_must_be() -> None:
    found = late(validation(1.0))
    assert found.keys() == {"J6", "J9"}
    assert found["J9"] == pytest.approx(MUST_BE_LATE_S, abs=150.0)
    assert found["J9"] > MUST_BE_LATE_S - 1.0


@pytest.mark.parametrize("convnet", [FITTED_CONVNET, FITTED_CONVNET - 0.01, FITTED_CONVNET - 0.02])
def test_with_the_fitted_convnet_nothing_is_late(convnet: float) -> None:
    assert late(validation(convnet)) == {}


def test_the_reproduction_reports_that_nothing_is_late_in_the_fitted_run() -> None:
    assert validate(1)["fitted"]["late_s"] == {}


def test_every_job_is_done_and_no_step_is_lost_or_done_twice() -> None:
    for job in validation(1.0).state.jobs.values():
        steps = [0, *(launch.end_steps for launch in job.launches)]
        assert [launch.start_steps for launch in job.launches] == steps[:-1]
        assert steps[-1] == job.total_steps
