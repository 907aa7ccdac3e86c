"""Reference kinds beside which a new kind is profiled, and errors of estimated pairs. Pure.

`Choice.RANDOM` draws them by the seed (Gavel, section 6); `Choice.INFORMATIVE` takes those that
reduce the row's entropy most (D-optimal design, greedily): with column factors f_c and precision P
= c I + sum of f_c f_c^T over measured columns, a pair of columns F reduces it by log det(I + F P^-1
F^T).
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
    """Estimate and later measurement: steps/s beside another kind; 0: cannot share."""

    kind: str
    beside: str
    gpu_type: str
    estimated: float
    measured: float

    @property
    def error(self) -> float | None:
        """|estimated / measured - 1|; None where they cannot share."""
        return abs(self.estimated / self.measured - 1.0) if self.measured > 0 else None


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Errors of estimates: count, mean and quantiles (None without any).

    `wrongly_possible` counts those estimated to share that cannot, `wrongly_impossible` the reverse
    (with an error of 1).
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
        found = list(errors)
        values = np.array([e.error for e in found if e.error is not None], dtype=np.float64)
        possible = sum(e.measured == 0.0 and e.estimated > 0.0 for e in found)
        impossible = sum(e.measured > 0.0 and e.estimated == 0.0 for e in found)
        if not len(values):
            return cls(len(found), None, None, None, None, possible, impossible)
        median, p90, worst = (float(q) for q in np.quantile(values, (0.5, 0.9, 1.0)))
        return cls(len(found), float(values.mean()), median, p90, worst, possible, impossible)


def pair_rates(book: Book, kinds: Sequence[str], alone: Alone) -> dict[Pair, Rates]:
    """Known steps/s of each pair of these kinds on the book's types, once, in their order."""
    shares, found = book.estimates(kinds), dict[Pair, Rates]()
    for t, gpu_type in enumerate(book.types):
        own = np.array([alone.get((kind, gpu_type), 0.0) for kind in kinds])
        rates = np.where(own[:, None] > 0, shares[t] * own[:, None], np.nan)
        both = np.isfinite(rates) & np.isfinite(rates.T)
        for i, j in np.argwhere(np.triu(both)).tolist():
            pair = float(rates[i, j]), float(rates[j, i])
            # A pair shares or it does not: if either number says not, both do.
            found[kinds[i], kinds[j], gpu_type] = pair if min(pair) > 0.0 else (0.0, 0.0)
    return found


def worth_sharing(pair: Pair, rates: Rates, alone: Alone) -> bool:
    """Return True if the pair's normalised throughputs add up to over 1 (Gavel, section 3.1)."""
    first, second, gpu_type = pair
    own = alone[first, gpu_type], alone[second, gpu_type]
    return min(own) > 0.0 and sum(r / a for r, a in zip(rates, own, strict=True)) > 1.0


def views_of_pair(
    pair: Pair, rates: Rates, source: Source, age_s: float = 0.0
) -> Iterator[tuple[str, PairThroughput]]:
    """Yield (kind, its view of the pair) for both kinds, once for two jobs of one kind."""
    (first, second, gpu_type), (own, others) = pair, rates
    yield first, PairThroughput(second, gpu_type, own, others, source, age_s)
    if first != second:
        yield second, PairThroughput(first, gpu_type, others, own, source, age_s)


def next_partners(
    book: Book,
    kind: str,
    types: Collection[str],
    count: int,
    *,
    choice: Choice = Choice.INFORMATIVE,
    seed: int = 0,
) -> tuple[Partner, ...]:
    """Next `count` unmeasured partners of the kind on these GPU types, most informative first."""
    able = [
        Partner(reference, gpu_type)
        for gpu_type, reference in product(book.types, book.references)
        if gpu_type in types
        and reference != kind
        and (kind, reference, gpu_type) not in book.measured
    ]
    if choice is Choice.RANDOM:
        order = np.random.default_rng(seed).permutation(len(able))
        return tuple(able[i] for i in order[: max(0, count)])
    return _most_telling(book, kind, able, count)


def _most_telling(book: Book, kind: str, able: list[Partner], count: int) -> tuple[Partner, ...]:
    factors = _features(book)
    precision = book.rules.settings.regularisation * np.eye(factors.shape[1])
    if kind in book.row_of:
        seen = factors[book.retained.observed[book.row_of[kind]]]
        precision += seen.T @ seen
    columns = {partner: factors[_columns(book, partner)] for partner in able}
    chosen: list[Partner] = []
    while columns and len(chosen) < count:
        inverse = np.asarray(np.linalg.inv(precision), dtype=np.float64)
        best = max(columns, key=lambda partner: _gain(columns[partner], inverse))
        chosen.append(best)
        precision += columns[best].T @ columns[best]
        del columns[best]
    return tuple(chosen)


def _features(book: Book) -> Floats:
    """float64[C, 1 + rank]: (1, v_c); zeros for unknown columns."""
    factors = book.retained.factors
    with_one = np.hstack([np.ones((len(factors), 1)), factors[:, 1:]])
    features: Floats = np.where(np.isfinite(factors).all(axis=1, keepdims=True), with_one, 0.0)
    return features


def _columns(book: Book, partner: Partner) -> slice:
    row = book.types.index(partner.gpu_type) * len(book.references)
    first = 2 * (row + book.references.index(partner.reference))
    return slice(first, first + 2)


def _gain(columns: Floats, inverse: Floats) -> float:
    """log det(I + F P^-1 F^T), rounded so that equal ones tie."""
    _, value = np.linalg.slogdet(np.eye(len(columns)) + columns @ inverse @ columns.T)
    return round(float(value), 9)


def errors_of(estimated: Mapping[Pair, Rates], measured: Mapping[Pair, Rates]) -> list[PairError]:
    """Errors of every pair both estimated and measured."""
    found = []
    for (kind, other, gpu_type), (own, others) in measured.items():
        if (guess := estimated.get((kind, other, gpu_type))) is not None:
            found += [
                PairError(kind, other, gpu_type, guess[0], own),
                PairError(other, kind, gpu_type, guess[1], others),
            ]
    return found
