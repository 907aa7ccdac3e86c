"""What a kind's fingerprint says of pairs that nobody measured."""

from dataclasses import replace
from math import isfinite, nan

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from profiling.pairs.completion import CompletionError, Settings
from profiling.pairs.fingerprints import (
    MOST_RETAINED,
    USUAL,
    Book,
    Pair,
    references_of,
    retained_of,
)
from tests.builders_pairs import V100, gavels_alone, gavels_rates, sharing_kinds

TYPES = ("A", "B")
PAPER = replace(USUAL, nearest_weight=1.0)


def without(
    truth: dict[Pair, float],
    kind: str,
    *,
    but: tuple[str, ...] = (),
    types: tuple[str, ...] = TYPES,
) -> dict[Pair, float]:
    """What is known if the kind was measured beside those others alone, on those types."""
    return {
        p: s
        for p, s in truth.items()
        if kind not in p[:2]
        or ({*p[:2]} <= {kind, *but} and p[:2] != (kind, kind) and p[2] in types)
    }


def by_distance(book: Book, kind: str) -> list[str]:
    """References by their distance to the kind, without those of unknown distance."""
    distances = book.distances[book.row_of[kind]]
    order = np.argsort(distances, kind="stable")
    return [book.references[r] for r in order if isfinite(distances[r])]


def estimated(book: Book, pair: Pair) -> float:
    kind, beside, gpu_type = pair
    return float(book.estimates((kind, beside))[book.types.index(gpu_type), 0, 1])


@pytest.mark.parametrize("newcomer", ["0.2", "1.0", "3.1"])
def test_a_new_kinds_nearest_reference_is_one_that_shares_like_it(newcomer: str) -> None:
    truth = sharing_kinds(4, 3, TYPES)
    book = Book.of(without(truth, newcomer, but=("0.0", "1.1", "2.1")))
    nearest, second, *_ = by_distance(book, newcomer)
    assert {nearest[0], second[0]} == {newcomer[0]}
    _, to_second, to_third, *_ = sorted(book.distances[book.row_of[newcomer]])
    assert to_second < to_third


def test_a_new_kinds_whole_row_is_estimated_from_a_few_partners_even_on_types_it_never_met() -> (
    None
):
    truth = sharing_kinds(4, 3, TYPES)
    known = without(truth, "2.2", but=("0.0", "1.1", "3.0"), types=("A",))
    book = Book.of(known)
    wrong = [
        abs(estimated(book, pair) - truth[pair])
        for pair in truth
        if "2.2" in pair[:2] and pair not in known
    ]
    assert len(wrong) == 2 * (11 + 12) - 6
    assert np.mean(wrong) < 0.3 * np.std(list(truth.values()))


def test_the_papers_first_estimate_is_the_nearest_references_row() -> None:
    truth = sharing_kinds(3, 3, ("A",))
    known = {
        **without(truth, "1.2", but=("0.0", "2.0")),
        ("1.2", "1.0", "A"): truth["1.2", "1.0", "A"],
    }
    book = Book.of(known, rules=replace(PAPER, possible=0.0))
    nearest = by_distance(book, "1.2")[0]
    assert nearest in ("1.0", "1.1")
    column = 2 * book.references.index("0.1")
    mixed = book._mixed(book.retained)[book.row_of["1.2"], 0, book.references.index("0.1")]
    assert mixed == pytest.approx(book.retained.values[book.row_of[nearest], column : column + 2])


def test_what_was_measured_is_never_estimated() -> None:
    truth = sharing_kinds(3, 2, TYPES)
    book = Book.of(without(truth, "1.1", but=("0.0", "2.0")))
    shares = book.estimates(book.kinds)
    for (kind, beside, gpu_type), fraction in book.measured.items():
        at = book.types.index(gpu_type), book.kinds.index(kind), book.kinds.index(beside)
        assert shares[at] == fraction


