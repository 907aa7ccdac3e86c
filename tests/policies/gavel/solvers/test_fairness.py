"""Max-min fairness: exact values of small cases, the textbook's optimum, and the properties the
paper proves.
"""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings

from policies.gavel.allocation.problem import AllocationProblem, Shares
from policies.gavel.base import agnostic
from policies.gavel.solvers import program
from policies.gavel.solvers.fairness import fair_scaling, fairness
from tests import textbook_shares as textbook
from tests.builders_shares import T0_T1, a_problem, jobs_of, problems

relaxed = settings(max_examples=40, deadline=None)


def least(problem: AllocationProblem, shares: Shares) -> float:
    """The objective that these shares reach, worked out from them."""
    levels = fair_scaling(problem) * shares.throughput(problem) / problem.weight
    return float(levels[problem.fastest_rates > 0.0].min(initial=np.inf))


def equal_split(problem: AllocationProblem) -> Shares:
    """Each job has the same part of every GPU, and none more than all its time."""
    part = problem.gpus / problem.count.sum() / problem.scale[:, None]
    part /= np.maximum(part.sum(axis=1, keepdims=True), 1.0)
    return Shares(part * problem.count[:, None], np.zeros((0, len(problem.columns))), 0.0)


def test_one_two_three_gpus_are_shared_as_the_papers_program_does() -> None:
    problem = a_problem(T0_T1, gpus=[1, 2, 3])
    shares = fairness(problem)
    assert shares.objective == pytest.approx(1.5484, abs=5e-5)
    assert shares.alone == pytest.approx(
        np.array([[0.4194, 0.5806, 0.0], [0.5806, 0.4194, 0.0]]), abs=5e-5
    )


def test_one_gpu_of_each_type_gives_both_jobs_their_published_throughputs() -> None:
    problem = a_problem(T0_T1, gpus=[1, 1, 1])
    assert fairness(problem).throughput(problem) == pytest.approx([1.4737, 2.5263], abs=5e-5)


def test_three_jobs_of_the_papers_example_gain_a_tenth_over_an_isolated_split() -> None:
    problem = a_problem([[4.0, 1.0], [3.0, 1.0], [2.0, 1.0]], gpus=[1, 1])
    shares = fairness(problem)
    assert shares.alone == pytest.approx(
        np.array([[0.4545, 0.0], [0.4545, 0.0909], [0.0909, 0.9091]]), abs=5e-5
    )
    assert shares.objective / least(problem, equal_split(problem)) == pytest.approx(
        1.0909, abs=5e-5
    )


def test_a_weight_of_two_gives_twice_the_throughput() -> None:
    problem = a_problem([[1.0], [1.0]], gpus=[1], weight=[2.0, 1.0])
    assert fairness(problem).throughput(problem) == pytest.approx([2 / 3, 1 / 3])


def test_a_gang_of_two_counts_twice_and_so_gets_half_the_time() -> None:
    problem = a_problem([[1.0], [1.0]], gpus=[1], scale=[2, 1])
    assert fairness(problem).alone.ravel() == pytest.approx([0.25, 0.5])


def test_a_job_that_can_run_nowhere_gets_nothing_and_holds_nobody_back() -> None:
    problem = a_problem([[0.0, 0.0], [1.0, 2.0]], gpus=[1, 1])
    shares = fairness(problem)
    assert shares.objective == pytest.approx(2.0 / 1.5)
    assert shares.alone[0].sum() == 0.0


@pytest.mark.parametrize(
    "problem",
    [a_problem([[0.0]], gpus=[1]), a_problem([[1.0]], gpus=[0]), a_problem([], gpus=[1])],
)
def test_where_nobody_can_run_nobody_gets_anything(problem: AllocationProblem) -> None:
    shares = fairness(problem, fill=True)
    assert (shares.alone.sum(), shares.objective) == (0.0, 0.0)


def test_a_type_without_gpus_is_given_to_nobody() -> None:
    problem = a_problem([[5.0, 1.0]], gpus=[0, 1])
    assert fairness(problem).alone.tolist() == [[0.0, 1.0]]


def test_a_job_that_runs_only_over_several_nodes_still_counts() -> None:
    problem = a_problem([[0.0, 3.0], [2.0, 1.0]], gpus=[2], spread=[0])
    shares = fairness(problem)
    assert shares.alone[0] == pytest.approx([0.0, 1.0])
    assert shares.objective == pytest.approx(1.0)


def test_both_columns_of_a_type_share_its_gpus() -> None:
    problem = a_problem([[0.0, 3.0], [2.0, 1.0]], gpus=[1], spread=[0])
    shares = fairness(problem)
    assert shares.alone.sum() == pytest.approx(1.0)
    assert shares.alone[0, 1] == pytest.approx(0.5)


def test_a_pair_at_full_speed_needs_one_gpu_for_two_jobs() -> None:
    problem = a_problem([[1.0], [1.0]], gpus=[1], pairs={(0, 1): [(1.0, 1.0)]})
    shares = fairness(problem)
    assert shares.objective == pytest.approx(1.0)
    assert shares.paired.ravel() == pytest.approx([1.0])


