"""Jobs that share a GPU in the simulated world: exact small cases, and what must hold whatever
happens.
"""

from dataclasses import replace
from typing import Any

import pytest

from controlplane.simulation.cluster.noise import Noise
from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.report.summary import timeline_of
from controlplane.simulation.switches import Switches
from controlplane.simulation.workloads.base import Workload
from controlplane.simulation.world.nodes import lose_node, restore_node
from controlplane.simulation.world.outcome import Outcome
from controlplane.simulation.world.run import Simulation, simulate
from policies.baselines.fifo import Fifo
from policies.contract.plan import Placement
from policies.contract.policy import Policy
from policies.contract.snapshot import (
    JobColumns,
    Jobs,
    JobView,
    RankPlacement,
    Source,
    Throughput,
)
from policies.host.registry import make
from tests.builders_colocation import a_wide_node
from tests.builders_policies import a_job, a_kind, a_node
from tests.builders_shared_worlds import (
    Script,
    a_pair_member,
    a_scenario_of_two,
    half_of,
    kinds_of_two,
    launches_of,
)

HALVES = {"a": half_of("gpu0"), "b": half_of("gpu0")}
KWH = 3.6e6


def run(
    policy: Policy, *jobs: JobView, scenario: Scenario | None = None, **switches: Any
) -> Simulation:
    return Simulation(
        scenario or a_scenario_of_two(), jobs, policy, switches=Switches(**switches)
    ).run()


def ends(simulation: Simulation) -> dict[str, float | None]:
    return {job.view.id: job.completed_s for job in simulation.state.jobs.values()}


def outcome_under(
    policy: Policy, scenario: Scenario, jobs: list[JobView], **switches: Any
) -> Outcome:
    workload = Workload(
        "test", Jobs(JobColumns.of(sorted(jobs, key=lambda j: j.arrival_s))), scenario.kinds
    )
    return simulate(
        scenario, workload, policy, name="p", seed=scenario.seed, switches=Switches(**switches)
    )


def test_two_jobs_run_at_the_rates_of_their_pair_and_who_is_left_at_its_own() -> None:
    found = ends(run(Script(HALVES), a_pair_member("a"), a_pair_member("b", 40.0)))
    assert found == {"a": 125.0, "b": 50.0}, "a: 50 s at 0.5, then 75 steps at 1"


def test_a_job_is_slower_from_the_moment_its_neighbour_comes() -> None:
    found = ends(run(Script(HALVES), a_pair_member("a"), a_pair_member("b", 40.0, arrival_s=20.0)))
    assert found == {"a": 125.0, "b": 70.0}, "a: 20 s at 1, 50 s at 0.5, then 55 steps at 1"


def test_a_job_is_faster_only_once_its_pre_empted_neighbour_has_stopped() -> None:
    script = Script(HALVES, absent={"b": (30.0, 119.0)})
    scenario = a_scenario_of_two(round_s=30.0, stop_s=10.0, restart_cost_s=5.0)
    simulation = run(script, a_pair_member("a"), a_pair_member("b", 40.0), scenario=scenario)
    of_b = [
        (n.start_s, n.end_s, n.start_steps, n.end_steps)
        for n in launches_of(simulation)
        if n.job == "b"
    ]
    assert of_b[0] == (0.0, 40.0, 0, 24), "none of its steps are done after the wish at 30"
    assert ends(simulation)["a"] == 120.0, "40 s at 0.5, then 80 steps at 1"
    assert of_b[1:] == [(120.0, 141.0, 24, 40)], "a restart of 5 s, then 16 steps alone"


def test_a_launch_slows_its_neighbour_before_its_own_first_step() -> None:
    scenario = a_scenario_of_two(launch_s=10.0)
    found = ends(
        run(
            Script(HALVES),
            a_pair_member("a"),
            a_pair_member("b", 40.0, arrival_s=20.0),
            scenario=scenario,
        )
    )
    assert found["b"] == 80.0, "10 s to its first step, then 40 at 0.8"
    assert found["a"] == 140.0, (
        "10 s to its first step, 10 steps by 20, 30 more until 80, then 60 at 1"
    )


