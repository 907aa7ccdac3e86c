"""Reference kinds, likeness to them, and what it says of pairs nobody measured. Pure.

(Gavel, sections 3.3 and 6, figure 7.) Compared are *retained* fractions: s[k|q,t], the part of its
own speed on one GPU of type t that a job of kind k retains beside one of kind q; 0 where the two
cannot share. Reference kinds were measured beside many others. Every kind has a row, with two
columns for each (GPU type, reference): RETAINS, s[kind|reference,t], and LEAVES,
s[reference|kind,t].

The rows are completed twice: once whether the two can share at all (1 or 0), once the fractions of
those that can. The completed rows are a kind's *fingerprint*. The distance of two kinds is the root
mean square difference of their fingerprints, in which a column counts fully where both were
measured, and by `Rules.completed_weight` where one was completed. The nearest reference's row is
the first estimate of what nobody measured, mixed with the kind's own completed row
(`Rules.nearest_weight`). The estimate of a pair is the mean by its two rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite

import numpy as np

from profiling.pairs.completion import (
    DEFAULT,
    Bools,
    CompletionError,
    Floats,
    Ints,
    Settings,
    complete,
)

RETAINS, LEAVES = 0, 1

Pair = tuple[str, str, str]
"""(kind, the kind beside it, GPU type)."""

Retained = Mapping[Pair, float]
"""s[k|q,t] by (k, q, t)."""

Alone = Mapping[tuple[str, str], float]
"""steps/s of (kind, GPU type) with one GPU to itself."""

LEAST_PARTNERS = 3
"""Kinds beside which a reference must have been measured."""

MOST_REFERENCES = 40

MOST_RETAINED = 2.0
"""Greatest fraction that is believed: beside another, no kind is faster than alone."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Parameters of the estimates, chosen by measurement (docs/profiling.md).

    `completed_weight`: of a column with a completed entry in a distance. `nearest_weight`: of the
    nearest reference's row against the kind's own; 1 is the paper's. `possible`: least completed
    chance to share.
    """

    settings: Settings = DEFAULT
    completed_weight: float = 0.1
    nearest_weight: float = 0.5
    possible: float = 0.7


USUAL = Rules()


@dataclass(frozen=True)
class Table:
    """`values` float64[K, C]: measured where `observed`, else completed; NaN if never observed.

    `factors` float64[C, 1 + rank] of the completion's columns, NaN likewise.
    """

    values: Floats
    observed: Bools
    factors: Floats


@dataclass(frozen=True)
class Book:
    """Fingerprints by kind; column of (type t, reference r, side): [t * R + r] * 2 + side."""

    kinds: tuple[str, ...]
    references: tuple[str, ...]
    types: tuple[str, ...]
    measured: Retained
    retained: Table
    possible: Table
    rules: Rules

    @classmethod
    def of(
        cls,
        measured: Retained,
        references: Sequence[str] | None = None,
        *,
        rules: Rules = USUAL,
        seed: int = 0,
    ) -> Book:
        """Complete the measured fractions by these reference kinds (else `references_of`).

        ValueError for a negative or infinite fraction; CompletionError with fewer than two
        references, or where the completion does not converge.
        """
        _check(measured)
        chosen = tuple(sorted(references_of(measured) if references is None else set(references)))
        if len(chosen) < 2:
            raise CompletionError(
                f"{len(chosen)} reference kinds: measure at least 2 of them beside {LEAST_PARTNERS}"
                " kinds each"
            )
        told = [pair for pair in measured if pair[0] in chosen or pair[1] in chosen]
        types = tuple(sorted({gpu_type for *_, gpu_type in told}))
        kinds = tuple(sorted({kind for pair in told for kind in pair[:2]}))
        values = _rows(measured, kinds, chosen, types)
        seen = np.isfinite(values)
        runs = seen & (values > 0.0)
        possible = _table(np.where(runs, 1.0, 0.0), seen, rules.settings, seed)
        retained = _table(values, runs, rules.settings, seed)
        return cls(kinds, chosen, types, dict(measured), retained, possible, rules)

    @cached_property
    def row_of(self) -> Mapping[str, int]:
        return {kind: row for row, kind in enumerate(self.kinds)}

    @cached_property
    def distances(self) -> Floats:
        """float64[K, R]: distance of each kind to each reference; inf to itself or if unknown."""
        prints = np.hstack([self.retained.values, self.possible.values])
        seen = np.hstack([self.retained.observed, self.possible.observed])
        found = np.full((len(self.kinds), len(self.references)), np.inf)
        for r, reference in enumerate(self.references):
            if (row := self.row_of.get(reference)) is not None:
                found[:, r] = _distance(prints, seen, row, self.rules.completed_weight)
                found[row, r] = np.inf
        return found

    def estimates(self, kinds: Sequence[str]) -> Floats:
        """float64[T, n, n]: s[kinds[i]|kinds[j],t], measured or estimated; NaN if unknown."""
        rows = np.array([self.row_of.get(kind, -1) for kind in kinds], dtype=np.int64)
        retained, possible = self._mixed(self.retained), self._mixed(self.possible)
        found = np.full((len(self.types), len(kinds), len(kinds)), np.nan)
        for t in range(len(self.types)):
            at = self._columns(rows, t)
            chance = _both_ways(possible[:, t], rows, at)
            shares = _both_ways(retained[:, t], rows, at)
            found[t] = np.where(chance < self.rules.possible, 0.0, shares)
        self._put_measured(found, kinds)
        return found

    @cached_property
    def _nearest(self) -> Ints:
        """int64[K]: row of the nearest reference; the kind's own without any."""
        of_reference = np.array([self.row_of.get(r, -1) for r in self.references], dtype=np.int64)
        best = self.distances.argmin(axis=1)
        found = np.isfinite(self.distances.min(axis=1))
        return np.where(found, of_reference[best], np.arange(len(self.kinds)))

    def _mixed(self, table: Table) -> Floats:
        """float64[K, T, R, 2]: measured values, else a mix of own and nearest reference's row."""
        weight, own, near = self.rules.nearest_weight, table.values, table.values[self._nearest]
        mean = np.where(np.isnan(own), near, weight * near + (1.0 - weight) * own)
        mixed = np.where(np.isnan(near), own, mean)
        shape = (len(self.kinds), len(self.types), len(self.references), 2)
        return np.where(table.observed, own, mixed).reshape(shape)

    def _columns(self, rows: Ints, t: int) -> Ints:
        """int64[n]: reference whose columns stand for each kind on the type; -1 for none."""
        seen = self.possible.observed.any(axis=0)
        told = seen.reshape(len(self.types), len(self.references), 2)[t].any(axis=1)
        far = np.where(told, self.distances, np.inf)
        for r, reference in enumerate(self.references):
            if told[r] and reference in self.row_of:
                far[self.row_of[reference], r] = 0.0
        nearest = np.where(np.isfinite(far.min(axis=1)), far.argmin(axis=1), -1)
        return np.where(rows >= 0, nearest[rows], -1)

    def _put_measured(self, found: Floats, kinds: Sequence[str]) -> None:
        at = {kind: i for i, kind in enumerate(kinds)}
        types = {gpu_type: t for t, gpu_type in enumerate(self.types)}
        for (kind, beside, gpu_type), fraction in self.measured.items():
            if kind in at and beside in at and gpu_type in types:
                found[types[gpu_type], at[kind], at[beside]] = fraction


