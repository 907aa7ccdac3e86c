"""Water filling: the paper's examples, a plain job-by-job version of its procedure, Pareto
efficiency, queues inside entities.
"""

from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from policies.contract.policy import SolverFailedError
from policies.gavel.allocation.problem import AllocationProblem, Shares
from policies.gavel.base import pooled
from policies.gavel.solvers.fairness import (
    Entity,
    fair_scaling,
    fair_shares,
    fairness,
    filled_by_programs,
    filled_by_tableau,
    hierarchical_shares,
    inverse,
)
from policies.gavel.solvers.filling import MOST_CLASSES
from policies.gavel.solvers.program import Program, excess
from tests import textbook_shares as textbook
from tests.builders_shares import T0_T1, a_problem, jobs_of, many_like_jobs, problems
from tests.exact_shares import exact_levels

relaxed = settings(max_examples=25, deadline=None)


def levels(problem: AllocationProblem, shares: Shares) -> list[float]:
    """Normalised throughput of each job, class by class."""
    of_class = fair_scaling(problem) * shares.throughput(problem)
    return [float(x) for x in np.repeat(of_class, problem.count)]


def test_four_jobs_weighing_3_1_1_1_all_end_with_a_whole_gpu() -> None:
    problem = a_problem([[1.0]] * 4, gpus=[4], weight=[3.0, 1.0, 1.0, 1.0])
    shares = fair_shares(problem)
    assert shares.throughput(problem) == pytest.approx([1.0] * 4)
    assert shares.objective == pytest.approx(1 / 3)
    assert shares.rounds >= 2


def test_the_papers_three_jobs_are_all_stuck_at_the_first_level() -> None:
    problem = a_problem([[4.0, 1.0], [3.0, 1.0], [2.0, 1.0]], gpus=[1, 1])
    shares = fair_shares(problem)
    assert shares.alone == pytest.approx(
        np.array([[0.4545, 0.0], [0.4545, 0.0909], [0.0909, 0.9091]]), abs=5e-5
    )


def test_a_pair_at_full_throughput_leaves_both_jobs_their_fastest_gpu() -> None:
    full = [(2.0, 3.0), (1.0, 2.0), (0.5, 1.0)]
    problem = a_problem(T0_T1, gpus=[1, 1, 1], pairs={(0, 1): full})
    assert fair_shares(problem).throughput(problem) == pytest.approx([2.0, 3.0])


def test_the_first_level_is_the_optimum_of_fairness() -> None:
    problem = a_problem(T0_T1, gpus=[1, 2, 3], count=[3, 5], weight=[2.0, 1.0])
    assert fair_shares(problem).objective == pytest.approx(fairness(problem).objective)


def test_a_product_team_of_twice_the_weight_has_twice_the_cluster() -> None:
    problem = a_problem([[1.0]] * 3, gpus=[1], entity=[0, 0, 1])
    shares = hierarchical_shares(problem, [Entity(2.0), Entity(1.0)])
    assert shares.alone.ravel() == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    shares = hierarchical_shares(problem, [Entity(1.0), Entity(1.0)])
    assert shares.alone.ravel() == pytest.approx([1 / 4, 1 / 4, 1 / 2])


def test_the_weight_of_a_stuck_job_goes_to_its_own_entity() -> None:
    """Five GPUs: entity 0's first job is full at once, its weight lifts its second; entity 1 is not
    lifted by it.
    """
    problem = a_problem(
        [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], gpus=[1, 1], entity=[0, 0, 1], weight=[9.0, 1.0, 1.0]
    )
    shares = hierarchical_shares(problem, [Entity(), Entity()])
    book = textbook.water_filled(problem, [1.0, 1.0])
    assert levels(problem, shares) == pytest.approx(book, abs=1e-6)
    assert shares.alone[0, 0] == pytest.approx(1.0)
    assert shares.alone[1:, 1].sum() == pytest.approx(1.0)


def test_in_a_queue_the_first_job_gets_all_that_its_entity_can_have_then_the_next() -> None:
    problem = a_problem([[1.0]] * 5, gpus=[3], entity=[0, 0, 0, 1, 1])
    shares = hierarchical_shares(problem, [Entity(fifo=True), Entity()], np.array([2, 0, 1, 0, 0]))
    assert shares.alone.ravel() == pytest.approx([0.0, 1.0, 0.5, 0.75, 0.75])


def test_a_queue_whose_entity_weighs_more_is_served_deeper() -> None:
    problem = a_problem([[1.0]] * 6, gpus=[4], entity=[0, 0, 0, 1, 1, 1])
    shares = hierarchical_shares(
        problem, [Entity(3.0, fifo=True), Entity(1.0, fifo=True)], np.arange(6)
    )
    assert shares.alone.ravel() == pytest.approx([1.0, 1.0, 1.0, 1.0, 0.0, 0.0])


