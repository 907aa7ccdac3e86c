"""The least cost per progress, its floor and its SLOs."""

from math import inf

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.gavel.allocation.problem import AllocationProblem, Shares
from policies.gavel.base import agnostic
from policies.gavel.solvers.cost import HELD, CostForm, Slos, min_cost
from policies.gavel.solvers.finish_time import isolated_rates
from tests import textbook_shares as textbook
from tests.builders_shares import T0_T1, a_problem, jobs_of, problems

relaxed = settings(max_examples=25, deadline=None)
COST = np.array([3.1, 2.0, 0.8])
"""Of a V100, P100 and K80 for an hour, as in the published program's test."""
goals = st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0]), min_size=4, max_size=4)


def ratio(problem: AllocationProblem, cost: np.ndarray, shares: Shares) -> float:
    """Progress per cost of these shares, worked out from them."""
    progress = (
        problem.count * shares.throughput(problem) / np.maximum(problem.fastest_rates, 1e-300)
    )
    of_columns = cost[problem.column_type]
    spent = ((shares.alone * problem.scale[:, None]) @ of_columns).sum()
    spent += ((shares.paired * problem.scale[problem.pairs[:, 0]][:, None]) @ of_columns).sum()
    return float(progress[problem.fastest_rates > 0.0].sum() / spent)


def test_the_published_form_gives_each_job_its_cheapest_steps() -> None:
    problem = a_problem(T0_T1, gpus=[1, 1, 1])
    shares = min_cost(problem, COST, floor=0.0, form=CostForm.PUBLISHED)
    assert shares.objective == pytest.approx(1.89516, abs=5e-6)
    assert shares.alone.tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]