def retained_of(rates: Mapping[Pair, tuple[float, float]], alone: Alone) -> dict[Pair, float]:
    """Retained fractions where own speeds are known, at most MOST_RETAINED.

    Of a pair of one kind, the mean of both.
    """
    found: dict[Pair, float] = {}
    for (kind, other, gpu_type), (own, others) in rates.items():
        first, second = alone.get((kind, gpu_type), 0.0), alone.get((other, gpu_type), 0.0)
        if kind == other and first > 0:
            found[kind, kind, gpu_type] = (own + others) / 2.0 / first
        elif first > 0 and second > 0:
            found[kind, other, gpu_type] = own / first
            found[other, kind, gpu_type] = others / second
    return {pair: min(fraction, MOST_RETAINED) for pair, fraction in found.items()}


def references_of(
    measured: Retained, *, least: int = LEAST_PARTNERS, most: int = MOST_REFERENCES
) -> tuple[str, ...]:
    """Kinds measured beside the most others, with at least `least` partners; by name."""
    beside: dict[str, set[tuple[str, str]]] = {}
    for kind, other, gpu_type in measured:
        beside.setdefault(kind, set()).add((other, gpu_type))
    able = [kind for kind, seen in beside.items() if len({other for other, _ in seen}) >= least]
    return tuple(sorted(sorted(able, key=lambda kind: (-len(beside[kind]), kind))[:most]))