def test_an_entity_whose_jobs_can_run_nowhere_leaves_the_cluster_to_the_others() -> None:
    problem = a_problem([[0.0], [1.0]], gpus=[1], entity=[0, 1])
    assert hierarchical_shares(problem, [Entity(5.0), Entity()]).alone.ravel().tolist() == [
        0.0,
        1.0,
    ]


def test_without_jobs_that_can_run_nothing_is_filled() -> None:
    shares = fair_shares(a_problem([[0.0]], gpus=[3]))
    assert (shares.rounds, shares.objective, shares.alone.sum()) == (0, 0.0, 0.0)


@pytest.mark.parametrize("place", [None, np.array([0, 1])])
def test_a_queue_needs_places_and_classes_of_one_job(place: np.ndarray | None) -> None:
    problem = a_problem([[1.0], [1.0]], gpus=[1], count=[2, 1])
    with pytest.raises(ValueError, match="queue"):
        hierarchical_shares(problem, [Entity(fifo=True)], place)


def test_an_entity_without_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="weight"):
        hierarchical_shares(a_problem([[1.0]], gpus=[1]), [Entity(0.0)])


def failing_at(monkeypatch: pytest.MonkeyPatch, *calls: int) -> None:
    """Let the solver find nothing in these of its calls."""
    solve, counted = Program.solve, count(1)

    def failing(program: Program) -> float:
        if next(counted) in calls:
            raise SolverFailedError("infeasible by a hair")
        return solve(program)

    monkeypatch.setattr(Program, "solve", failing)


def test_a_level_that_cannot_quite_be_held_is_asked_for_a_hair_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = a_problem([[1.0]] * 4, gpus=[4], weight=[3.0, 1.0, 1.0, 1.0])
    failing_at(monkeypatch, 2)
    shares = filled_by_programs(problem)
    assert shares.throughput(problem) == pytest.approx([1.0] * 4)
    assert shares.programs > 2


def test_a_level_that_cannot_be_held_at_all_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    failing_at(monkeypatch, *range(2, 100))
    with pytest.raises(SolverFailedError, match="could not be held"):
        filled_by_programs(a_problem([[1.0]] * 4, gpus=[4], weight=[3.0, 1.0, 1.0, 1.0]))


def test_a_rise_that_finds_nobody_stuck_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Program, "duals", lambda self, rows: np.zeros(len(rows)))
    with pytest.raises(SolverFailedError, match="no job has a price"):
        filled_by_programs(a_problem([[1.0]], gpus=[1]))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("blind", [False, True])
def test_many_like_jobs_end_where_nobody_could_have_more(seed: int, blind: bool) -> None:
    problem = pooled(many_like_jobs(seed)) if blind else many_like_jobs(seed)
    shares = filled_by_programs(problem)
    has, value = (
        problem.count * shares.throughput(problem),
        fair_scaling(problem) / problem.weight,
    )
    assert excess(shares, problem) <= 1e-6
    program = Program(problem)
    program.add_throughputs(inverse(has * (1 - 1e-8)) * problem.count, 1.0)
    program.maximise(program.variables.sums(value))
    assert program.solve() <= value @ has * (1 + 1e-5)


@settings(max_examples=100, deadline=None)
@given(problems(most=12, counts=4, pairing=False), st.booleans())
def test_few_classes_have_the_same_levels_by_their_own_solver(
    problem: AllocationProblem, blind: bool
) -> None:
    problem = pooled(problem) if blind else problem
    small = filled_by_tableau(problem)
    assume(problem.fastest_rates.any())
    assert small is not None
    shares = filled_by_programs(problem)
    assert levels(problem, small.shares) == pytest.approx(
        levels(problem, shares), rel=2e-5, abs=2e-5
    )
    assert small.shares.objective == pytest.approx(shares.objective, rel=1e-6)
    assert excess(small.shares, problem) <= 1e-9


def test_pairs_and_many_classes_are_left_to_programs() -> None:
    pairs = {(0, 1): [(2.0, 3.0), (1.0, 2.0), (0.5, 1.0)]}
    assert filled_by_tableau(a_problem(T0_T1, gpus=[1, 1, 1], pairs=pairs)) is None
    assert filled_by_tableau(a_problem([[1.0]] * (MOST_CLASSES + 1), gpus=[1])) is None
    assert fair_shares(a_problem([[1.0]] * (MOST_CLASSES + 1), gpus=[1])).programs >= 1


