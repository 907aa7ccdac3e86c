"""Estimated speeds of pairs, their errors, and the partners of a new kind's pair runs. Pure.

The partners are reference kinds. `Choice.RANDOM` draws them by the seed (Gavel, section 6).
`Choice.INFORMATIVE` takes those that reduce the entropy of the kind's row most (greedy D-optimal
design): with column factors f_c and precision P = c I + sum of f_c f_c^T over measured columns, a
pair of columns F reduces it by log det(I + F P^-1 F^T).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import NamedTuple

import numpy as np

from policies.contract.snapshot import PairThroughput, Source
from profiling.pairs.completion import Floats
from profiling.pairs.fingerprints import Alone, Book, Pair

Rates = tuple[float, float]
"""steps/s of the first and of the second kind of a pair; 0 where they cannot share."""


class Choice(StrEnum):
    """Rule by which the partners of a new kind are chosen."""

    INFORMATIVE = "informative"
    RANDOM = "random"


class Partner(NamedTuple):
    """Reference kind and GPU type for a measurement."""

    reference: str
    gpu_type: str


@dataclass(frozen=True, slots=True)
class PairError:
    """Estimate and later measurement of steps/s beside another kind; 0: the two cannot share."""

    kind: str
    beside: str
    gpu_type: str
    estimated: float
    measured: float

    @property
    def error(self) -> float | None:
        """|estimated / measured - 1|; None if the two cannot share."""
        return abs(self.estimated / self.measured - 1.0) if self.measured > 0 else None


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Errors of estimates: count, mean and quantiles (None without any).

    `wrongly_possible`: pairs that were estimated to share a GPU and cannot. `wrongly_impossible`:
    the reverse, which are errors of 1.
    """

    count: int
    mean: float | None
    median: float | None
    p90: float | None
    worst: float | None
    wrongly_possible: int
    wrongly_impossible: int

    @classmethod
    def of(cls, errors: Iterable[PairError]) -> ErrorSummary:
        """Sum up errors."""
        pairs = list(errors)
        possible = sum(pair.measured == 0.0 and pair.estimated > 0.0 for pair in pairs)
        impossible = sum(pair.measured > 0.0 and pair.estimated == 0.0 for pair in pairs)
        values = np.array([p.error for p in pairs if p.error is not None], dtype=np.float64)
        if not len(values):
            return cls(len(pairs), None, None, None, None, possible, impossible)
        median, p90, worst = (float(q) for q in np.quantile(values, (0.5, 0.9, 1.0)))
        return cls(len(pairs), float(values.mean()), median, p90, worst, possible, impossible)


def pair_rates(book: Book, kinds: Sequence[str], alone: Alone) -> dict[Pair, Rates]:
    """Return the measured or estimated steps/s of each pair of these kinds on the book's types.

    `alone`: speeds of the kinds alone. A pair is there once, its kinds in the order of `kinds`.
    """
    retained = book.estimates(kinds)
    by_pair: dict[Pair, Rates] = {}
    for type_index, gpu_type in enumerate(book.types):
        speeds = np.array([alone.get((kind, gpu_type), 0.0) for kind in kinds])
        rates = np.where(speeds[:, None] > 0, retained[type_index] * speeds[:, None], np.nan)
        is_known = np.isfinite(rates) & np.isfinite(rates.T)
        for i, j in np.argwhere(np.triu(is_known)).tolist():
            both = (float(rates[i, j]), float(rates[j, i]))
            if min(both) <= 0.0:
                both = (0.0, 0.0)  # if one of the two cannot run, they cannot share
            by_pair[kinds[i], kinds[j], gpu_type] = both
    return by_pair


def worth_sharing(pair: Pair, rates: Rates, alone: Alone) -> bool:
    """Return True if the pair's normalised throughputs add up to over 1 (Gavel, section 3.1)."""
    first, second, gpu_type = pair
    first_alone = alone[first, gpu_type]
    second_alone = alone[second, gpu_type]
    if min(first_alone, second_alone) <= 0.0:
        return False
    first_rate, second_rate = rates
    return first_rate / first_alone + second_rate / second_alone > 1.0