def test_a_neighbour_that_comes_before_the_first_step_changes_the_speed_not_the_launch() -> None:
    scenario = a_scenario_of_two(launch_s=10.0)
    found = ends(
        run(
            Script(HALVES),
            a_pair_member("a", 30.0),
            a_pair_member("b", 200.0, arrival_s=5.0),
            scenario=scenario,
        )
    )
    assert found["a"] == 70.0, "10 s to its first step, then 30 at 0.5"


def test_a_gang_goes_on_as_its_slowest_process_does() -> None:
    scenario = a_scenario_of_two([a_wide_node(gpus=2)])
    gang = a_pair_member("a", 180.0, gpus_min=2, gpus_max=2)
    seats = {"a": half_of("gpu0", "gpu1"), "b": half_of("gpu0")}
    found = ends(run(Script(seats), gang, a_pair_member("b", 40.0), scenario=scenario))
    assert found["b"] == 50.0
    assert found["a"] == pytest.approx(125.0), "50 s at half of 1.8, then 135 steps at 1.8"


def test_two_gangs_on_the_same_devices_keep_what_their_kinds_keep_of_one_gpu() -> None:
    scenario = a_scenario_of_two([a_wide_node(gpus=2)])
    jobs = [
        a_pair_member(name, steps, gpus_min=2, gpus_max=2)
        for name, steps in (("a", 180.0), ("b", 72.0))
    ]
    found = ends(
        run(Script({name: half_of("gpu0", "gpu1") for name in "ab"}), *jobs, scenario=scenario)
    )
    assert found == {"a": pytest.approx(125.0), "b": pytest.approx(50.0)}


def test_two_that_do_not_fit_together_are_not_launched_together() -> None:
    scenario = a_scenario_of_two(kinds=kinds_of_two(0.0, 0.0))
    simulation = run(
        Script(HALVES), a_pair_member("a"), a_pair_member("b", 40.0), scenario=scenario
    )
    assert ends(simulation) == {"a": 100.0, "b": 140.0}
    (refused,) = simulation.rounds[0].applied.rejected
    assert (refused.key[0], refused.code) == ("b", "stale")


def test_who_waits_for_an_unfit_neighbour_to_stop_is_put_off_and_launched_at_its_end() -> None:
    scenario = a_scenario_of_two(kinds=kinds_of_two(0.0, 0.0), round_s=30.0, stop_s=10.0)
    script = Script(HALVES, absent={"a": (30.0, 79.0), "b": (0.0, 30.0)})
    simulation = run(script, a_pair_member("a"), a_pair_member("b", 40.0), scenario=scenario)
    assert [(n.job, n.start_s) for n in launches_of(simulation)] == [
        ("a", 0.0),
        ("a", 80.0),
        ("b", 40.0),
    ]


def test_a_share_of_a_device_waits_until_nobody_has_it_whole() -> None:
    whole = {**HALVES, "a": half_of("gpu0", share=1.0)}
    scenario = a_scenario_of_two(stop_s=10.0, round_s=30.0)
    script = Script(whole, absent={"a": (30.0, 500.0), "b": (0.0, 30.0)})
    simulation = run(script, a_pair_member("a"), a_pair_member("b", 40.0), scenario=scenario)
    assert [n.start_s for n in launches_of(simulation) if n.job == "b"] == [40.0]


def test_three_on_a_device_lose_what_each_of_the_others_takes() -> None:
    device = a_wide_node().devices[0]
    scenario = a_scenario_of_two([replace(a_wide_node(), devices=(replace(device, slots=3),))])
    thirds = {name: half_of("gpu0", share=0.25) for name in ("a", "b1", "b2")}
    kinds = kinds_of_two()
    same = replace(
        kinds[1],
        pairs=(replace(kinds[0].pairs[0], other="b", steps_per_s=0.9, other_steps_per_s=0.9),),
    )
    jobs = [a_pair_member("a", 50.0), a_pair_member("b1", 72.0), a_pair_member("b2", 72.0)]
    found = ends(run(Script(thirds), *jobs, scenario=replace(scenario, kinds=(kinds[0], same))))
    assert found == {
        "a": pytest.approx(125.0),
        "b1": pytest.approx(100.0),
        "b2": pytest.approx(100.0),
    }


