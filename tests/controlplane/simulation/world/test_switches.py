"""Every switch does what it says, and nothing while it is off."""

from itertools import pairwise
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from controlplane.simulation.cluster.noise import Noise
from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.switches import NO_SWITCHES, Switches
from controlplane.simulation.workloads.base import Workload
from controlplane.simulation.world.outcome import Outcome
from controlplane.simulation.world.run import Simulation, simulate
from foundation.forms import Form, FormError
from policies.baselines.fifo import Fifo
from policies.contract.plan import Placement, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.policy import Policy
from policies.contract.snapshot import (
    JobColumns,
    JobPhase,
    Jobs,
    JobView,
    PriceInterval,
    RankPlacement,
    Snapshot,
)
from tests.builders_policies import a_job, a_kind, a_node

KIND = a_kind("k", {("V100", 1): 2.0, ("V100", 2): 3.0})


def a_scenario(gpus: int = 1, **fields: Any) -> Scenario:
    return Scenario(
        (a_node("n1", "V100", gpus),), (KIND,), (PriceInterval(0.0, inf, 0.2, 1.5),), **fields
    )


def the_outcome(
    *jobs: JobView, policy: Policy | None = None, gpus: int = 1, seed: int = 1, **switches: Any
) -> Outcome:
    workload = Workload("test", Jobs(JobColumns.of(jobs)), (KIND,))
    return simulate(
        a_scenario(gpus),
        workload,
        policy or Fifo(),
        name="p",
        seed=seed,
        switches=Switches(**switches),
    )


def last_first(snapshot: Snapshot) -> Plan:
    """Always gives the only device to the job that came last."""
    able = [j for j in snapshot.jobs if j.phase is not JobPhase.PROFILING]
    placed = tuple(Placement(job.id, (RankPlacement("n1", ("gpu0",)),)) for job in able[-1:])
    waiting = tuple(Waiting(j.id, WaitCode.POSTPONED) for j in able[:-1])
    unknown = (
        Waiting(j.id, WaitCode.AWAITING_PROFILE)
        for j in snapshot.jobs
        if j.phase is JobPhase.PROFILING
    )
    return Plan("last_first", PlanStatus.HEURISTIC, placed, (*waiting, *unknown))


def test_switches_are_all_off_unless_turned_on() -> None:
    assert Form(Switches).read({}) == NO_SWITCHES
    assert NO_SWITCHES.turned_on == {}
    assert Form(Switches).read({"stop_s": 5, "run_time_noise": 0.1}).turned_on == {
        "stop_s": 5.0,
        "run_time_noise": 0.1,
    }


def test_an_unknown_switch_is_refused_with_the_known_ones() -> None:
    with pytest.raises(FormError, match=r"luanch_s: .*known are: launch_s.*estimate_error"):
        Form(Switches).read({"luanch_s": 3.0})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("launch_s", -1.0),
        ("launch_s", nan),
        ("stop_s", inf),
        ("job_failure_probability", 1.0),
        ("power_noise", 1.5),
        ("node_repair_s", 0.0),
        ("decision_s", True),
        ("stop_s", "3"),
        ("estimate_error", None),
    ],
)
def test_a_switch_out_of_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(FormError, match=name):
        Form(Switches).read({name: value})


def test_launching_stopping_and_restarting_take_the_time_they_are_given() -> None:
    jobs = (a_job("a"), a_job("b", arrival_s=10.0, remaining_steps=20.0, total_steps=20.0))
    outcome = the_outcome(*jobs, policy=last_first, launch_s=1.0, stop_s=2.0, restart_cost_s=5.0)
    assert list(outcome.completion_s) == [23.0 + 6.0 + (100 - 18) / 2.0, 12.0 + 1.0 + 10.0]
    assert list(outcome.preemptions) == [1, 0]


def test_what_the_scenario_costs_already_is_added_to() -> None:
    workload = Workload("test", Jobs(JobColumns.of([a_job("a")])), (KIND,))
    scenario = a_scenario(launch_s=2.0)
    assert list(
        simulate(
            scenario, workload, Fifo(), name="p", seed=1, switches=Switches(launch_s=3.0)
        ).completion_s
    ) == [55.0]


def test_jobs_of_a_new_kind_wait_until_it_is_profiled_and_later_ones_do_not() -> None:
    jobs = (a_job("a"), a_job("b", arrival_s=10.0), a_job("c", arrival_s=200.0))
    assert list(the_outcome(*jobs, gpus=2, profiling_s=60.0).first_start_s) == [60.0, 60.0, 200.0]
    simulation = Simulation(a_scenario(), jobs, Fifo(), switches=Switches(profiling_s=60.0)).run(
        until_s=30.0
    )
    assert {w.code for w in simulation.rounds[-1].plan.waiting} == {WaitCode.AWAITING_PROFILE}