def views_of_pair(
    pair: Pair, rates: Rates, source: Source, age_s: float = 0.0
) -> Iterator[tuple[str, PairThroughput]]:
    """Yield (kind, its view of the pair) for both kinds, once for two jobs of one kind."""
    first, second, gpu_type = pair
    first_rate, second_rate = rates
    yield first, PairThroughput(second, gpu_type, first_rate, second_rate, source, age_s)
    if first != second:
        yield second, PairThroughput(first, gpu_type, second_rate, first_rate, source, age_s)


def next_partners(
    book: Book,
    kind: str,
    types: Collection[str],
    count: int,
    *,
    choice: Choice = Choice.INFORMATIVE,
    seed: int = 0,
) -> tuple[Partner, ...]:
    """Return the next `count` unmeasured partners of the kind on these types, the best first."""
    candidates = []
    for gpu_type, reference in product(book.types, book.references):
        is_measured = (kind, reference, gpu_type) in book.measured
        if gpu_type in types and reference != kind and not is_measured:
            candidates.append(Partner(reference, gpu_type))
    if choice is Choice.RANDOM:
        order = np.random.default_rng(seed).permutation(len(candidates))
        return tuple(candidates[i] for i in order[: max(0, count)])
    return _most_informative(book, kind, candidates, count)


def _most_informative(
    book: Book, kind: str, candidates: list[Partner], count: int
) -> tuple[Partner, ...]:
    """Return the `count` partners that reduce the entropy of the kind's row most, greedily."""
    # 1. The precision by what is measured of the kind.
    factors = _features(book)
    precision = book.rules.settings.regularisation * np.eye(factors.shape[1])
    if kind in book.row_of:
        measured = factors[book.retained.observed[book.row_of[kind]]]
        precision += measured.T @ measured

    # 2. Add the best partner's columns to it, one after the other.
    columns = {partner: factors[_columns(book, partner)] for partner in candidates}
    chosen: list[Partner] = []
    while columns and len(chosen) < count:
        inverse = np.asarray(np.linalg.inv(precision), dtype=np.float64)
        best = max(columns, key=lambda partner: _gain(columns[partner], inverse))
        chosen.append(best)
        precision += columns[best].T @ columns[best]
        del columns[best]
    return tuple(chosen)


def _features(book: Book) -> Floats:
    """Return float64[C, 1 + rank]: (1, v_c) of each column; zeros for unknown ones."""
    factors = book.retained.factors
    with_one = np.hstack([np.ones((len(factors), 1)), factors[:, 1:]])
    features: Floats = np.where(np.isfinite(factors).all(axis=1, keepdims=True), with_one, 0.0)
    return features


def _columns(book: Book, partner: Partner) -> slice:
    """Return the two columns of a partner in the book's tables."""
    first_of_type = book.types.index(partner.gpu_type) * len(book.references)
    first = 2 * (first_of_type + book.references.index(partner.reference))
    return slice(first, first + 2)


def _gain(columns: Floats, inverse: Floats) -> float:
    """Return log det(I + F P^-1 F^T), rounded so that equal gains tie."""
    _, value = np.linalg.slogdet(np.eye(len(columns)) + columns @ inverse @ columns.T)
    return round(float(value), 9)


def errors_of(estimated: Mapping[Pair, Rates], measured: Mapping[Pair, Rates]) -> list[PairError]:
    """Return two errors, one by each kind, of every pair both estimated and measured."""
    errors = []
    for pair, (first_measured, second_measured) in measured.items():
        if pair not in estimated:
            continue
        first, second, gpu_type = pair
        first_estimate, second_estimate = estimated[pair]
        errors.append(PairError(first, second, gpu_type, first_estimate, first_measured))
        errors.append(PairError(second, first, gpu_type, second_estimate, second_measured))
    return errors