@pytest.mark.parametrize(
    ("lost_s", "steps"), [(42.0, 32), (39.0, 30), (38.0, 30), (24.0, 20), (9.0, 0)]
)
def test_checkpoints_remember_what_was_done_at_the_speed_of_their_time(
    lost_s: float, steps: int
) -> None:
    arrives_s = 38.0 if lost_s < 40.0 else 25.0
    jobs = [a_pair_member("a"), a_pair_member("b", 400.0, arrival_s=arrives_s)]
    simulation = Simulation(
        a_scenario_of_two(), jobs, Script(HALVES), switches=Switches(checkpoint_every_s=10.0)
    )
    simulation.engine.at(lost_s, lambda: lose_node(simulation.state, "n1"))
    simulation.engine.at(lost_s + 1.0, lambda: restore_node(simulation.state, "n1"))
    first = next(n for n in launches_of(simulation.run()) if n.job == "a")
    assert (first.end_s, first.end_steps) == (lost_s, steps)


def test_a_lost_node_loses_both_of_its_jobs() -> None:
    simulation = Simulation(
        a_scenario_of_two(), [a_pair_member("a"), a_pair_member("b")], Script(HALVES)
    )
    simulation.engine.at(10.0, lambda: lose_node(simulation.state, "n1"))
    simulation.engine.at(20.0, lambda: restore_node(simulation.state, "n1"))
    assert simulation.run().state.table.failed.tolist() == [1, 1]
    assert all(job.completed_s is not None for job in simulation.state.jobs.values())


def test_a_launch_fails_at_its_part_of_the_work_however_fast_it_gets_there() -> None:
    switches = Switches(job_failure_probability=0.9, checkpoint_every_s=0.0)
    seed = next(s for s in range(100) if _fails_late(Noise(s, switches)))
    simulation = Simulation(
        a_scenario_of_two(seed=seed),
        [a_pair_member("a"), a_pair_member("b", 40.0)],
        Script(HALVES),
        switches=switches,
    )
    simulation.engine.run(until_s=200.0)
    part = simulation.state.noise.fails_after("a", 1)
    assert part is not None
    first = next(n for n in launches_of(simulation) if n.job == "a")
    assert first.end_s == pytest.approx(50.0 + part * 100.0 - 25.0), (
        "25 steps by the end of b at 50, the rest at 1"
    )


def _fails_late(noise: Noise) -> bool:
    """Job a's first launch fails after b's, which never does, has ended."""
    part = noise.fails_after("a", 1)
    return part is not None and part > 0.5 and noise.fails_after("b", 1) is None


def test_a_launch_keeps_its_own_noise_beside_a_neighbour() -> None:
    switches = Switches(run_time_noise=0.3)
    simulation = run(
        Script(HALVES), a_pair_member("a"), a_pair_member("b", 40.0), run_time_noise=0.3
    )
    a, b = (Noise(1, switches).speed(job, 0) for job in "ab")
    left_s = 40.0 / (0.8 * b)
    assert ends(simulation) == {
        "b": pytest.approx(left_s),
        "a": pytest.approx(left_s + (100.0 - 0.5 * a * left_s) / a),
    }


def test_a_shared_device_draws_its_watts_once_and_its_holders_halve_them() -> None:
    jobs = [a_pair_member("a"), a_pair_member("b", 40.0)]
    simulation = run(Script(HALVES), *jobs)
    outcome = simulation.outcome("p", "w")
    watts = a_wide_node().power_w[1]
    assert outcome.energy_kwh == pytest.approx(watts * 125.0 / KWH)
    assert outcome.job_kwh.tolist() == pytest.approx(
        [watts * (25.0 + 75.0) / KWH, watts * 25.0 / KWH]
    )
    assert outcome.job_cost.sum() == pytest.approx(outcome.energy_cost)
    assert outcome.gpu_s.tolist() == [62.5, 25.0]


def test_a_node_is_divided_by_the_gpus_held_there() -> None:
    scenario = a_scenario_of_two([a_wide_node(gpus=2)])
    seats = {"a1": half_of("gpu0"), "b": half_of("gpu0"), "a2": half_of("gpu1", share=1.0)}
    jobs = [a_pair_member("a1", 20.0), a_pair_member("b", 32.0), a_pair_member("a2", 40.0)]
    outcome = run(Script(seats), *jobs, scenario=scenario).outcome("p", "w")
    watts = a_wide_node(gpus=2).power_w[2]
    assert outcome.job_kwh.tolist() == pytest.approx(
        [watts * 40.0 * part / KWH for part in (0.25, 0.25, 0.5)]
    )
    assert outcome.energy_kwh == pytest.approx(watts * 40.0 / KWH)