def test_a_failing_launch_goes_on_from_its_last_checkpoint() -> None:
    outcome = the_outcome(
        a_job("a", remaining_steps=1000.0, total_steps=1000.0),
        job_failure_probability=0.7,
        checkpoint_every_s=50.0,
    )
    assert outcome.failures[0] > 0
    assert outcome.launches[0] == outcome.failures[0] + 1
    lost_s = outcome.busy_s[0] - 500.0
    assert 0.0 < lost_s <= 50.0 * outcome.failures[0]
    assert outcome.completion_s[0] == pytest.approx(500.0 + lost_s)


def test_without_checkpoints_a_failed_launch_has_done_nothing() -> None:
    simulation = Simulation(
        a_scenario(),
        [a_job("a")],
        Fifo(),
        switches=Switches(job_failure_probability=0.7, checkpoint_every_s=0.0),
    )
    launches = simulation.run().state.jobs["a"].launches
    assert len(launches) > 1
    assert [launch.end_steps for launch in launches] == [0] * (len(launches) - 1) + [100]


def test_a_node_that_fails_loses_its_work_and_takes_none_until_it_is_repaired() -> None:
    jobs = [a_job("a", remaining_steps=4000.0, total_steps=4000.0)]
    switches = Switches(node_failures_per_day=100.0, node_repair_s=77.0, checkpoint_every_s=10.0)
    simulation = Simulation(a_scenario(), jobs, Fifo(), switches=switches).run()
    launches = simulation.state.jobs["a"].launches
    assert len(launches) > 1
    waits = [after.start_s - before.end_s for before, after in pairwise(launches)]
    assert waits == pytest.approx([77.0] * len(waits))
    assert [launch.start_steps for launch in launches[1:]] == [
        launch.end_steps for launch in launches[:-1]
    ]


def test_the_world_goes_on_while_it_is_decided() -> None:
    jobs = (a_job("a"), a_job("b", arrival_s=10.0))
    outcome = the_outcome(*jobs, decision_s=3.0, decision_per_job_s=1.0)
    assert list(outcome.first_start_s) == [4.0, 58.0]


def test_a_plan_that_comes_too_late_starts_nothing_that_is_done_and_is_made_anew() -> None:
    jobs = (a_job("a"), a_job("b", arrival_s=51.0))
    simulation = Simulation(
        a_scenario(round_s=1e6), jobs, last_first, switches=Switches(decision_s=2.0)
    ).run()
    assert {job.view.id: job.completed_s for job in simulation.state.jobs.values()} == {
        "a": 52.0,
        "b": 103.0,
    }


def test_run_times_scatter_around_what_they_should_be() -> None:
    jobs = tuple(a_job(f"j{i}", arrival_s=100.0 * i) for i in range(200))
    outcome = the_outcome(*jobs, gpus=2, run_time_noise=0.1)
    speed = 50.0 / outcome.busy_s
    assert speed.mean() == pytest.approx(1.0, abs=0.03)
    assert speed.std() == pytest.approx(0.1, abs=0.02)


def test_noise_of_power_changes_the_bill_and_nothing_else() -> None:
    jobs = tuple(a_job(f"j{i}", arrival_s=60.0 * i) for i in range(300))
    quiet, noisy = the_outcome(*jobs), the_outcome(*jobs, power_noise=0.2)
    assert np.array_equal(quiet.completion_s, noisy.completion_s)
    assert noisy.energy_kwh != quiet.energy_kwh
    assert noisy.energy_kwh == pytest.approx(quiet.energy_kwh, rel=0.05)


def test_policies_see_wrong_throughputs_while_jobs_run_at_the_true_ones() -> None:
    seen: list[float] = []

    def looking(snapshot: Snapshot) -> Plan:
        seen.extend(t.steps_per_s for k in snapshot.kinds for t in k.throughputs)
        return Fifo()(snapshot)

    outcome = the_outcome(a_job("a"), policy=looking, estimate_error=0.3)
    assert list(outcome.completion_s) == [50.0]
    assert 2.0 not in seen
    assert 3.0 not in seen
    assert len(set(seen)) == 2


def test_draws_depend_on_the_seed_and_their_subject_only() -> None:
    one, other = (
        Noise(1, Switches(run_time_noise=0.1)),
        Noise(1, Switches(run_time_noise=0.1, job_failure_probability=0.5)),
    )
    assert one.speed("a", 0) == other.speed("a", 0)
    other.fails_after("a", 0)
    assert one.speed("a", 1) == other.speed("a", 1)
    assert one.speed("a", 0) != one.speed("a", 1)
    assert one.speed("a", 0) != Noise(2, Switches(run_time_noise=0.1)).speed("a", 0)
    assert Noise(1, NO_SWITCHES).speed("a", 0) == 1.0


def test_the_same_seed_gives_the_same_outcome_and_another_one_another() -> None:
    jobs = tuple(a_job(f"j{i}", arrival_s=30.0 * i) for i in range(20))
    switches: dict[str, Any] = {
        "run_time_noise": 0.2,
        "job_failure_probability": 0.2,
        "node_failures_per_day": 50.0,
    }
    first, again, other = (the_outcome(*jobs, seed=seed, **switches) for seed in (1, 1, 2))
    assert np.array_equal(first.completion_s, again.completion_s)
    assert first.energy_cost == again.energy_cost
    assert not np.array_equal(first.completion_s, other.completion_s)
