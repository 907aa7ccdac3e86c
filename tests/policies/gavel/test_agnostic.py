"""The form that sees no difference between GPUs: its pools, and that what fits them fits the
types.
"""

import numpy as np
import pytest
from hypothesis import given, settings

from policies.gavel.allocation.problem import AllocationProblem
from policies.gavel.base import agnostic, pooled, spread
from policies.gavel.solvers.fairness import fair_shares, fairness
from policies.gavel.solvers.finish_time import isolated_rates
from policies.gavel.solvers.program import time_of
from policies.gavel.solvers.totals import total_throughput
from tests import textbook_shares as textbook
from tests.builders_shares import T0_T1, a_problem, problems

relaxed = settings(max_examples=60, deadline=None)


def test_time_is_spread_over_types_as_their_gpus() -> None:
    problem = a_problem(T0_T1, gpus=[1, 2, 3])
    shares = agnostic(fairness, problem)
    assert shares.alone == pytest.approx(np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]) / 6.0)


def test_what_a_job_cannot_use_it_is_not_given() -> None:
    problem = a_problem([[2.0, 1.0, 0.5], [3.0, 0.0, 1.0]], gpus=[1, 1, 1])
    shares = agnostic(fairness, problem)
    assert shares.alone == pytest.approx(np.array([[1 / 3, 1 / 3, 1 / 3], [0.5, 0.0, 0.5]]))


def test_jobs_of_one_type_and_jobs_of_all_do_not_oversubscribe_it() -> None:
    problem = a_problem([[1.0, 0.0], [1.0, 1.0]], gpus=[1, 1], count=[2, 2])
    shares = agnostic(fairness, problem)
    assert textbook.excess(problem, shares) <= 1e-9
    assert shares.objective == pytest.approx(1 / 3)
    assert shares.alone == pytest.approx(np.array([[2 / 3, 0.0], [1 / 3, 1 / 3]]))


def test_speed_does_not_matter_to_who_gets_what() -> None:
    slow, fast = (
        a_problem([[1.0, 1.0], [1.0, 1.0]], gpus=[1, 0]),
        a_problem([[9.0, 2.0], [1.0, 0.5]], gpus=[1, 0]),
    )
    assert agnostic(fairness, slow).alone == pytest.approx(agnostic(fairness, fast).alone)


def test_a_pair_runs_in_the_pool_of_the_types_on_which_both_do() -> None:
    problem = a_problem(
        [[1.0, 1.0], [1.0, 1.0]], gpus=[1, 1], pairs={(0, 1): [(0.9, 0.9), (0.0, 0.0)]}
    )
    shares = agnostic(total_throughput, problem)
    assert shares.paired[:, 1].sum() == 0.0
    assert textbook.excess(problem, shares) <= 1e-9


def test_a_job_runs_on_one_node_where_it_can_and_else_over_several() -> None:
    problem = a_problem([[2.0, 1.0], [0.0, 1.0]], gpus=[2], spread=[0])
    shares = agnostic(fairness, problem)
    assert shares.alone == pytest.approx(np.array([[1.0, 0.0], [0.0, 1.0]]))


def test_isolation_means_the_same_to_pools() -> None:
    problem = a_problem([[2.0, 1.0, 0.5], [3.0, 0.0, 1.0]], gpus=[4, 2, 1], scale=[2, 1])
    assert isolated_rates(pooled(problem)) == pytest.approx(isolated_rates(problem))


def test_what_a_policy_adds_to_its_shares_stays() -> None:
    problem = a_problem([[1.0, 2.0]] * 4, gpus=[2, 2], weight=[3.0, 1.0, 1.0, 1.0])
    shares = agnostic(fair_shares, problem)
    assert shares.rounds >= 2
    assert shares.alone == pytest.approx(np.full((4, 2), 0.5))


@relaxed
@given(problems())
def test_shares_of_pools_keep_the_limits_of_types_and_jobs(problem: AllocationProblem) -> None:
    shares = agnostic(fairness, problem)
    assert textbook.excess(problem, shares) <= 1e-6


@relaxed
@given(problems())
def test_a_throughput_in_a_pool_is_what_its_spread_time_brings(problem: AllocationProblem) -> None:
    pools = pooled(problem)
    of_pools = total_throughput(pools)
    whole = spread(of_pools, pools)
    assert whole.throughput(problem) == pytest.approx(
        of_pools.throughput(pools), rel=1e-9, abs=1e-9
    )
    assert time_of(whole, problem) == pytest.approx(time_of(of_pools, pools), rel=1e-9, abs=1e-9)