def test_a_shared_gpu_is_in_use_once_and_drawn_on_two_lanes() -> None:
    simulation = run(Script(HALVES), a_pair_member("a"), a_pair_member("b", 40.0))
    outcome = simulation.outcome("p", "w")
    assert (outcome.utilisation.time_s.tolist(), outcome.utilisation.gpus_in_use.tolist()) == (
        [0.0, 125.0],
        [1, 0],
    )
    timeline = timeline_of(outcome)
    assert timeline.lanes == ("n1 gpu0", "n1 gpu0 (2)")
    assert {(lane, job) for lane, job, _, _ in timeline.stays} == {(0, "a"), (1, "b")}


def test_jobs_that_sit_together_from_the_start_go_on_together() -> None:
    simulation = Simulation(
        a_scenario_of_two(),
        [a_pair_member("a"), a_pair_member("b", 40.0)],
        Script(HALVES),
        seats=(Placement("a", HALVES["a"]), Placement("b", HALVES["b"])),
    )
    assert ends(simulation.run()) == {"a": 125.0, "b": 50.0}


def test_clusters_with_room_for_two_show_everything_and_hold_every_round() -> None:
    jobs = [a_pair_member("a"), a_pair_member("b", 40.0)]
    outcome = outcome_under(Fifo(), a_scenario_of_two(), jobs)
    assert outcome.rounds_skipped == 0
    assert outcome.completion_s.tolist() == [100.0, 140.0]


def test_two_processes_of_one_job_never_meet() -> None:
    """A gang on two devices has itself for no neighbour."""
    scenario = a_scenario_of_two([a_wide_node(gpus=2)])
    job = a_pair_member("a", 180.0, gpus_min=2, gpus_max=2)
    seats = {"a": (RankPlacement("n1", ("gpu0",), 0.5), RankPlacement("n1", ("gpu1",), 0.5))}
    assert ends(run(Script(seats), job, scenario=scenario)) == {"a": 100.0}


def test_fairness_with_pairs_completes_jobs_no_later_on_average_where_pairs_help() -> None:
    """Six jobs on two GPUs, of kinds that keep three quarters of their speed beside each other."""
    scenario = a_scenario_of_two([a_wide_node(gpus=2)], kinds_of_two(0.75, 0.75), round_s=30.0)
    jobs = [
        a_pair_member(f"{'ab'[i % 2]}{i}", 300.0 + 60.0 * i, arrival_s=20.0 * i) for i in range(6)
    ]
    shared, alone = (
        outcome_under(make("max_min_fairness", {"form": form}), scenario, jobs)
        for form in ("sharing", "aware")
    )
    assert len(set(zip(shared.stays.start_s.tolist(), shared.stays.devices, strict=True))) < len(
        shared.stays
    ), "some do share"
    assert shared.jct_s.mean() < alone.jct_s.mean()
    assert shared.makespan_s < alone.makespan_s


@pytest.mark.parametrize("slow_first", [False, True])
def test_a_gang_of_two_types_runs_as_fast_as_its_slowest_worker(slow_first: bool) -> None:
    known = (("V100", 18.0), ("T4", 1.8))
    kind = a_kind("m", {})
    rates = [Throughput(t, 2, rate, Source.MEASURED, spread=True) for t, rate in known]
    kind = replace(kind, throughputs=tuple(rates))
    nodes = (a_node("fast", "V100", 1), a_node("slow", "T4", 1))
    seats = (RankPlacement("fast", ("gpu0",)), RankPlacement("slow", ("gpu0",)))
    ranks = seats[::-1] if slow_first else seats
    gang = a_job(
        "a", "m", remaining_steps=180.0, total_steps=180.0, gpus_min=2, gpus_max=2, may_mix=True
    )
    scenario = a_scenario_of_two(nodes, (kind,))
    assert ends(run(Script({"a": ranks}), gang, scenario=scenario)) == {"a": 100.0}
