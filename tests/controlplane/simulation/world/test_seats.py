"""A simulation that begins in the midst: what runs keeps its devices and goes on, what waits is
decided about.
"""

from math import inf

import pytest

from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.switches import Switches
from controlplane.simulation.world.run import Simulation
from policies.baselines.fifo import Fifo
from policies.contract.plan import Placement
from policies.contract.snapshot import JobView, PriceInterval, RankPlacement
from tests.builders_policies import a_job, a_kind, a_node

SCENARIO = Scenario(
    (a_node("n1", gpus=2),),
    (a_kind("k", {("V100", 1): 2.0}),),
    (PriceInterval(0.0, inf, 0.2, 1.5),),
)
WAITS, RUNS = a_job("waits"), a_job("runs")
"""100 steps each: 50 s."""


def seat(job: str, node: str, *devices: str) -> Placement:
    return Placement(job, (RankPlacement(node, devices),))


def starts(
    *seats: Placement, jobs: list[JobView], switches: Switches | None = None
) -> dict[str, list[tuple[float, str]]]:
    """(start, device) of each job's launches."""
    simulation = Simulation(
        SCENARIO, jobs, Fifo(), seats=seats, shortcuts=True, switches=switches or Switches()
    ).run()
    return {
        job.view.id: [(launch.start_s, launch.ranks[0].devices[0]) for launch in job.launches]
        for job in simulation.state.jobs.values()
    }


def test_what_runs_keeps_its_device_and_what_waits_gets_another() -> None:
    found = starts(seat("runs", "n1", "gpu0"), jobs=[WAITS, RUNS])
    assert found == {"runs": [(0.0, "gpu0")], "waits": [(0.0, "gpu1")]}


def test_whoever_came_first_waits_for_what_runs() -> None:
    both = [seat("runs", "n1", "gpu0"), seat("runs too", "n1", "gpu1")]
    found = starts(
        *both, jobs=[WAITS, RUNS, a_job("runs too", remaining_steps=300.0, total_steps=300.0)]
    )
    assert found["waits"] == [(50.0, "gpu0")]


def test_seats_are_taken_before_a_decision_takes_its_time() -> None:
    found = starts(
        seat("runs", "n1", "gpu0"), jobs=[WAITS, RUNS], switches=Switches(decision_s=7.0)
    )
    assert found == {"runs": [(0.0, "gpu0")], "waits": [(7.0, "gpu1")]}


@pytest.mark.parametrize(
    "place", [("gone", "gpu0"), ("n1", "gpu9"), ("n1", "gpu0", "gpu0"), ("n1", "gpu0", "gpu1")],
    ids=["no such node", "no such device", "a device twice", "a speed that is not known"],
)  # fmt: skip
def test_a_job_whose_place_is_not_there_waits_like_the_others(place: tuple[str, ...]) -> None:
    assert starts(seat("runs", *place), jobs=[WAITS, RUNS]) == {
        "waits": [(0.0, "gpu0")],
        "runs": [(0.0, "gpu1")],
    }


def test_a_job_that_comes_in_later_is_not_seated_before() -> None:
    found = starts(seat("late", "n1", "gpu0"), jobs=[WAITS, a_job("late", arrival_s=20.0)])
    assert found == {"waits": [(0.0, "gpu0")], "late": [(20.0, "gpu1")]}


def test_of_two_seats_of_a_job_the_first_counts() -> None:
    both = [seat("runs", "n1", "gpu1"), seat("runs", "n1", "gpu0")]
    assert starts(*both, jobs=[RUNS]) == {"runs": [(0.0, "gpu1")]}


def test_a_job_that_can_never_run_is_not_seated() -> None:
    found = starts(seat("huge", "n1", "gpu0"), jobs=[a_job("huge", gpus_min=9, gpus_max=9), RUNS])
    assert found == {"huge": [], "runs": [(0.0, "gpu0")]}


def test_two_jobs_on_one_device_are_one_too_many() -> None:
    found = starts(seat("runs", "n1", "gpu0"), seat("waits", "n1", "gpu0"), jobs=[WAITS, RUNS])
    assert found == {"runs": [(0.0, "gpu0")], "waits": [(0.0, "gpu1")]}
