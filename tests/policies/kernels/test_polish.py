"""The local search for a lower f: never a higher one, nothing against the rules, and on small
clusters the proven least.
"""

from statistics import mean
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from experiments.bench.andreas.gap import JUDGE, instances
from policies.andreas.randomized_greedy import RandomizedGreedy
from policies.contract.snapshot import Snapshot
from policies.cost_model.kernels import NONE
from policies.cost_model.problem import Problem, build
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot
from tests.builders_snapshots import snapshots


def f_of(policy: RandomizedGreedy, problem: Problem) -> float:
    return policy.f.value(problem, policy.solve(problem))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(snapshot=snapshots())
def test_a_polished_solution_never_has_a_higher_f_and_more_steps_none_than_fewer(
    snapshot: Snapshot,
) -> None:
    problem = build(snapshot)
    before, *after = (
        f_of(RandomizedGreedy(iterations=0, polish=steps), problem) for steps in (0, 1, 60)
    )
    assert all(f <= before + 1e-9 * max(1.0, abs(before)) for f in after)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(snapshot=snapshots())
def test_no_node_is_given_more_than_it_has(snapshot: Snapshot) -> None:
    problem = build(snapshot)
    solution = RandomizedGreedy(iterations=0, polish=60).solve(problem)
    jobs = solution.placed
    assert np.isfinite(problem.run_s[jobs, solution.config[jobs]]).all()
    assert (
        problem.config_class[solution.config[jobs]] == problem.node_class[solution.node[jobs]]
    ).all()
    gpus = np.bincount(
        solution.node[jobs], problem.config_gpus[solution.config[jobs]], len(problem.nodes)
    )
    assert (gpus <= [len(d) for d in problem.devices]).all()
    for r in range(problem.demand.shape[1]):
        used = np.bincount(solution.node[jobs], problem.demand[jobs, r], len(problem.nodes))
        left = np.maximum(
            problem.capacity[:, r], 0.0
        )  # below nothing where jobs that stay ask for more than the node has
        assert (used <= left + 1e-6).all()


def test_small_clusters_come_within_a_percent_of_the_proven_least_f_on_the_mean() -> None:
    policy, found = RandomizedGreedy(polish=1000), []
    assert policy.f == JUDGE.f
    for snapshot in instances(20):
        problem = build(snapshot)
        least = JUDGE.f.value(problem, JUDGE.solve(problem).solution)
        found.append(100.0 * (f_of(policy, problem) / least - 1.0))
    assert min(found) > -1e-6, "nothing is below what is proven"
    assert mean(found) <= 1.0


def test_a_job_that_the_greedy_left_out_gets_a_place_where_another_takes_fewer_gpus() -> None:
    """The heavier job alone takes both GPUs, for it is late; together they cost less on one
    each.
    """
    kind = a_kind("k", {("V100", 1): 0.20, ("V100", 2): 0.21})
    late: dict[str, Any] = {"due_s": 0.0, "remaining_steps": 1000.0, "gpus_max": 2}
    jobs = [
        a_job("a", "k", tardiness_weight=0.002, **late),
        a_job("b", "k", tardiness_weight=0.001, **late),
    ]
    problem = build(a_snapshot([a_node("n1", "V100", 2)], jobs, [kind]))
    assert list(RandomizedGreedy(iterations=0).solve(problem).node) == [0, NONE]
    polished = RandomizedGreedy(iterations=0, polish=50).solve(problem)
    assert list(polished.node) == [0, 0]
    assert list(problem.config_gpus[polished.config]) == [1, 1]


@pytest.mark.parametrize("other", [{"mode": "coded"}, {"objective": "first_end"}])
def test_only_f_of_whole_runs_is_polished(other: dict[str, Any]) -> None:
    problem = build(next(instances(1)))
    plain, polished = (
        RandomizedGreedy(iterations=50, polish=steps, **other).solve(problem) for steps in (0, 50)
    )
    assert np.array_equal(plain.node, polished.node)
    assert np.array_equal(plain.config, polished.config)
