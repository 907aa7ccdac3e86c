"""Partners to profile beside, speeds of pairs, and the errors of their estimates."""

from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.pairs.estimates import (
    Choice,
    ErrorSummary,
    PairError,
    Partner,
    errors_of,
    next_partners,
    pair_rates,
    worth_sharing,
)
from profiling.pairs.fingerprints import Book
from profiling.speeds import ALPHA, moved
from tests.builders_pairs import sharing_kinds

TYPES = ("A", "B")


@pytest.fixture(name="book", scope="module")
def _book() -> Book:
    """Three families of three; "2.2" was measured beside "0.0" on A alone."""
    truth = sharing_kinds(3, 3, TYPES)
    return Book.of(
        {
            p: s
            for p, s in truth.items()
            if "2.2" not in p[:2] or ({*p[:2]} == {"2.2", "0.0"} and p[2] == "A")
        }
    )


@pytest.mark.parametrize("choice", Choice)
def test_partners_are_references_not_yet_measured_beside_on_types_that_can_be(
    book: Book, choice: Choice
) -> None:
    everything = next_partners(book, "2.2", TYPES, 99, choice=choice)
    assert len(set(everything)) == len(everything) == 2 * len(book.references) - 1
    assert Partner("0.0", "A") not in everything
    assert Partner("0.0", "B") in everything
    assert {p.gpu_type for p in next_partners(book, "2.2", ("B",), 3, choice=choice)} == {"B"}
    assert all(p.reference != "0.0" for p in next_partners(book, "0.0", TYPES, 99, choice=choice))


@pytest.mark.parametrize("choice", Choice)
def test_partners_are_the_same_for_the_same_seed_and_the_first_of_more(
    book: Book, choice: Choice
) -> None:
    four = next_partners(book, "new", TYPES, 4, choice=choice, seed=7)
    assert next_partners(book, "new", TYPES, 4, choice=choice, seed=7) == four
    assert next_partners(book, "new", TYPES, 2, choice=choice, seed=7) == four[:2]
    assert next_partners(book, "new", TYPES, 0, choice=choice, seed=7) == ()


def test_drawn_partners_differ_by_seed(book: Book) -> None:
    drawn = {
        next_partners(book, "new", TYPES, 3, choice=Choice.RANDOM, seed=seed) for seed in range(8)
    }
    assert len(drawn) > 1


def information(book: Book, partners: tuple[Partner, ...]) -> float:
    """log det of the precision after measuring beside these partners, from the definition."""
    rules = book.rules.settings
    precision = rules.regularisation * np.eye(rules.rank + 1)
    for partner in partners:
        for side in (0, 1):
            place = (
                book.types.index(partner.gpu_type) * len(book.references)
                + book.references.index(partner.reference)
            ) * 2 + side
            feature = np.array([1.0, *book.retained.factors[place, 1:]])
            precision += np.outer(feature, feature)
    return float(np.linalg.slogdet(precision)[1])


def test_informative_partners_tell_more_than_drawn_ones(book: Book) -> None:
    """Taking the best of each step gains at least 1 - 1/e of what the best set would (Nemhauser and
    others, 1978).
    """
    before = information(book, ())
    gained = information(book, next_partners(book, "new", TYPES, 3)) - before
    drawn = [
        information(book, next_partners(book, "new", TYPES, 3, choice=Choice.RANDOM, seed=seed))
        - before
        for seed in range(20)
    ]
    assert gained >= (1.0 - 1.0 / np.e) * max(drawn)
    assert gained > np.mean(drawn)


def test_the_first_informative_partner_is_the_most_telling_of_all(book: Book) -> None:
    (first,) = next_partners(book, "new", TYPES, 1)
    alone = [information(book, (Partner(r, t),)) for r in book.references for t in TYPES]
    assert information(book, (first,)) == pytest.approx(max(alone))


def test_informative_partners_are_of_unlike_families(book: Book) -> None:
    assert len({p.reference[0] for p in next_partners(book, "new", ("A",), 3)}) >= 2