def test_two_new_kinds_beside_each_other_share_like_their_references() -> None:
    truth = sharing_kinds(4, 3, ("A",))
    known = without(
        without(truth, "0.2", but=("1.0", "2.0", "3.0")), "1.2", but=("0.0", "2.0", "3.0")
    )
    references = sorted({k for k, _, _ in truth} - {"0.2", "1.2"})
    book = Book.of(known, references)
    assert estimated(book, ("0.2", "1.2", "A")) == pytest.approx(truth["0.2", "1.2", "A"], abs=0.1)
    assert estimated(book, ("0.2", "0.2", "A")) == pytest.approx(truth["0.2", "0.2", "A"], abs=0.1)


def test_a_kind_that_shares_with_nobody_of_a_family_is_estimated_to_share_with_none_of_it() -> None:
    truth = sharing_kinds(3, 4, ("A",))
    small = {p: 0.0 if {p[0][0], p[1][0]} == {"0", "2"} else s for p, s in truth.items()}
    book = Book.of(without(small, "2.3", but=("0.0", "0.1", "1.0", "2.0")))
    assert [estimated(book, ("2.3", other, "A")) for other in ("0.2", "0.3")] == [0.0, 0.0]
    assert estimated(book, ("2.3", "1.1", "A")) == pytest.approx(truth["2.3", "1.1", "A"], abs=0.1)


def test_pairs_that_cannot_share_do_not_bend_the_fractions_of_those_that_can() -> None:
    truth = sharing_kinds(3, 4, ("A",))
    known = without(truth, "1.3", but=("0.0", "1.0", "2.0"))
    barred = {
        p: 0.0 if p[:2] == ("0.1", "2.1") or p[:2] == ("2.1", "0.1") else s
        for p, s in known.items()
    }
    before, after = (estimated(Book.of(of), ("1.3", "2.2", "A")) for of in (known, barred))
    assert after == pytest.approx(before, abs=0.01)


def test_where_nobody_was_found_to_share_with_anybody_nobody_is_estimated_to() -> None:
    known = dict.fromkeys(without(sharing_kinds(2, 3, ("A",)), "1.2", but=("0.0", "0.1")), 0.0)
    book = Book.of(known)
    assert (book.estimates(book.kinds) == 0.0).all()


def test_nothing_is_said_of_kinds_nobody_measured_nor_of_types_on_which_nothing_was() -> None:
    book = Book.of(sharing_kinds(2, 2, ("A",)))
    shares = book.estimates(("0.0", "never seen"))
    assert book.types == ("A",)
    assert isfinite(shares[0, 0, 0])
    assert np.isnan(shares[0, [0, 1, 1], [1, 0, 1]]).all()


def test_a_reference_that_was_never_measured_on_a_type_is_spoken_for_by_the_one_most_like_it() -> (
    None
):
    truth = sharing_kinds(3, 3, TYPES)
    known = {p: s for p, s in truth.items() if not (p[2] == "B" and "0.1" in p[:2])}
    assert estimated(Book.of(known), ("1.0", "0.1", "B")) == pytest.approx(
        truth["1.0", "0.1", "B"], abs=0.1
    )


def test_a_kind_is_never_its_own_reference() -> None:
    book = Book.of(sharing_kinds(2, 3, ("A",)))
    for kind in book.kinds:
        assert kind not in by_distance(book, kind)


@given(seed=st.integers(0, 50), keep=st.floats(0.3, 1.0), zeros=st.floats(0.0, 0.5))
@settings(max_examples=25, deadline=None)
def test_estimates_are_fractions_or_unknown_whatever_is_measured(
    seed: int, keep: float, zeros: float
) -> None:
    rng = np.random.default_rng(seed)
    truth = sharing_kinds(3, 2, TYPES, seed=seed)
    known = {p: 0.0 if rng.random() < zeros else s for p, s in truth.items() if rng.random() < keep}
    assume(len(references_of(known)) >= 2)
    book = Book.of(known, rules=replace(USUAL, settings=Settings(most_sweeps=20_000)), seed=seed)
    shares = book.estimates(book.kinds)
    assert (np.isnan(shares) | ((shares >= 0.0) & (shares <= 1.0))).all()