def _check(measured: Retained) -> None:
    for (kind, beside, gpu_type), fraction in measured.items():
        if not (isfinite(fraction) and fraction >= 0.0):
            raise ValueError(
                f"{kind} retains {fraction} beside {beside} on {gpu_type}: must be a finite number"
                " of 0 or more"
            )


def _rows(
    measured: Retained, kinds: Sequence[str], references: Sequence[str], types: Sequence[str]
) -> Floats:
    """float64[K, C], NaN where unmeasured."""
    values = np.full((len(kinds), len(types), len(references), 2), np.nan)
    of_kind, of_type = {k: i for i, k in enumerate(kinds)}, {t: i for i, t in enumerate(types)}
    of_reference = {r: i for i, r in enumerate(references)}
    for (kind, beside, gpu_type), fraction in measured.items():
        if beside in of_reference:
            values[of_kind[kind], of_type[gpu_type], of_reference[beside], RETAINS] = fraction
        if kind in of_reference:
            values[of_kind[beside], of_type[gpu_type], of_reference[kind], LEAVES] = fraction
    return values.reshape(len(kinds), -1)


def _table(values: Floats, observed: Bools, settings: Settings, seed: int) -> Table:
    """Complete the table; rows and columns without any observation are NaN."""
    rows, columns = (np.flatnonzero(observed.any(axis=axis)) for axis in (1, 0))
    filled = np.full(values.shape, np.nan)
    factors = np.full((values.shape[1], settings.rank + 1), np.nan)
    if len(rows):
        part, most = np.ix_(rows, columns), max(1.0, float(values[observed].max()))
        done = complete(values[part], observed[part], settings, seed=seed, most=most)
        filled[part], factors[columns] = done.values, done.columns
    return Table(filled, observed, factors)


def _distance(prints: Floats, seen: Bools, row: int, completed_weight: float) -> Floats:
    """float64[K]: weighted root mean square difference to this row; inf without common columns."""
    squares = (prints - prints[row]) ** 2
    weights = np.where(seen & seen[row], 1.0, completed_weight) * np.isfinite(squares)
    total = weights.sum(axis=1)
    sums = (weights * np.where(np.isfinite(squares), squares, 0.0)).sum(axis=1)
    return np.where(total > 0, np.sqrt(sums / np.where(total > 0, total, 1.0)), np.inf)


def _both_ways(table: Floats, rows: Ints, at: Ints) -> Floats:
    """float64[n, n]: s[i|j] of a type: mean of rows i and j of float64[K, R, 2]; NaN if none."""
    told = (rows >= 0) & (at >= 0)
    known = told[:, None] & told
    retains = np.where(known, table[rows[:, None], at, RETAINS], np.nan)
    leaves = np.where(known, table[rows, at[:, None], LEAVES], np.nan)
    mean = np.where(np.isnan(leaves), retains, (retains + leaves) / 2.0)
    return np.where(np.isnan(retains), leaves, mean)