def test_speeds_of_pairs_are_fractions_of_the_kinds_own(book: Book) -> None:
    alone = {("0.0", "A"): 2.0, ("1.0", "A"): 10.0, ("1.0", "B"): 5.0}
    rates = pair_rates(book, ("0.0", "1.0"), alone)
    own, others = rates["0.0", "1.0", "A"]
    assert (own / 2.0, others / 10.0) == pytest.approx(
        (book.measured["0.0", "1.0", "A"], book.measured["1.0", "0.0", "A"])
    )
    assert pair_rates(book, ("1.0", "0.0"), alone)["1.0", "0.0", "A"] == (others, own)
    of_a = {("0.0", "0.0", "A"), ("0.0", "1.0", "A"), ("1.0", "1.0", "A")}
    assert set(rates) == {*of_a, ("1.0", "1.0", "B")}


def test_if_one_of_two_cannot_run_beside_the_other_neither_can() -> None:
    truth = sharing_kinds(2, 2, ("A",))
    book = Book.of({**truth, ("0.0", "1.0", "A"): 0.0})
    alone = {("0.0", "A"): 1.0, ("1.0", "A"): 1.0}
    for kinds in (("0.0", "1.0"), ("1.0", "0.0")):
        assert pair_rates(book, kinds, alone)[*kinds, "A"] == (0.0, 0.0)


def test_sharing_is_worth_it_where_both_together_do_more_than_by_turns() -> None:
    pair = ("a", "b", "V100")
    assert worth_sharing(pair, (6.0, 5.0), {("a", "V100"): 10.0, ("b", "V100"): 10.0})
    assert not worth_sharing(pair, (5.0, 5.0), {("a", "V100"): 10.0, ("b", "V100"): 10.0})
    assert not worth_sharing(pair, (5.0, 5.0), {("a", "V100"): 0.0, ("b", "V100"): 1.0})


def test_errors_are_told_by_mean_and_quantiles() -> None:
    found = [PairError("k", "q", "A", 1.0 + e, 1.0) for e in (0.0, 0.1, -0.2, 0.3, 0.9)]
    summary = ErrorSummary.of(found)
    assert summary.count == 5
    assert [summary.mean, summary.median, summary.p90, summary.worst] == pytest.approx(
        [0.3, 0.2, 0.66, 0.9]
    )
    assert asdict(ErrorSummary.of(())) == {
        "count": 0, "mean": None, "median": None, "p90": None, "worst": None, "wrongly_possible": 0,
        "wrongly_impossible": 0,
    }  # fmt: skip


def test_pairs_that_cannot_share_are_counted_apart() -> None:
    found = [PairError("k", "q", "A", e, m) for e, m in ((0.5, 0.0), (0.0, 0.0), (0.0, 2.0))]
    summary = ErrorSummary.of(found)
    assert [e.error for e in found] == [None, None, 1.0]
    assert (summary.count, summary.worst, summary.wrongly_possible, summary.wrongly_impossible) == (
        3,
        1.0,
        1,
        1,
    )


def test_only_what_was_estimated_and_measured_is_compared() -> None:
    measured = {("a", "b", "A"): (1.0, 2.0), ("a", "c", "A"): (1.0, 1.0)}
    found = errors_of({("a", "b", "A"): (1.5, 2.0), ("a", "d", "A"): (9.0, 9.0)}, measured)
    assert found == [PairError("a", "b", "A", 1.5, 1.0), PairError("b", "a", "A", 2.0, 2.0)]


@given(known=st.floats(0.01, 100.0), measured=st.floats(0.01, 100.0), samples=st.integers(0, 50))
def test_a_measurement_moves_what_is_known_towards_it_and_the_first_replaces_it(
    known: float, measured: float, samples: int
) -> None:
    found = moved(known, measured, samples)
    assert min(known, measured) - 1e-9 <= found <= max(known, measured) + 1e-9
    assert abs(found - measured) <= (1.0 - ALPHA) * abs(known - measured) + 1e-9
    if samples == 0:
        assert found == measured


def test_equal_measurements_are_averaged_first_and_old_ones_fade() -> None:
    known = 0.0
    for samples, measured in enumerate((1.0, 2.0, 3.0)):
        known = moved(known, measured, samples)
    assert known == pytest.approx(2.0)
    for samples in range(3, 40):
        known = moved(known, 5.0, samples)
    assert known == pytest.approx(5.0, abs=0.01)
