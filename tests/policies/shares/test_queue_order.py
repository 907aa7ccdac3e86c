"""Queues and sums of throughputs as programs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.gavel.agnostic import agnostic
from policies.gavel.division.division import Division
from policies.gavel.solvers.queue_order import first_in_first_out, shortest_job_first
from policies.gavel.solvers.throughput import total_throughput
from tests import textbook_shares as textbook
from tests.builders_shares import T0_T1, a_division, divisions, jobs_of

relaxed = settings(max_examples=60, deadline=None)


def queue_value(division: Division, place: np.ndarray) -> list[float]:
    """(M - place) / throughput(m, X_fastest) of each class, 0 for jobs that can run nowhere."""
    fastest = division.fastest_rates
    return [
        float((division.count.sum() - p) / f) if f > 0.0 else 0.0
        for p, f in zip(place, fastest, strict=True)
    ]


def test_the_sum_of_throughputs_puts_jobs_where_they_lose_least() -> None:
    division = a_division(T0_T1, gpus=[1, 1, 1])
    shares = total_throughput(division)
    assert shares.objective == pytest.approx(1.0 + 2.0 / 3.0)
    assert shares.throughput(division) == pytest.approx([2.0, 2.0])


def test_the_first_of_a_queue_has_the_fastest_gpu() -> None:
    division = a_division([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0]], gpus=[1, 1])
    shares = first_in_first_out(division, np.array([1, 0, 2]))
    assert shares.alone == pytest.approx(np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]))
    assert shares.objective == pytest.approx(3.0 + 2.0 * 0.5)


def test_the_shortest_job_is_first_even_where_another_brings_more_for_each_gpu() -> None:
    """The gang of two ends first; in a plain queue the single job behind it brings more for its GPU
    (2 against 3 / 2).
    """
    division = a_division([[1.0]] * 3, gpus=[2], scale=[2, 1, 1], count=[1, 1, 1])
    steps = np.array([10.0, 20.0, 30.0])
    assert first_in_first_out(division, np.array([0, 1, 2])).alone.ravel() == pytest.approx(
        [0.5, 1.0, 0.0]
    )
    assert shortest_job_first(division, steps).alone.ravel() == pytest.approx([1.0, 0.0, 0.0])


def test_jobs_follow_in_the_order_in_which_they_could_end() -> None:
    division = a_division([[1.0], [10.0], [1.0]], gpus=[2])
    shares = shortest_job_first(division, np.array([60.0, 500.0, 40.0]))
    assert shares.alone.ravel() == pytest.approx([0.0, 1.0, 1.0])


def test_a_job_that_can_run_nowhere_is_not_the_shortest() -> None:
    division = a_division([[0.0], [1.0]], gpus=[1])
    assert shortest_job_first(division, np.array([1.0, 5.0])).alone.ravel().tolist() == [0.0, 1.0]


@pytest.mark.parametrize("jobs", [[], [[0.0]]])
def test_without_jobs_that_can_run_queues_are_empty(jobs: list[list[float]]) -> None:
    division = a_division(jobs, gpus=[1])
    for shares in (
        total_throughput(division),
        first_in_first_out(division, np.arange(len(jobs))),
        shortest_job_first(division, np.ones(len(jobs))),
    ):
        assert (shares.alone.sum(), shares.objective) == (0.0, 0.0)


@relaxed
@given(divisions())
def test_the_sum_of_throughputs_is_the_textbooks(division: Division) -> None:
    shares = total_throughput(division)
    value = [1.0 / f if f > 0.0 else 0.0 for f in division.fastest_rates]
    assert shares.objective == pytest.approx(
        textbook.weighted_sum(division, value), rel=1e-6, abs=1e-9
    )
    assert textbook.excess(division, shares) <= 1e-6
    assert shares.throughput(division) * division.count @ value == pytest.approx(
        shares.objective, rel=1e-6, abs=1e-9
    )


@relaxed
@given(divisions(counts=1), st.permutations(range(4)))
def test_a_queues_optimum_is_the_textbooks(division: Division, order: list[int]) -> None:
    place = np.argsort(np.argsort(order[: len(division.count)]))
    shares = first_in_first_out(division, place)
    expected = textbook.weighted_sum(division, queue_value(division, place))
    assert shares.objective == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert textbook.excess(division, shares) <= 1e-6


@relaxed
@given(divisions(counts=1), st.lists(st.sampled_from([5.0, 60.0, 700.0]), min_size=4, max_size=4))
def test_the_shortest_job_is_as_fast_as_if_it_were_alone(
    division: Division, steps: list[float]
) -> None:
    left = np.array(steps[: len(division.count)])
    runs = np.flatnonzero(division.fastest_rates > 0.0)
    shares = shortest_job_first(division, left)
    assert textbook.excess(division, shares) <= 1e-6
    if len(runs):
        first = int(runs[np.argmin(left[runs] / division.fastest_rates[runs])])
        book = textbook.Textbook(division)
        assert shares.throughput(division)[first] == pytest.approx(
            book.best(book.throughput[first]), rel=1e-6
        )


@relaxed
@given(divisions())
def test_classes_have_the_sum_of_their_jobs_one_by_one(division: Division) -> None:
    assert total_throughput(division).objective == pytest.approx(
        total_throughput(jobs_of(division)).objective, rel=1e-6, abs=1e-9
    )


@relaxed
@given(divisions())
def test_knowing_the_types_brings_no_less_in_all(division: Division) -> None:
    blind = agnostic(total_throughput, division).throughput(division) * division.count
    value = np.array([1.0 / f if f > 0.0 else 0.0 for f in division.fastest_rates])
    assert total_throughput(division).objective >= blind @ value - 1e-6