@relaxed
@given(problems(counts=2))
def test_levels_are_those_of_the_papers_procedure_job_by_job(problem: AllocationProblem) -> None:
    shares = fair_shares(problem)
    whole = float((problem.weight * problem.count).sum())
    assert levels(problem, shares) == pytest.approx(
        textbook.water_filled(problem, [whole] * 1), rel=2e-5, abs=2e-5
    )
    assert textbook.excess(problem, shares) <= 1e-6


@relaxed
@given(problems(counts=2, entities=2), st.sampled_from([1.0, 2.0, 5.0]))
def test_hierarchies_have_the_levels_of_the_papers_procedure_job_by_job(
    problem: AllocationProblem, weight: float
) -> None:
    shares = hierarchical_shares(problem, [Entity(weight), Entity()])
    assert levels(problem, shares) == pytest.approx(
        textbook.water_filled(problem, [weight, 1.0]), rel=2e-5, abs=2e-5
    )
    assert textbook.excess(problem, shares) <= 1e-6


@relaxed
@given(problems(most=5, counts=1, entities=2), st.sampled_from([1.0, 2.0, 5.0]), st.booleans())
def test_queues_have_the_levels_of_the_papers_procedure_job_by_job(
    problem: AllocationProblem, weight: float, other: bool
) -> None:
    entities = [Entity(weight, fifo=True), Entity(fifo=other)]
    shares = hierarchical_shares(problem, entities, np.arange(len(problem.count)))
    book = textbook.water_filled(problem, [weight, 1.0], [True, other])
    assert levels(problem, shares) == pytest.approx(book, rel=2e-5, abs=2e-5)
    assert textbook.excess(problem, shares) <= 1e-6


@relaxed
@given(problems(counts=2, entities=2))
def test_nobody_could_have_more_without_anothers_having_less(problem: AllocationProblem) -> None:
    """Pareto efficiency: no program finds more for one job while all others keep what they have."""
    assume((problem.fastest_rates > 0.0).any())
    of_jobs = jobs_of(problem)
    shares = hierarchical_shares(of_jobs, [Entity(), Entity(2.0)])
    book, has = textbook.Textbook(of_jobs), shares.throughput(of_jobs)
    for job in book.runnable:
        best = book.best(book.throughput[job], [book.throughput >= has - 1e-9])
        assert best is not None
        assert best <= has[job] + 1e-5 * book.fastest_rates[job]


@relaxed
@given(problems(counts=3, entities=2))
def test_classes_have_the_levels_of_their_jobs_one_by_one(problem: AllocationProblem) -> None:
    entities, of_jobs = [Entity(3.0), Entity()], jobs_of(problem)
    in_classes, one_by_one = (
        hierarchical_shares(problem, entities),
        hierarchical_shares(of_jobs, entities),
    )
    assert levels(problem, in_classes) == pytest.approx(
        levels(of_jobs, one_by_one), rel=1e-5, abs=1e-5
    )


@relaxed
@given(problems())
def test_water_filling_holds_the_first_level_for_all(problem: AllocationProblem) -> None:
    shares = fair_shares(problem)
    assert shares.objective == pytest.approx(textbook.fairness(problem), rel=1e-6, abs=1e-9)
    reached = fair_scaling(problem) * shares.throughput(problem) / problem.weight
    assert (reached[problem.fastest_rates > 0.0] >= shares.objective * (1 - 1e-6)).all()


@st.composite
def far_apart(draw: st.DrawFn) -> AllocationProblem:
    """Up to four classes whose speeds and weights are orders of magnitude apart."""
    classes, types = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    speed = st.one_of(st.just(0.0), st.floats(1e-4, 1e4), st.sampled_from([1e-4, 1.0, 3.0, 1e4]))

    def each(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=classes, max_size=classes))

    return a_problem(
        each(st.lists(speed, min_size=types, max_size=types)),
        draw(st.lists(st.integers(1, 4), min_size=types, max_size=types)),
        scale=each(st.sampled_from([1, 2])),
        count=each(st.integers(1, 3)),
        weight=each(st.floats(1e-3, 1e6)),
    )


@settings(max_examples=40, deadline=None)
@given(far_apart())
def test_nobody_has_less_than_in_whole_fractions_however_unlike_classes_are(
    problem: AllocationProblem,
) -> None:
    """Somebody may have more: where a GPU is worth next to nothing to one class, rounding of its
    level is much to another.
    """
    small = filled_by_tableau(problem)
    assume(small is not None)
    assert small is not None
    per, exact = fair_scaling(problem) / problem.weight, np.array(exact_levels(problem))
    slight = 1e-6 * per * problem.fastest_rates  # a millionth of a job's time
    assert (per * small.shares.throughput(problem) >= exact * (1.0 - 1e-6) - slight).all()
    assert excess(small.shares, problem) <= 1e-9