def test_without_a_floor_the_papers_ratio_starves_all_but_the_cheapest_job() -> None:
    problem = a_problem(T0_T1, gpus=[1, 1, 1])
    shares = min_cost(problem, COST, floor=0.0)
    assert shares.alone == pytest.approx(np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
    assert shares.objective == pytest.approx(1.0 / 3.0 / 0.8)


def test_a_floor_gives_every_job_its_part_of_an_isolated_cluster() -> None:
    problem = a_problem(T0_T1, gpus=[1, 1, 1])
    shares = min_cost(problem, COST, floor=0.5)
    assert (shares.throughput(problem) >= 0.5 * isolated_rates(problem) * (1 - 1e-6)).all()


def test_a_pair_is_paid_for_once() -> None:
    problem = a_problem([[1.0], [1.0]], gpus=[1], pairs={(0, 1): [(0.8, 0.8)]})
    assert min_cost(problem, np.array([2.0]), floor=0.5).objective == pytest.approx(0.8)


def test_an_slo_is_met_however_dear_it_is() -> None:
    problem = a_problem(T0_T1, gpus=[1, 1, 1])
    slos = Slos(np.array([300.0, 500.0]), np.array([160.0, inf]))
    shares = min_cost(problem, COST, floor=0.0, slos=slos)
    assert shares.throughput(problem)[0] >= 300.0 / 160.0 * (1 - 1e-6)
    assert shares.dropped == ()


@pytest.mark.parametrize("left_s", [149.0, 0.0, -5.0])
@pytest.mark.parametrize("form", CostForm)
def test_an_slo_that_no_gpu_can_meet_is_dropped_and_named(form: CostForm, left_s: float) -> None:
    problem = a_problem(T0_T1, gpus=[1, 1, 1])
    slos = Slos(np.array([300.0, 500.0]), np.array([left_s, 180.0]))
    shares = min_cost(problem, COST, floor=0.0, form=form, slos=slos)
    assert shares.dropped == (0,)
    assert shares.throughput(problem)[1] >= 500.0 / 180.0 * (1 - 1e-6)


def test_of_slos_that_cannot_be_met_together_only_some_are_dropped() -> None:
    problem = a_problem([[1.0]] * 3, gpus=[2])
    slos = Slos(np.full(3, 100.0), np.full(3, 100.0))
    shares = min_cost(problem, np.array([1.0]), floor=0.0, slos=slos)
    assert len(shares.dropped) == 1
    kept = [m for m in range(3) if m not in shares.dropped]
    assert shares.throughput(problem)[kept] == pytest.approx([1.0, 1.0], rel=1e-6)


def test_a_job_without_an_slo_or_without_steps_misses_none() -> None:
    problem = a_problem([[1.0], [0.0]], gpus=[1])
    assert (
        min_cost(
            problem,
            np.array([1.0]),
            floor=0.0,
            slos=Slos(np.array([5.0, 0.0]), np.array([inf, -1.0])),
        ).dropped
        == ()
    )


@pytest.mark.parametrize(("floor", "cost"), [(-0.1, 1.0), (1.1, 1.0), (0.5, 0.0)])
def test_floors_out_of_range_and_free_gpus_are_refused(floor: float, cost: float) -> None:
    with pytest.raises(ValueError, match="floor"):
        min_cost(a_problem([[1.0]], gpus=[1]), np.array([cost]), floor=floor)


@pytest.mark.parametrize("form", CostForm)
def test_where_nobody_can_run_nothing_is_spent(form: CostForm) -> None:
    shares = min_cost(
        a_problem([[0.0]], gpus=[1]),
        np.array([1.0]),
        floor=1.0,
        form=form,
        slos=Slos(np.ones(1), np.ones(1)),
    )
    assert (shares.alone.sum(), shares.dropped) == (0.0, (0,))


@relaxed
@given(problems(most=3, counts=2), st.sampled_from([0.0, 0.3, 1.0]))
def test_the_ratio_is_the_textbooks_and_its_shares_reach_it(
    problem: AllocationProblem, floor: float
) -> None:
    cost = COST[: len(problem.gpus)]
    shares = min_cost(problem, cost, floor=floor)
    assert textbook.excess(problem, shares) <= 1e-6
    if (problem.fastest_rates > 0.0).any():
        expected = textbook.cost_ratio(problem, cost.tolist(), floor, [0.0] * len(problem.count))
        # Either solver holds a floor to some parts in ten million, which the ratio may feel ten
        # times over and more.
        assert shares.objective == pytest.approx(expected, rel=1e-5)
        assert ratio(problem, cost, shares) == pytest.approx(shares.objective, rel=1e-6)
        assert (shares.throughput(problem) >= floor * isolated_rates(problem) * (1 - 1e-6)).all()


@relaxed
@given(problems(most=3, counts=2), goals)
def test_slos_are_met_or_named_and_the_ratio_is_the_textbooks(
    problem: AllocationProblem, parts: list[float]
) -> None:
    """SLOs of some part of each job's best: those that are not dropped hold, and cost what they
    must.
    """
    cost, wanted = (
        COST[: len(problem.gpus)],
        np.array(parts[: len(problem.count)]) * problem.fastest_rates,
    )
    slos = Slos(wanted * 60.0, np.full(len(wanted), 60.0))
    shares = min_cost(problem, cost, floor=0.2, slos=slos)
    kept = np.array([0.0 if m in shares.dropped else rate for m, rate in enumerate(wanted)])
    assert textbook.excess(problem, shares) <= 1e-6
    assert (shares.throughput(problem) >= kept * (1 - 1e-6)).all()
    if (problem.fastest_rates > 0.0).any():
        expected = textbook.cost_ratio(problem, cost.tolist(), 0.2 * HELD, (kept * HELD).tolist())
        assert shares.objective == pytest.approx(expected, rel=2e-6)


@relaxed
@given(problems(most=3, counts=2), goals)
def test_no_slo_is_dropped_where_all_can_be_met(
    problem: AllocationProblem, parts: list[float]
) -> None:
    wanted = np.array(parts[: len(problem.count)]) * problem.fastest_rates
    slos = Slos(wanted * 60.0, np.full(len(wanted), 60.0))
    book = textbook.Textbook(problem)
    together = book.best(cp.Constant(0.0), [book.throughput >= wanted[book.class_of]]) is not None
    assert (
        min_cost(problem, COST[: len(problem.gpus)], floor=0.0, slos=slos).dropped == ()
    ) == together


@relaxed
@given(problems(most=3))
def test_classes_cost_what_their_jobs_do_one_by_one(problem: AllocationProblem) -> None:
    cost = COST[: len(problem.gpus)]
    for form in CostForm:
        in_classes = min_cost(problem, cost, floor=0.4, form=form)
        one_by_one = min_cost(jobs_of(problem), cost, floor=0.4, form=form)
        assert in_classes.objective == pytest.approx(one_by_one.objective, rel=2e-6, abs=1e-9)


@relaxed
@given(problems(most=3))
def test_knowing_the_types_is_never_dearer(problem: AllocationProblem) -> None:
    cost = COST[: len(problem.gpus)]
    blind = agnostic(lambda d: min_cost(d, cost, floor=0.4), problem)
    if (problem.fastest_rates > 0.0).any():
        assert min_cost(problem, cost, floor=0.4).objective >= ratio(problem, cost, blind) * (
            1 - 2e-6
        )
