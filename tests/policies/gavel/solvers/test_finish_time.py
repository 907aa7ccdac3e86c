"""Finish-time fairness by Newton's method, against plain bisection."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.contract.policy import SolverFailedError
from policies.gavel.allocation.problem import AllocationProblem
from policies.gavel.base import agnostic
from policies.gavel.solvers import finish_time
from policies.gavel.solvers.finish_time import Times, finish_time_fairness, isolated_rates
from policies.gavel.solvers.program import Program
from tests import textbook_shares as textbook
from tests.builders_shares import T0_T1, a_problem, problems

relaxed = settings(max_examples=25, deadline=None)
steps_left = st.lists(st.sampled_from([1.0, 10.0, 300.0, 12_345.0]), min_size=4, max_size=4)
seconds = st.lists(st.sampled_from([0.0, 5.0, 100.0, 4_000.0]), min_size=4, max_size=4)


def times(
    problem: AllocationProblem, steps: list[float], elapsed: list[float], isolated: list[float]
) -> Times:
    n = len(problem.count)
    return Times(*(np.array(column[:n]) for column in (steps, elapsed, isolated)))


def rho(problem: AllocationProblem, given: Times, throughput: np.ndarray) -> float:
    """The highest rho among jobs that can run."""
    runs = (problem.fastest_rates > 0.0) & (given.steps > 0.0)
    whole = given.isolated_s[runs] + given.steps[runs] / isolated_rates(problem)[runs]
    return float(((given.elapsed_s[runs] + given.steps[runs] / throughput[runs]) / whole).max())


def test_new_jobs_end_as_much_sooner_than_in_isolation_as_their_least_gain() -> None:
    """With half of each GPU, but no more than all its time, a job has 3.5 / 3 and 2 steps/s, and
    the program 1.4737 and 2.5263.
    """
    problem = a_problem(T0_T1, gpus=[1, 1, 1])
    fresh = Times(np.array([300.0, 500.0]), np.zeros(2), np.zeros(2))
    shares = finish_time_fairness(problem, fresh)
    assert isolated_rates(problem) == pytest.approx([3.5 / 3, 2.0])
    assert shares.objective == pytest.approx(0.7916667, rel=1e-6)


def test_isolation_never_gives_a_job_more_than_all_its_time() -> None:
    problem = a_problem([[2.0, 1.0]], gpus=[8, 8], scale=[2])
    assert isolated_rates(problem) == pytest.approx([1.5])


def test_who_has_waited_longest_has_most_and_both_the_same_rho() -> None:
    """With x for the first, 1000 + 100 / x = 100 / (1 - x): x = 0.90990."""
    problem = a_problem([[1.0], [1.0]], gpus=[1])
    waited = Times(np.array([100.0, 100.0]), np.array([1000.0, 0.0]), np.array([1000.0, 1000.0]))
    shares = finish_time_fairness(problem, waited, fill=False)
    assert shares.alone.ravel() == pytest.approx([0.90990, 0.09010], abs=5e-6)


def test_a_job_that_is_late_beyond_repair_leaves_the_rest_a_full_cluster() -> None:
    """Its rho cannot fall under 1000, whatever it gets; what it does not need still goes to the
    other.
    """
    problem = a_problem(T0_T1, gpus=[1, 1, 1])
    late = Times(np.array([300.0, 0.5]), np.array([0.0, 1e6]), np.array([0.0, 1e3]))
    shares = finish_time_fairness(problem, late)
    assert shares.objective == pytest.approx(999.75, abs=0.01)
    assert shares.throughput(problem)[0] == pytest.approx(1.0, rel=1e-6)


def test_a_job_a_second_from_its_end_after_ten_days_does_not_upset_the_program() -> None:
    problem = a_problem([[10.0, 1.0], [10.0, 5.0], [3.0, 3.0]], gpus=[1, 1])
    old = Times(
        np.array([10.0, 1e5, 2e5]),
        np.array([864_000.0, 1000.0, 0.0]),
        np.array([400_000.0, 1000.0, 0.0]),
    )
    shares = finish_time_fairness(problem, old)
    expected = textbook.finish_time(
        problem, *(list(part) for part in (old.steps, old.elapsed_s, old.isolated_s))
    )
    assert shares.objective == pytest.approx(expected, rel=1e-6)


def test_jobs_that_have_ended_or_can_run_nowhere_do_not_count() -> None:
    problem = a_problem([[1.0], [1.0], [0.0]], gpus=[1])
    shares = finish_time_fairness(
        problem, Times(np.array([0.0, 50.0, 50.0]), np.full(3, 9.0), np.zeros(3)), fill=False
    )
    assert shares.throughput(problem)[1] == pytest.approx(1.0)
    assert (
        finish_time_fairness(problem, Times(np.zeros(3), np.zeros(3), np.zeros(3))).objective == 0.0
    )


def test_a_coarse_precision_is_kept() -> None:
    problem = a_problem([[4.0, 1.0], [3.0, 1.0], [2.0, 1.0]], gpus=[1, 1])
    given = Times(
        np.array([100.0, 900.0, 400.0]),
        np.array([40.0, 300.0, 90.0]),
        np.array([20.0, 150.0, 200.0]),
    )
    exact, coarse = (finish_time_fairness(problem, given, precision=p) for p in (1e-9, 1e-3))
    assert exact.objective * (1 - 1e-9) <= coarse.objective <= exact.objective * 1.001


def test_a_search_that_does_not_end_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish_time, "STEPS", 0)
    with pytest.raises(SolverFailedError, match="still between"):
        finish_time_fairness(
            a_problem([[1.0]], gpus=[1]), Times(np.ones(1), np.zeros(1), np.zeros(1))
        )


@relaxed
@given(problems(most=3, counts=2), steps_left, seconds, seconds)
def test_the_highest_rho_is_that_of_plain_bisection(
    problem: AllocationProblem, steps: list[float], elapsed: list[float], isolated: list[float]
) -> None:
    given = times(problem, steps, elapsed, isolated)
    shares = finish_time_fairness(problem, given)
    assert textbook.excess(problem, shares) <= 1e-6
    if (problem.fastest_rates > 0.0).any():
        assert shares.objective == pytest.approx(
            textbook.finish_time(problem, steps, elapsed, isolated), rel=3e-6
        )
        assert rho(problem, given, shares.throughput(problem)) <= shares.objective * (1 + 1e-6)


@relaxed
@given(problems(pairing=False), steps_left, seconds)
def test_nobody_ends_later_than_with_his_part_of_the_cluster(
    problem: AllocationProblem, steps: list[float], elapsed: list[float]
) -> None:
    """Sharing incentive: with the same time behind him and in isolation, a job's rho is at most
    1.
    """
    shares = finish_time_fairness(problem, times(problem, steps, elapsed, elapsed))
    assert shares.objective <= 1.0 + 1e-6


@relaxed
@given(problems(), steps_left, seconds, seconds)
def test_knowing_the_types_is_never_less_fair(
    problem: AllocationProblem, steps: list[float], elapsed: list[float], isolated: list[float]
) -> None:
    given = times(problem, steps, elapsed, isolated)
    blind = agnostic(lambda d: finish_time_fairness(d, given), problem)
    assert finish_time_fairness(problem, given).objective <= blind.objective * (1 + 1e-5)


@pytest.mark.parametrize("fill", [False, True])
def test_times_rounded_to_doubles_are_no_trouble_for_a_job_that_needs_next_to_none(
    fill: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A solver may miss a job's time by some 1e-13 of the wall clock: next to nothing, but not of
    6e-9.
    """
    problem = a_problem([[1.0], [1e6], [1.0]], gpus=[2])
    times = Times(np.array([1e3, 1e2, 1e6]), np.array([1e6, 10.0, 0.0]), np.array([1.0, 1e4, 1.0]))
    exact = finish_time_fairness(problem, times, fill=fill).objective
    monkeypatch.setattr(
        Program,
        "values",
        property(lambda p: np.maximum(np.array(p._solution.col_value) - 2e-13, 0.0)),
    )
    assert finish_time_fairness(problem, times, fill=fill).objective == pytest.approx(
        exact, rel=1e-6
    )


@pytest.mark.parametrize("knowing", [True, False])
def test_a_job_that_needs_less_time_than_a_solver_tells_from_none_still_has_it(
    knowing: bool,
) -> None:
    """The third job began long ago for what it has to do: rho is its, and the others need some
    1e-10 of their time for as much.
    """
    none = (0.0, 0.0)
    pairs = {
        (0, 2): [none, (8.30773624, 4.77660997)],
        (1, 2): [none, none],
        (2, 3): [none, (4.375, 3.82640232)],
    }
    problem = a_problem(
        [[0, 10], [1.5, 0], [0, 8.75], [0, 5.5]],
        gpus=[1, 4],
        pairs=pairs,
        count=[1, 3, 1, 1],
        scale=[1, 2, 1, 1],
    )
    times = Times(np.ones(4), np.array([4e3, 1.0, 1e4, 4e3]), np.array([0.0, 1e4, 0.0, 1e4]))
    shares = (
        finish_time_fairness(problem, times)
        if knowing
        else agnostic(lambda d: finish_time_fairness(d, times), problem)
    )
    assert shares.objective == pytest.approx(1e4 * isolated_rates(problem)[2], rel=1e-3)
