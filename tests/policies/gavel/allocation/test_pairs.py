"""Which pairs of classes are worth a row."""

import numpy as np

from policies.gavel.allocation.job_classes import with_pairs
from policies.gavel.solvers.fairness import fairness
from tests import textbook_shares as textbook
from tests.builders_shares import a_problem

ALL = np.ones(2, dtype=np.bool_)
KINDS = np.array([0, 1])
BESIDE = np.array([[[0.6, 0.4], [0.7, 0.9]], [[0.5, 0.2], [0.4, 0.4]]])
"""Of two kinds that make 1 step/s alone: the first beside itself and the second, the second beside
the first and itself.
"""


def test_pairs_that_do_more_together_than_by_turns_have_a_row() -> None:
    problem = with_pairs(a_problem([[1.0, 1.0]] * 2, gpus=[1, 1], count=[2, 2]), KINDS, BESIDE, ALL)
    assert problem.pairs.tolist() == [[0, 0], [0, 1]]
    assert problem.pair_rates.tolist() == [[[0.6, 0.6], [0.0, 0.0]], [[0.7, 0.5], [0.9, 0.2]]]


def test_what_counts_is_speed_relative_to_a_jobs_own_alone() -> None:
    slow = a_problem([[10.0, 10.0], [1.0, 1.0]], gpus=[1, 1])
    assert len(with_pairs(slow, KINDS, BESIDE, ALL).pairs) == 0
    fast = a_problem([[1.0, 1.0], [0.1, 0.1]], gpus=[1, 1])
    assert with_pairs(fast, KINDS, BESIDE, ALL).pairs.tolist() == [[0, 1]]


def test_one_job_of_a_kind_has_no_other_to_share_with() -> None:
    problem = with_pairs(a_problem([[1.0, 1.0]] * 2, gpus=[1, 1], count=[1, 5]), KINDS, BESIDE, ALL)
    assert problem.pairs.tolist() == [[0, 1]]


def test_only_the_willing_share() -> None:
    problem = with_pairs(
        a_problem([[1.0, 1.0]] * 2, gpus=[1, 1], count=[2, 2]),
        KINDS,
        BESIDE,
        np.array([True, False]),
    )
    assert problem.pairs.tolist() == [[0, 0]]


def test_gangs_share_only_with_gangs_of_their_size() -> None:
    problem = with_pairs(a_problem([[1.0, 1.0]] * 2, gpus=[2, 2], scale=[1, 2]), KINDS, BESIDE, ALL)
    assert len(problem.pairs) == 0


def test_where_a_job_cannot_run_alone_or_beside_it_runs_with_nobody() -> None:
    unable = with_pairs(a_problem([[1.0, 0.0], [1.0, 1.0]], gpus=[1, 1]), KINDS, BESIDE, ALL)
    assert unable.pair_rates.tolist() == [[[0.7, 0.5], [0.0, 0.0]]]
    unknown = np.where(BESIDE == 0.5, 0.0, BESIDE)
    assert with_pairs(a_problem([[0.5, 0.5]] * 2, gpus=[1, 1]), KINDS, unknown, ALL).pair_rates[
        0, 0
    ].tolist() == [0.0, 0.0]


def test_classes_of_one_kind_pair_across_and_within() -> None:
    problem = with_pairs(
        a_problem([[1.0, 1.0]] * 2, gpus=[1, 1], count=[2, 1]),
        np.zeros(2, dtype=np.int64),
        BESIDE,
        ALL,
    )
    assert problem.pairs.tolist() == [[0, 0], [0, 1]]


def test_each_job_keeps_so_many_partners_and_like_jobs_keep_different_ones() -> None:
    jobs = a_problem([[1.0, 1.0]] * 6, gpus=[1, 1])
    problem = with_pairs(
        jobs, np.zeros(6, dtype=np.int64), BESIDE, np.ones(6, dtype=np.bool_), partners=1
    )
    assert problem.pairs.tolist() == [[0, 1], [0, 5], [1, 2], [2, 3], [3, 4], [4, 5]]
    assert fairness(problem).objective > fairness(jobs).objective


def test_the_best_partners_are_kept() -> None:
    beside = np.full((3, 3, 1), 0.6)
    beside[0, 2], beside[2, 0] = 0.9, 0.9
    problem = with_pairs(
        a_problem([[1.0]] * 3, gpus=[1]),
        np.arange(3),
        beside,
        np.ones(3, dtype=np.bool_),
        partners=1,
    )
    assert problem.pairs.tolist() == [[0, 2], [1, 2]]


def test_a_cluster_with_pairs_from_a_table_keeps_its_limits_and_gains() -> None:
    plain = a_problem([[1.0, 1.0]] * 2, gpus=[1, 1], count=[3, 3])
    paired = with_pairs(plain, KINDS, BESIDE, ALL)
    assert textbook.excess(paired, fairness(paired)) <= 1e-9
    assert fairness(paired).objective > fairness(plain).objective
