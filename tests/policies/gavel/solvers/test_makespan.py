"""The shortest makespan by one program."""

from functools import partial
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.gavel.allocation.problem import AllocationProblem
from policies.gavel.base import agnostic
from policies.gavel.solvers.finish_time import makespan
from tests import textbook_shares as textbook
from tests.builders_shares import T0_T1, a_problem, jobs_of, problems

relaxed = settings(max_examples=40, deadline=None)
ends = st.lists(st.sampled_from([1.0, 10.0, 300.0, 12_345.0]), min_size=4, max_size=4)


def last_end(problem: AllocationProblem, steps: np.ndarray, throughput: np.ndarray) -> float:
    """When the last job that can run ends."""
    runs = problem.fastest_rates > 0.0
    return float((steps[runs] / throughput[runs]).max())


def test_300_and_500_steps_on_one_gpu_of_each_type_take_exactly_200_seconds() -> None:
    problem = a_problem(T0_T1, gpus=[1, 1, 1])
    shares = makespan(problem, np.array([300.0, 500.0]))
    assert shares.objective == pytest.approx(200.0, rel=1e-9)


def test_ten_like_jobs_on_two_gpus_take_five_turns() -> None:
    problem = a_problem([[2.0]], gpus=[2], count=[10])
    assert makespan(problem, np.array([100.0])).objective == pytest.approx(250.0)


def test_jobs_with_no_steps_left_hold_nobody_back() -> None:
    problem = a_problem([[1.0], [1.0]], gpus=[1])
    shares = makespan(problem, np.array([0.0, 50.0]), fill=False)
    assert shares.objective == pytest.approx(50.0)


def test_where_no_job_can_end_the_makespan_is_endless() -> None:
    assert makespan(a_problem([[0.0]], gpus=[1]), np.array([5.0])).objective == inf


def test_a_short_job_beside_a_very_long_one_still_gets_its_part() -> None:
    problem = a_problem([[1.0], [1.0]], gpus=[1])
    shares = makespan(problem, np.array([1.0, 1e6]), fill=False)
    assert shares.throughput(problem)[0] == pytest.approx(1.0 / (1e6 + 1.0))


@pytest.mark.parametrize("blind", [False, True])
def test_a_last_step_at_a_million_a_second_beside_a_billion_at_a_millionth_is_no_trouble(
    blind: bool,
) -> None:
    """So unlike are the times that the one's part of the other's is below what a solver takes as a
    coefficient.
    """
    problem = a_problem([[1e6, 1e6], [1e-6, 0.0]], gpus=[1, 1])
    steps = np.array([1.0, 1e9])
    shares = (
        agnostic(partial(makespan, steps=steps), problem) if blind else makespan(problem, steps)
    )
    assert shares.objective == pytest.approx(1e15, rel=1e-6)
    assert textbook.excess(problem, shares) <= 1e-6


def test_idle_gpus_go_to_jobs_that_would_end_in_time_anyway() -> None:
    problem = a_problem([[1.0], [1.0]], gpus=[2])
    steps = np.array([10.0, 100.0])
    assert makespan(problem, steps).alone.ravel() == pytest.approx([1.0, 1.0])


def test_idle_gpus_go_to_jobs_that_say_they_have_no_steps_left() -> None:
    problem = a_problem([[1.0], [1.0]], gpus=[2])
    assert makespan(problem, np.array([0.0, 50.0])).alone.ravel() == pytest.approx([1.0, 1.0])


@relaxed
@given(problems(), ends)
def test_the_makespan_is_the_textbooks_and_its_shares_reach_it(
    problem: AllocationProblem, left: list[float]
) -> None:
    steps = np.array(left[: len(problem.count)])
    shares = makespan(problem, steps)
    assert textbook.excess(problem, shares) <= 1e-6
    if shares.objective < inf:
        assert shares.objective == pytest.approx(textbook.makespan(problem, left), rel=1e-6)
        assert last_end(problem, steps, shares.throughput(problem)) <= shares.objective * (1 + 1e-6)


@relaxed
@given(problems(), ends)
def test_classes_have_the_makespan_of_their_jobs_one_by_one(
    problem: AllocationProblem, left: list[float]
) -> None:
    steps = np.array(left[: len(problem.count)])
    one_by_one = makespan(jobs_of(problem), np.repeat(steps, problem.count))
    assert makespan(problem, steps).objective == pytest.approx(one_by_one.objective, rel=1e-6)


@relaxed
@given(problems(), ends)
def test_knowing_the_types_is_never_slower(problem: AllocationProblem, left: list[float]) -> None:
    steps = np.array(left[: len(problem.count)])
    blind = agnostic(lambda d: makespan(d, steps), problem)
    assert makespan(problem, steps).objective <= blind.objective * (1 + 1e-6)
    if blind.objective < inf:
        assert last_end(problem, steps, blind.throughput(problem)) <= blind.objective * (1 + 1e-6)