def test_the_order_in_which_things_were_measured_does_not_matter() -> None:
    truth = without(sharing_kinds(3, 2, TYPES), "1.1", but=("0.0", "2.0"))
    book, other = Book.of(truth), Book.of(dict(reversed(truth.items())))
    assert np.array_equal(book.estimates(book.kinds), other.estimates(other.kinds), equal_nan=True)


@pytest.mark.parametrize("fraction", [-0.1, nan, float("inf")])
def test_a_fraction_that_is_none_is_refused_by_name(fraction: float) -> None:
    with pytest.raises(ValueError, match=r"0\.0 retains .* beside 0\.1 on A"):
        Book.of({**sharing_kinds(2, 2, ("A",)), ("0.0", "0.1", "A"): fraction})


def test_fewer_than_two_references_make_no_book() -> None:
    with pytest.raises(CompletionError, match="0 reference kinds"):
        Book.of({("a", "b", "A"): 0.5, ("b", "a", "A"): 0.5})


def test_references_are_the_kinds_measured_beside_most_others() -> None:
    truth = sharing_kinds(4, 1, TYPES)
    known = {p: s for p, s in truth.items() if "3.0" not in p[:2] or p[0] == p[1]}
    assert references_of(known) == ("0.0", "1.0", "2.0")
    assert references_of(known, most=2) == ("0.0", "1.0")
    assert references_of(known, least=4) == ()


def test_fractions_come_from_pairs_and_the_kinds_own_speeds() -> None:
    rates = {
        ("a", "b", "A"): (2.0, 9.0),
        ("a", "a", "A"): (2.0, 3.0),
        ("a", "c", "A"): (1.0, 1.0),
        ("a", "b", "B"): (1.0, 1.0),
    }
    alone = {("a", "A"): 4.0, ("b", "A"): 10.0, ("c", "A"): 0.0}
    assert retained_of(rates, alone) == {
        ("a", "b", "A"): 0.5,
        ("b", "a", "A"): 0.9,
        ("a", "a", "A"): 0.625,
    }


def test_no_fraction_is_believed_beyond_the_stated_one() -> None:
    found = retained_of({("a", "b", "A"): (1e6, 9.0)}, {("a", "A"): 4.0, ("b", "A"): 10.0})
    assert found == {("a", "b", "A"): MOST_RETAINED, ("b", "a", "A"): 0.9}


@pytest.mark.parametrize(
    "newcomer", ["ResNet-18 (batch size 128)", "Transformer (batch size 64)", "LM (batch size 40)"]
)
def test_of_gavels_kinds_the_nearest_is_the_same_model_with_another_batch_size(
    newcomer: str,
) -> None:
    truth = retained_of(gavels_rates(), gavels_alone())
    partners = (
        "ResNet-50 (batch size 64)",
        "Transformer (batch size 128)",
        "LM (batch size 20)",
        "ResNet-18 (batch size 64)",
    )
    book = Book.of(without(truth, newcomer, but=partners, types=(V100,)))
    assert by_distance(book, newcomer)[0].split(" (")[0] == newcomer.split(" (")[0]


def test_of_gavels_kinds_the_one_that_fits_beside_few_is_estimated_to_fit_beside_few() -> None:
    truth = retained_of(gavels_rates(), gavels_alone())
    large = "ResNet-50 (batch size 128)"
    book = Book.of(
        without(
            truth,
            large,
            but=("ResNet-18 (batch size 64)", "Transformer (batch size 64)", "LM (batch size 20)"),
            types=(V100,),
        )
    )
    assert [
        estimated(book, (large, k, V100))
        for k in ("Transformer (batch size 128)", "LM (batch size 40)")
    ] == [0.0, 0.0]
    assert estimated(book, (large, "ResNet-18 (batch size 128)", V100)) > 0.0
