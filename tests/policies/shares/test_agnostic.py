"""The form that sees no difference between GPUs: its pools, and that what fits them fits the
types.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from policies.gavel.agnostic import agnostic, pooled, spread
from policies.gavel.division.division import Division
from policies.gavel.solvers.fairness import fairness
from policies.gavel.solvers.finish_time import isolated_rates
from policies.gavel.solvers.program import time_of
from policies.gavel.solvers.throughput import total_throughput
from policies.gavel.solvers.water_filling import fair_shares
from tests import textbook_shares as textbook
from tests.builders_shares import T0_T1, a_division, divisions

relaxed = settings(max_examples=60, deadline=None)


def test_time_is_spread_over_types_as_their_gpus() -> None:
    division = a_division(T0_T1, gpus=[1, 2, 3])
    shares = agnostic(fairness, division)
    assert shares.alone == pytest.approx(np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]) / 6.0)


def test_what_a_job_cannot_use_it_is_not_given() -> None:
    division = a_division([[2.0, 1.0, 0.5], [3.0, 0.0, 1.0]], gpus=[1, 1, 1])
    shares = agnostic(fairness, division)
    assert shares.alone == pytest.approx(np.array([[1 / 3, 1 / 3, 1 / 3], [0.5, 0.0, 0.5]]))


def test_jobs_of_one_type_and_jobs_of_all_do_not_oversubscribe_it() -> None:
    division = a_division([[1.0, 0.0], [1.0, 1.0]], gpus=[1, 1], count=[2, 2])
    shares = agnostic(fairness, division)
    assert textbook.excess(division, shares) <= 1e-9
    assert shares.objective == pytest.approx(1 / 3)
    assert shares.alone == pytest.approx(np.array([[2 / 3, 0.0], [1 / 3, 1 / 3]]))


def test_speed_does_not_matter_to_who_gets_what() -> None:
    slow, fast = (
        a_division([[1.0, 1.0], [1.0, 1.0]], gpus=[1, 0]),
        a_division([[9.0, 2.0], [1.0, 0.5]], gpus=[1, 0]),
    )
    assert agnostic(fairness, slow).alone == pytest.approx(agnostic(fairness, fast).alone)


def test_a_pair_runs_in_the_pool_of_the_types_on_which_both_do() -> None:
    division = a_division(
        [[1.0, 1.0], [1.0, 1.0]], gpus=[1, 1], pairs={(0, 1): [(0.9, 0.9), (0.0, 0.0)]}
    )
    shares = agnostic(total_throughput, division)
    assert shares.paired[:, 1].sum() == 0.0
    assert textbook.excess(division, shares) <= 1e-9


def test_a_job_runs_on_one_node_where_it_can_and_else_over_several() -> None:
    division = a_division([[2.0, 1.0], [0.0, 1.0]], gpus=[2], spread=[0])
    shares = agnostic(fairness, division)
    assert shares.alone == pytest.approx(np.array([[1.0, 0.0], [0.0, 1.0]]))


def test_isolation_means_the_same_to_pools() -> None:
    division = a_division([[2.0, 1.0, 0.5], [3.0, 0.0, 1.0]], gpus=[4, 2, 1], scale=[2, 1])
    assert isolated_rates(pooled(division)) == pytest.approx(isolated_rates(division))


def test_what_a_policy_adds_to_its_shares_stays() -> None:
    division = a_division([[1.0, 2.0]] * 4, gpus=[2, 2], weight=[3.0, 1.0, 1.0, 1.0])
    shares = agnostic(fair_shares, division)
    assert shares.rounds >= 2
    assert shares.alone == pytest.approx(np.full((4, 2), 0.5))


@relaxed
@given(divisions())
def test_shares_of_pools_keep_the_limits_of_types_and_jobs(division: Division) -> None:
    shares = agnostic(fairness, division)
    assert textbook.excess(division, shares) <= 1e-6


@relaxed
@given(divisions())
def test_a_throughput_in_a_pool_is_what_its_spread_time_brings(division: Division) -> None:
    pools = pooled(division)
    of_pools = total_throughput(pools)
    whole = spread(of_pools, pools)
    assert whole.throughput(division) == pytest.approx(
        of_pools.throughput(pools), rel=1e-9, abs=1e-9
    )
    assert time_of(whole, division) == pytest.approx(time_of(of_pools, pools), rel=1e-9, abs=1e-9)
