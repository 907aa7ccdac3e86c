"""Max-min fairness: exact values of small cases, the textbook's optimum, and the properties the
paper proves.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from policies.gavel.agnostic import agnostic
from policies.gavel.division.division import Division, Shares
from policies.gavel.solvers.fairness import fair_scaling, fairness
from policies.gavel.solvers.program import Method
from tests import textbook_shares as textbook
from tests.builders_shares import T0_T1, a_division, divisions, jobs_of

relaxed = settings(max_examples=60, deadline=None)


def least(division: Division, shares: Shares) -> float:
    """The objective that these shares reach, worked out from them."""
    levels = fair_scaling(division) * shares.throughput(division) / division.weight
    return float(levels[division.fastest_rates > 0.0].min(initial=np.inf))


def equal_split(division: Division) -> Shares:
    """Each job has the same part of every GPU, and none more than all its time."""
    part = division.gpus / division.count.sum() / division.scale[:, None]
    part /= np.maximum(part.sum(axis=1, keepdims=True), 1.0)
    return Shares(part * division.count[:, None], np.zeros((0, len(division.columns))), 0.0)


def test_one_two_three_gpus_are_shared_as_the_papers_program_does() -> None:
    division = a_division(T0_T1, gpus=[1, 2, 3])
    shares = fairness(division)
    assert shares.objective == pytest.approx(1.5484, abs=5e-5)
    assert shares.alone == pytest.approx(
        np.array([[0.4194, 0.5806, 0.0], [0.5806, 0.4194, 0.0]]), abs=5e-5
    )


def test_one_gpu_of_each_type_gives_both_jobs_their_published_throughputs() -> None:
    division = a_division(T0_T1, gpus=[1, 1, 1])
    assert fairness(division).throughput(division) == pytest.approx([1.4737, 2.5263], abs=5e-5)


def test_three_jobs_of_the_papers_example_gain_a_tenth_over_an_isolated_split() -> None:
    division = a_division([[4.0, 1.0], [3.0, 1.0], [2.0, 1.0]], gpus=[1, 1])
    shares = fairness(division)
    assert shares.alone == pytest.approx(
        np.array([[0.4545, 0.0], [0.4545, 0.0909], [0.0909, 0.9091]]), abs=5e-5
    )
    assert shares.objective / least(division, equal_split(division)) == pytest.approx(
        1.0909, abs=5e-5
    )


def test_a_weight_of_two_gives_twice_the_throughput() -> None:
    division = a_division([[1.0], [1.0]], gpus=[1], weight=[2.0, 1.0])
    assert fairness(division).throughput(division) == pytest.approx([2 / 3, 1 / 3])


def test_a_gang_of_two_counts_twice_and_so_gets_half_the_time() -> None:
    division = a_division([[1.0], [1.0]], gpus=[1], scale=[2, 1])
    assert fairness(division).alone.ravel() == pytest.approx([0.25, 0.5])


def test_a_job_that_can_run_nowhere_gets_nothing_and_holds_nobody_back() -> None:
    division = a_division([[0.0, 0.0], [1.0, 2.0]], gpus=[1, 1])
    shares = fairness(division)
    assert shares.objective == pytest.approx(2.0 / 1.5)
    assert shares.alone[0].sum() == 0.0


@pytest.mark.parametrize(
    "division",
    [a_division([[0.0]], gpus=[1]), a_division([[1.0]], gpus=[0]), a_division([], gpus=[1])],
)
def test_where_nobody_can_run_nobody_gets_anything(division: Division) -> None:
    shares = fairness(division, fill=True)
    assert (shares.alone.sum(), shares.objective) == (0.0, 0.0)


def test_a_type_without_gpus_is_given_to_nobody() -> None:
    division = a_division([[5.0, 1.0]], gpus=[0, 1])
    assert fairness(division).alone.tolist() == [[0.0, 1.0]]


def test_a_job_that_runs_only_over_several_nodes_still_counts() -> None:
    division = a_division([[0.0, 3.0], [2.0, 1.0]], gpus=[2], spread=[0])
    shares = fairness(division)
    assert shares.alone[0] == pytest.approx([0.0, 1.0])
    assert shares.objective == pytest.approx(1.0)


def test_both_columns_of_a_type_share_its_gpus() -> None:
    division = a_division([[0.0, 3.0], [2.0, 1.0]], gpus=[1], spread=[0])
    shares = fairness(division)
    assert shares.alone.sum() == pytest.approx(1.0)
    assert shares.alone[0, 1] == pytest.approx(0.5)


def test_a_pair_at_full_speed_needs_one_gpu_for_two_jobs() -> None:
    division = a_division([[1.0], [1.0]], gpus=[1], pairs={(0, 1): [(1.0, 1.0)]})
    shares = fairness(division)
    assert shares.objective == pytest.approx(1.0)
    assert shares.paired.ravel() == pytest.approx([1.0])


def test_a_pair_within_a_class_takes_the_time_of_two_of_its_jobs() -> None:
    division = a_division([[1.0]], gpus=[3], count=[3], pairs={(0, 0): [(0.8, 0.8)]})
    shares = fairness(division)
    assert shares.objective == pytest.approx(1.0)
    two = a_division([[1.0]], gpus=[1], count=[3], pairs={(0, 0): [(0.8, 0.8)]})
    assert fairness(two).paired.sum() == pytest.approx(1.0)
    assert fairness(two).objective == pytest.approx(1.6 / 3)


def test_a_lone_job_does_not_share_with_itself() -> None:
    division = a_division([[1.0]], gpus=[1], count=[1], pairs={(0, 0): [(0.9, 0.9)]})
    shares = fairness(division)
    assert shares.paired.sum() == 0.0
    assert shares.objective == pytest.approx(1.0)


def test_filling_gives_idle_gpus_to_whom_they_bring_most_and_takes_from_nobody() -> None:
    division = a_division([[1.0, 0.0], [1.0, 1.0]], gpus=[2, 1])
    bare, filled = fairness(division), fairness(division, fill=True)
    assert filled.objective == pytest.approx(bare.objective)
    assert least(division, filled) == pytest.approx(bare.objective)
    assert filled.alone.sum() == pytest.approx(2.0)


def test_a_hundred_thousand_jobs_are_shared_as_exactly_as_ten() -> None:
    few = a_division(T0_T1, gpus=[1, 1, 1], count=[6, 4])
    many = a_division(T0_T1, gpus=[1, 1, 1], count=[60_000, 40_000])
    assert fairness(many).objective * 10_000 == pytest.approx(fairness(few).objective, rel=1e-6)


@relaxed
@given(divisions())
def test_the_optimum_is_the_textbooks_and_its_shares_reach_it(division: Division) -> None:
    shares = fairness(division)
    assert shares.objective == pytest.approx(textbook.fairness(division), rel=1e-6, abs=1e-9)
    assert textbook.excess(division, shares) <= 1e-6
    assert shares.objective == 0.0 or least(division, shares) >= shares.objective * (1 - 1e-6)


@relaxed
@given(divisions())
def test_classes_have_the_optimum_of_their_jobs_one_by_one(division: Division) -> None:
    assert fairness(division).objective == pytest.approx(
        fairness(jobs_of(division)).objective, rel=1e-6, abs=1e-9
    )


@relaxed
@given(divisions(most=6))
def test_simplex_and_interior_point_agree(division: Division) -> None:
    simplex, interior = (fairness(division, method=m, fill=True) for m in Method)
    assert simplex.objective == pytest.approx(interior.objective, rel=1e-6, abs=1e-9)


@relaxed
@given(divisions())
def test_filling_changes_no_optimum(division: Division) -> None:
    bare, filled = fairness(division), fairness(division, fill=True)
    assert filled.objective == bare.objective
    assert textbook.excess(division, filled) <= 1e-6
    assert filled.objective == 0.0 or least(division, filled) >= filled.objective * (1 - 1e-6)
    per = np.divide(
        1.0,
        division.fastest_rates,
        out=np.zeros(len(division.count)),
        where=division.fastest_rates > 0.0,
    )
    per *= division.count
    assert per @ filled.throughput(division) >= per @ bare.throughput(division) - 1e-6


@relaxed
@given(divisions(pairing=False))
def test_nobody_is_worse_off_than_under_an_equal_split(division: Division) -> None:
    """Sharing incentive: of the objective, as the paper has it."""
    shares = fairness(division)
    assert shares.objective == 0.0 or shares.objective >= least(division, equal_split(division)) * (
        1 - 1e-6
    )


@relaxed
@given(divisions())
def test_knowing_the_types_is_never_worse(division: Division) -> None:
    blind = agnostic(fairness, division)
    if (division.fastest_rates > 0.0).any():
        assert fairness(division).objective >= least(division, blind) * (1 - 1e-6)


@relaxed
@given(divisions(types=1))
def test_on_one_type_there_is_nothing_to_know(division: Division) -> None:
    assert fairness(division).objective == pytest.approx(
        agnostic(fairness, division).objective, rel=1e-6, abs=1e-9
    )


@relaxed
@given(divisions())
def test_sharing_gpus_is_never_worse(division: Division) -> None:
    alone = a_division(
        division.rates.tolist(),
        division.gpus.tolist(),
        count=division.count.tolist(),
        scale=division.scale.tolist(),
        weight=division.weight.tolist(),
    )
    assert fairness(division).objective >= fairness(alone).objective * (1 - 1e-6)
