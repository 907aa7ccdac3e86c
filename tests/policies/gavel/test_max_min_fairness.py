"""Max-min fairness from the snapshot to the simulated cluster: what jobs are to have, and what they
get.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from controlplane.loop.changes import Migrate, Preempt
from controlplane.loop.rounds import RoundResult
from controlplane.simulation.world.nodes import drain_node, lose_node, restore_node
from controlplane.simulation.world.run import Simulation
from policies.contract import plan_json, snapshot_json
from policies.contract.plan import Plan
from policies.contract.policy import SolverFailedError
from policies.contract.snapshot import (
    JobView,
    KindView,
    NodeState,
    PairThroughput,
    Snapshot,
    Source,
    Throughput,
)
from policies.gavel.allocation.observe import Observed, observe
from policies.gavel.allocation.problem import Shares
from policies.gavel.max_min_fairness import MaxMinFairness
from policies.gavel.rounds.share_round import ShareRule, plan_of
from policies.gavel.solvers.fairness import fairness
from tests.builders_colocation import half
from tests.builders_gavel import FASTER, LONG, ROUND_S, SLOWER, cluster, steps_of, two_jobs
from tests.builders_gavel import simulated as simulated_with
from tests.builders_policies import a_device, a_job, a_kind, a_node, a_snapshot


def simulated(
    nodes: Any, kinds: list[KindView], jobs: list[JobView], policy: Any = None, **scenario: Any
) -> Simulation:
    return simulated_with(nodes, kinds, jobs, policy or MaxMinFairness(), **scenario)


def received(simulation: Simulation, job: str) -> dict[str, float]:
    """Device time by GPU type over the time that has gone by since the job came in."""
    row = simulation.state.table.row_of[job]
    snapshot = simulation.world.snapshot()
    elapsed_s = simulation.engine.now_s - float(
        simulation.state.table.columns.numbers["arrival_s"][row]
    )
    return {
        gpu_type: seconds / elapsed_s for gpu_type, seconds in snapshot.jobs.by_id(job).received_s
    }


# What jobs are to have


def test_unlike_jobs_have_their_time_where_it_counts_most_for_them() -> None:
    plan = MaxMinFairness()(two_jobs(1, 2, 3))
    assert plan.objective == pytest.approx(1.5484, abs=1e-4)
    assert plan.shares["j0"] == pytest.approx({"P100": 0.5806, "V100": 0.4194}, abs=1e-4)
    assert plan.shares["j1"] == pytest.approx({"P100": 0.4194, "V100": 0.5806}, abs=1e-4)


def test_both_jobs_gain_as_much_over_equal_time_on_one_gpu_of_each_type() -> None:
    problem = observe(two_jobs(1, 1, 1)).problem
    shares = fairness(problem)
    assert sorted(shares.throughput(problem)) == pytest.approx([1.4737, 2.5263], abs=1e-4)


def test_a_policy_that_takes_types_for_alike_is_no_better_than_one_that_knows_them() -> None:
    snapshot = two_jobs(1, 2, 3)
    problem = observe(snapshot).problem
    agnostic = MaxMinFairness(form="agnostic")(snapshot)
    speeds = {"j0": FASTER, "j1": SLOWER}
    per_equal = [
        sum(speeds[job][gpu_type, 1] * share for gpu_type, share in by_type.items())
        / problem.equal_rates[m]
        for m, (job, by_type) in enumerate(
            sorted(agnostic.shares.items(), key=lambda item: _class(problem, speeds[item[0]]))
        )
    ]
    assert min(per_equal) < fairness(problem).objective


def _class(problem: Any, speeds: dict[tuple[str, int], float]) -> int:
    row = [speeds[c.gpu_type, 1] for c in problem.columns]
    return int(problem.rates.tolist().index(row))


def test_shares_are_in_proportion_to_weights_unless_weights_are_not_to_count() -> None:
    jobs = [a_job("light"), a_job("heavy", weight=3.0)]
    snapshot = a_snapshot([a_node("n", "V100", 1)], jobs)
    assert MaxMinFairness()(snapshot).shares == {
        "light": {"V100": pytest.approx(0.25)},
        "heavy": {"V100": pytest.approx(0.75)},
    }
    assert MaxMinFairness(weighted=False)(snapshot).shares == {
        j: {"V100": pytest.approx(0.5)} for j in ("light", "heavy")
    }


def test_jobs_that_may_share_a_gpu_have_more_together() -> None:
    beside = PairThroughput("k", "V100", 0.8, 0.8, Source.MEASURED)
    nodes = [a_node("n", "V100", devices=(a_device(slots=2),))]
    jobs = [a_job(j, may_share=True) for j in "ab"]
    snapshot = a_snapshot(nodes, jobs, [a_kind("k", {("V100", 1): 1.0}, pairs=(beside,))])
    alone, shared = MaxMinFairness()(snapshot), MaxMinFairness(form="sharing")(snapshot)
    assert [alone.objective, shared.objective] == pytest.approx([0.5, 0.8])
    assert [(p.job, p.ranks[0].share) for p in shared.placements] == [("a", 0.5), ("b", 0.5)]


def test_two_that_are_together_though_it_does_not_pay_are_expected_to_be_as_slow_as_that() -> None:
    """Another policy, or an estimate, has put them together just now."""
    beside = PairThroughput("k", "V100", 0.4, 0.4, Source.MEASURED)
    nodes = [a_node("n", "V100", devices=(a_device(slots=2),))]
    jobs = [a_job(j, may_share=True, running=half("n", "gpu0", since_s=1000.0)) for j in "ab"]
    snapshot = a_snapshot(nodes, jobs, [a_kind("k", {("V100", 1): 1.0}, pairs=(beside,))])
    plan = MaxMinFairness(form="sharing")(snapshot)
    assert [(p.job, p.predicted_run_s) for p in plan.placements] == [
        ("a", 100.0 / 0.4),
        ("b", 100.0 / 0.4),
    ]


def test_a_program_without_a_solution_is_an_error() -> None:
    problem = observe(two_jobs(1, 1, 1)).problem
    with pytest.raises(SolverFailedError, match="a linear program of"):
        fairness(replace(problem, gpus=np.array([-1.0, 1.0, 1.0])))


# What they get


def test_time_received_comes_near_the_shares_over_many_rounds() -> None:
    """Of two like jobs one may be PATIENCE rounds ahead of the other: 5 of 240 from what each is to
    have.
    """
    jobs = [steps_of("j0", LONG, "a"), steps_of("j1", LONG, "b"), steps_of("j2", LONG, "b")]
    simulation = simulated(cluster(1, 1, 1), [a_kind("a", FASTER), a_kind("b", SLOWER)], jobs).run(
        ROUND_S * 240
    )
    shares = simulation.rounds[0].plan.shares
    for job, by_type in shares.items():
        found = received(simulation, job)
        for gpu_type in ("V100", "P100", "K80"):
            assert found.get(gpu_type, 0.0) == pytest.approx(
                by_type.get(gpu_type, 0.0), abs=0.04
            ), (job, gpu_type)


def test_gangs_and_single_jobs_get_no_less_than_their_shares_though_nodes_are_small() -> None:
    speeds = {("V100", g): float(g) for g in (1, 2, 4)}
    jobs = [steps_of(f"one{i}", LONG) for i in range(4)]
    jobs += [steps_of(f"two{i}", LONG, gpus_min=2, gpus_max=2) for i in range(2)]
    jobs += [steps_of("four", LONG, gpus_min=4, gpus_max=4)]
    nodes = (a_node("v", "V100", 4), a_node("w", "V100", 4))
    simulation = simulated(nodes, [a_kind("k", speeds)], jobs).run(ROUND_S * 60)
    for job, by_type in simulation.rounds[0].plan.shares.items():
        gpus = {"o": 1, "t": 2, "f": 4}[job[0]]
        assert received(simulation, job)["V100"] / gpus >= by_type["V100"] - 0.03, job


def test_equal_jobs_get_equal_time_though_others_come_and_go_in_every_round() -> None:
    long = [steps_of(f"long{i}", LONG, "a") for i in range(3)]
    short = [steps_of(f"short{i}", 200.0, "b", arrival_s=170.0 * i) for i in range(120)]
    kinds = [a_kind("a", {("V100", 1): 1.0}), a_kind("b", {("V100", 1): 1.0})]
    simulation = simulated((a_node("v", "V100", 2),), kinds, long + short).run(170.0 * 120)
    had = [received(simulation, job.id)["V100"] for job in long]
    assert max(had) - min(had) < 0.05


def test_a_job_that_goes_on_is_never_stopped() -> None:
    jobs = [steps_of(f"j{i}", 20 * ROUND_S, arrival_s=500.0 * i) for i in range(8)]
    nodes = (a_node("v", "V100", 8),)
    simulation = simulated(
        nodes,
        [a_kind("k", {("V100", 1): 1.0})],
        jobs,
        stop_s=7.0,
        launch_s=3.0,
        restart_cost_s=60.0,
    ).run()
    book = simulation.state.table
    assert (book.launched.tolist(), int(book.preempted.sum()), int(book.migrated.sum())) == (
        [1] * 8,
        0,
        0,
    )
    assert (book.completed_s - book.columns.numbers["arrival_s"]).tolist() == pytest.approx(
        [20 * ROUND_S + 3.0] * 8, abs=1.0
    )


def test_jobs_are_pre_empted_at_the_ends_of_turns_only() -> None:
    jobs = [steps_of(f"j{i}", 7 * ROUND_S, arrival_s=130.0 * i) for i in range(6)]
    simulation = simulated((a_node("v", "V100", 2),), [a_kind("k", {("V100", 1): 1.0})], jobs).run()
    stopped = 0
    for result in simulation.rounds:
        stops = [
            change for change in result.applied.changes if isinstance(change, Preempt | Migrate)
        ]
        stopped += len(stops)
        assert (
            not stops
            or result.snapshot.now_s >= result.snapshot.memory["round_end_s"] - 0.1 * ROUND_S
        )
    assert stopped > 0
    assert simulation.state.completed == 6


def test_shares_are_made_anew_when_jobs_come_and_go_and_not_in_between() -> None:
    made: list[float] = []

    def allocate(observed: Observed) -> Shares:
        made.append(observed.snapshot.now_s)
        return fairness(observed.problem)

    def policy(snapshot: Snapshot) -> Plan:
        return plan_of(snapshot, ShareRule("max_min_fairness", "test", allocate))

    jobs = [steps_of(f"j{i}", 3000.0, arrival_s=1000.0 * i) for i in range(3)]
    simulation = simulated(
        (a_node("v", "V100", 2),), [a_kind("k", {("V100", 1): 1.0})], jobs, policy
    ).run()
    ends = simulation.state.table.completed_s.tolist()
    assert made == pytest.approx(sorted({0.0, 1000.0, 2000.0, *ends} - {max(ends)}))
    assert simulation.round_count > 2 * len(made)


def test_a_gang_over_two_nodes_runs_as_fast_as_is_known_of_it_there() -> None:
    known = (Throughput("V100", 4, 2.0, Source.MEASURED, spread=True),)
    nodes = (a_node("v", "V100", 2), a_node("w", "V100", 2))
    jobs = [steps_of("gang", 5000.0, gpus_min=4, gpus_max=4)]
    simulation = simulated(
        nodes, [KindView("k", "k", known)], jobs, MaxMinFairness(spread=True)
    ).run()
    assert simulation.state.table.completed_s.tolist() == [2500.0]
    assert int(simulation.state.table.launched[0]) == 1


def test_any_round_can_be_decided_again_from_its_stored_snapshot() -> None:
    simulation = _eventful().run()
    decided = [r for r in simulation.rounds if r.carried is None]
    assert len(decided) > 20
    for result in decided:
        stored = snapshot_json.from_json(snapshot_json.to_json(result.snapshot))
        assert plan_json.digest(MaxMinFairness()(stored)) == plan_json.digest(result.plan)


def test_jobs_end_though_nodes_are_lost_drained_and_come_back() -> None:
    simulation = _eventful()
    state = simulation.state
    incidents: list[tuple[float, Callable[[], None]]] = [
        (1000.0, lambda: lose_node(state, "v")), (2500.0, lambda: drain_node(state, "p", 2600.0)),
        (4000.0, lambda: restore_node(state, "v")),
        (4100.0, lambda: restore_node(state, "p")),
    ]  # fmt: skip
    for at_s, incident in incidents:
        simulation.engine.at(at_s, incident)
    simulation.run()
    assert state.completed == len(state.table)
    assert all(
        _keeps_off(result, "v")
        for result in simulation.rounds
        if 1000.0 < result.snapshot.now_s < 4000.0
    )


def _keeps_off(result: RoundResult, node: str) -> bool:
    lost = result.snapshot.node_by_id[node].state is NodeState.LOST
    return not lost or all(seat.node != node for p in result.plan.placements for seat in p.ranks)


def _eventful() -> Simulation:
    jobs = [
        steps_of(
            f"j{i}", 600.0 + 350.0 * (i % 5), "ab"[i % 2], arrival_s=120.0 * i, weight=1.0 + i % 3
        )
        for i in range(12)
    ]
    kinds = [a_kind("a", FASTER), a_kind("b", SLOWER)]
    return simulated(cluster(1, 1, 2), kinds, jobs, stop_s=5.0, launch_s=2.0, restart_cost_s=10.0)
