"""Queues and sums of throughputs as programs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.gavel.allocation.problem import AllocationProblem
from policies.gavel.base import agnostic
from policies.gavel.solvers.totals import first_in_first_out, shortest_job_first, total_throughput
from tests import textbook_shares as textbook
from tests.builders_shares import T0_T1, a_problem, jobs_of, problems

relaxed = settings(max_examples=40, deadline=None)


def queue_value(problem: AllocationProblem, place: np.ndarray) -> list[float]:
    """(M - place) / throughput(m, X_fastest) of each class, 0 for jobs that can run nowhere."""
    fastest = problem.fastest_rates
    return [
        float((problem.count.sum() - p) / f) if f > 0.0 else 0.0
        for p, f in zip(place, fastest, strict=True)
    ]


def test_the_sum_of_throughputs_puts_jobs_where_they_lose_least() -> None:
    problem = a_problem(T0_T1, gpus=[1, 1, 1])
    shares = total_throughput(problem)
    assert shares.objective == pytest.approx(1.0 + 2.0 / 3.0)
    assert shares.throughput(problem) == pytest.approx([2.0, 2.0])


def test_the_first_of_a_queue_has_the_fastest_gpu() -> None:
    problem = a_problem([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0]], gpus=[1, 1])
    shares = first_in_first_out(problem, np.array([1, 0, 2]))
    assert shares.alone == pytest.approx(np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]))
    assert shares.objective == pytest.approx(3.0 + 2.0 * 0.5)


def test_the_shortest_job_is_first_even_where_another_brings_more_for_each_gpu() -> None:
    """The gang of two ends first; in a plain queue the single job behind it brings more for its GPU
    (2 against 3 / 2).
    """
    problem = a_problem([[1.0]] * 3, gpus=[2], scale=[2, 1, 1], count=[1, 1, 1])
    steps = np.array([10.0, 20.0, 30.0])
    assert first_in_first_out(problem, np.array([0, 1, 2])).alone.ravel() == pytest.approx(
        [0.5, 1.0, 0.0]
    )
    assert shortest_job_first(problem, steps).alone.ravel() == pytest.approx([1.0, 0.0, 0.0])


def test_jobs_follow_in_the_order_in_which_they_could_end() -> None:
    problem = a_problem([[1.0], [10.0], [1.0]], gpus=[2])
    shares = shortest_job_first(problem, np.array([60.0, 500.0, 40.0]))
    assert shares.alone.ravel() == pytest.approx([0.0, 1.0, 1.0])


def test_a_job_that_can_run_nowhere_is_not_the_shortest() -> None:
    problem = a_problem([[0.0], [1.0]], gpus=[1])
    assert shortest_job_first(problem, np.array([1.0, 5.0])).alone.ravel().tolist() == [0.0, 1.0]


@pytest.mark.parametrize("jobs", [[], [[0.0]]])
def test_without_jobs_that_can_run_queues_are_empty(jobs: list[list[float]]) -> None:
    problem = a_problem(jobs, gpus=[1])
    for shares in (
        total_throughput(problem),
        first_in_first_out(problem, np.arange(len(jobs))),
        shortest_job_first(problem, np.ones(len(jobs))),
    ):
        assert (shares.alone.sum(), shares.objective) == (0.0, 0.0)


@relaxed
@given(problems())
def test_the_sum_of_throughputs_is_the_textbooks(problem: AllocationProblem) -> None:
    shares = total_throughput(problem)
    value = [1.0 / f if f > 0.0 else 0.0 for f in problem.fastest_rates]
    assert shares.objective == pytest.approx(
        textbook.weighted_sum(problem, value), rel=1e-6, abs=1e-9
    )
    assert textbook.excess(problem, shares) <= 1e-6
    assert shares.throughput(problem) * problem.count @ value == pytest.approx(
        shares.objective, rel=1e-6, abs=1e-9
    )


@relaxed
@given(problems(counts=1), st.permutations(range(4)))
def test_a_queues_optimum_is_the_textbooks(problem: AllocationProblem, order: list[int]) -> None:
    place = np.argsort(np.argsort(order[: len(problem.count)]))
    shares = first_in_first_out(problem, place)
    expected = textbook.weighted_sum(problem, queue_value(problem, place))
    assert shares.objective == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert textbook.excess(problem, shares) <= 1e-6


@relaxed
@given(problems(counts=1), st.lists(st.sampled_from([5.0, 60.0, 700.0]), min_size=4, max_size=4))
def test_the_shortest_job_is_as_fast_as_if_it_were_alone(
    problem: AllocationProblem, steps: list[float]
) -> None:
    left = np.array(steps[: len(problem.count)])
    runs = np.flatnonzero(problem.fastest_rates > 0.0)
    shares = shortest_job_first(problem, left)
    assert textbook.excess(problem, shares) <= 1e-6
    if len(runs):
        first = int(runs[np.argmin(left[runs] / problem.fastest_rates[runs])])
        book = textbook.Textbook(problem)
        assert shares.throughput(problem)[first] == pytest.approx(
            book.best(book.throughput[first]), rel=1e-6
        )


@relaxed
@given(problems())
def test_classes_have_the_sum_of_their_jobs_one_by_one(problem: AllocationProblem) -> None:
    assert total_throughput(problem).objective == pytest.approx(
        total_throughput(jobs_of(problem)).objective, rel=1e-6, abs=1e-9
    )


@relaxed
@given(problems())
def test_knowing_the_types_brings_no_less_in_all(problem: AllocationProblem) -> None:
    blind = agnostic(total_throughput, problem).throughput(problem) * problem.count
    value = np.array([1.0 / f if f > 0.0 else 0.0 for f in problem.fastest_rates])
    assert total_throughput(problem).objective >= blind @ value - 1e-6
