"""Kinds as a policy sees them where only a part of their pairs was measured."""

import pytest

from policies.contract.snapshot import KindView, Source
from profiling.pairs.study import with_estimates
from tests.builders_pairs import GAVEL_ALONE, gavels_kinds


@pytest.fixture(name="kinds", scope="module")
def _kinds() -> tuple[KindView, ...]:
    return gavels_kinds()


def test_where_all_is_measured_nothing_changes(kinds: tuple[KindView, ...]) -> None:
    found = with_estimates(kinds, 1.0)
    assert found.kinds == kinds
    assert found.errors.count == 0


def test_where_nothing_is_measured_nothing_is_known_of_pairs(kinds: tuple[KindView, ...]) -> None:
    found = with_estimates(kinds, 0.0)
    assert all(not kind.pairs for kind in found.kinds)
    assert found.errors.count == 0


def test_a_part_is_measured_and_the_rest_estimated_where_it_is_worth_sharing(
    kinds: tuple[KindView, ...],
) -> None:
    found = with_estimates(kinds, 0.6, seed=2)
    truth = {(k.id, p.other): p for k in kinds for p in k.pairs}
    shown = {(k.id, p.other): p for k in found.kinds for p in k.pairs}
    measured = {pair for pair, p in shown.items() if p.source is Source.MEASURED}
    assert all(shown[pair] == truth[pair] for pair in measured)
    assert 0.3 < len(measured) / len(truth) < 0.9
    estimated = shown.keys() - measured
    assert estimated
    for kind, other in estimated:
        p = shown[kind, other]
        assert p.steps_per_s / GAVEL_ALONE[kind] + p.other_steps_per_s / GAVEL_ALONE[other] > 1.0
        assert shown[other, kind].other_steps_per_s == p.steps_per_s


def test_all_estimates_are_compared_not_only_those_that_are_shown(
    kinds: tuple[KindView, ...],
) -> None:
    found = with_estimates(kinds, 0.6, seed=2)
    measured = {
        frozenset((k.id, p.other))
        for k in found.kinds
        for p in k.pairs
        if p.source is Source.MEASURED
    }
    assert found.errors.count == 2 * (36 - len(measured))
    assert found.errors.median is not None
    assert found.errors.median < 0.5


def test_the_part_follows_from_the_seed(kinds: tuple[KindView, ...]) -> None:
    assert with_estimates(kinds, 0.5, seed=3) == with_estimates(kinds, 0.5, seed=3)
    assert with_estimates(kinds, 0.5, seed=3).kinds != with_estimates(kinds, 0.5, seed=4).kinds


def test_pairs_with_kinds_that_are_not_there_are_left_out(kinds: tuple[KindView, ...]) -> None:
    shown = with_estimates(kinds[:3], 1.0).kinds
    assert {p.other for k in shown for p in k.pairs} == {k.id for k in kinds[:3]}


@pytest.mark.parametrize("observed", [-0.1, 1.1, float("nan")])
def test_a_part_that_is_none_is_refused(kinds: tuple[KindView, ...], observed: float) -> None:
    with pytest.raises(ValueError, match=r"observed must be in \[0, 1\]"):
        with_estimates(kinds, observed)