def test_a_pair_within_a_class_takes_the_time_of_two_of_its_jobs() -> None:
    problem = a_problem([[1.0]], gpus=[3], count=[3], pairs={(0, 0): [(0.8, 0.8)]})
    shares = fairness(problem)
    assert shares.objective == pytest.approx(1.0)
    two = a_problem([[1.0]], gpus=[1], count=[3], pairs={(0, 0): [(0.8, 0.8)]})
    assert fairness(two).paired.sum() == pytest.approx(1.0)
    assert fairness(two).objective == pytest.approx(1.6 / 3)


def test_a_lone_job_does_not_share_with_itself() -> None:
    problem = a_problem([[1.0]], gpus=[1], count=[1], pairs={(0, 0): [(0.9, 0.9)]})
    shares = fairness(problem)
    assert shares.paired.sum() == 0.0
    assert shares.objective == pytest.approx(1.0)


def test_filling_gives_idle_gpus_to_whom_they_bring_most_and_takes_from_nobody() -> None:
    problem = a_problem([[1.0, 0.0], [1.0, 1.0]], gpus=[2, 1])
    bare, filled = fairness(problem), fairness(problem, fill=True)
    assert filled.objective == pytest.approx(bare.objective)
    assert least(problem, filled) == pytest.approx(bare.objective)
    assert filled.alone.sum() == pytest.approx(2.0)


def test_a_hundred_thousand_jobs_are_shared_as_exactly_as_ten() -> None:
    few = a_problem(T0_T1, gpus=[1, 1, 1], count=[6, 4])
    many = a_problem(T0_T1, gpus=[1, 1, 1], count=[60_000, 40_000])
    assert fairness(many).objective * 10_000 == pytest.approx(fairness(few).objective, rel=1e-6)


@relaxed
@given(problems())
def test_the_optimum_is_the_textbooks_and_its_shares_reach_it(problem: AllocationProblem) -> None:
    shares = fairness(problem)
    assert shares.objective == pytest.approx(textbook.fairness(problem), rel=1e-6, abs=1e-9)
    assert textbook.excess(problem, shares) <= 1e-6
    assert shares.objective == 0.0 or least(problem, shares) >= shares.objective * (1 - 1e-6)


@relaxed
@given(problems())
def test_classes_have_the_optimum_of_their_jobs_one_by_one(problem: AllocationProblem) -> None:
    assert fairness(problem).objective == pytest.approx(
        fairness(jobs_of(problem)).objective, rel=1e-6, abs=1e-9
    )


@relaxed
@given(problems(most=6))
def test_simplex_and_interior_point_agree(problem: AllocationProblem) -> None:
    simplex = fairness(problem, fill=True)
    with patch.object(program, "MANY_CLASSES", 0):
        interior = fairness(problem, fill=True)
    assert simplex.objective == pytest.approx(interior.objective, rel=1e-6, abs=1e-9)


@relaxed
@given(problems())
def test_filling_changes_no_optimum(problem: AllocationProblem) -> None:
    bare, filled = fairness(problem), fairness(problem, fill=True)
    assert filled.objective == bare.objective
    assert textbook.excess(problem, filled) <= 1e-6
    assert filled.objective == 0.0 or least(problem, filled) >= filled.objective * (1 - 1e-6)
    per = np.divide(
        1.0,
        problem.fastest_rates,
        out=np.zeros(len(problem.count)),
        where=problem.fastest_rates > 0.0,
    )
    per *= problem.count
    assert per @ filled.throughput(problem) >= per @ bare.throughput(problem) - 1e-6


@relaxed
@given(problems(pairing=False))
def test_nobody_is_worse_off_than_under_an_equal_split(problem: AllocationProblem) -> None:
    """Sharing incentive: of the objective, as the paper has it."""
    shares = fairness(problem)
    assert shares.objective == 0.0 or shares.objective >= least(problem, equal_split(problem)) * (
        1 - 1e-6
    )


@relaxed
@given(problems())
def test_knowing_the_types_is_never_worse(problem: AllocationProblem) -> None:
    blind = agnostic(fairness, problem)
    if (problem.fastest_rates > 0.0).any():
        assert fairness(problem).objective >= least(problem, blind) * (1 - 1e-6)


@relaxed
@given(problems(types=1))
def test_on_one_type_there_is_nothing_to_know(problem: AllocationProblem) -> None:
    assert fairness(problem).objective == pytest.approx(
        agnostic(fairness, problem).objective, rel=1e-6, abs=1e-9
    )


@relaxed
@given(problems())
def test_sharing_gpus_is_never_worse(problem: AllocationProblem) -> None:
    alone = a_problem(
        problem.rates.tolist(),
        problem.gpus.tolist(),
        count=problem.count.tolist(),
        scale=problem.scale.tolist(),
        weight=problem.weight.tolist(),
    )
    assert fairness(problem).objective >= fairness(alone).objective * (1 - 1e-6)
