"""Estimates of unmeasured pairs by the likeness of kinds to reference kinds. Pure.

(Gavel, sections 3.3 and 6, figure 7.) Compared are *retained* fractions s[k|q,t]: the part of its
own speed on one GPU of type t that a job of kind k retains beside one of kind q; 0 if the two
cannot share. Reference kinds are measured beside many others. Every kind has a row, with two
columns for each (GPU type, reference): RETAINS, s[kind|reference,t], and LEAVES,
s[reference|kind,t].

The rows are completed twice: as a table of 1 and 0 for pairs that can share or not, and as a table
of the fractions of those that can. The completed rows are a kind's *fingerprint*. The distance of
two kinds is the root mean square difference of their fingerprints, in which a column has weight 1
if both kinds were measured, and `Rules.completed_weight` if one was completed. An unmeasured entry
of a kind is estimated by its own completed row, mixed with that of the nearest reference
(`Rules.nearest_weight`). The estimate of a pair is the mean by its two kinds' rows.
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

RETAINS = 0
LEAVES = 1
"""Positions of the two columns of a reference."""

Pair = tuple[str, str, str]
"""(kind, the kind beside it, GPU type)."""

Retained = Mapping[Pair, float]
"""s[k|q,t] by (k, q, t)."""

Alone = Mapping[tuple[str, str], float]
"""steps/s of (kind, GPU type) with one GPU to itself."""

LEAST_PARTNERS = 3
"""Fewest kinds beside which a reference must have been measured."""

MOST_REFERENCES = 40
"""Most reference kinds."""

MOST_RETAINED = 2.0
"""Largest fraction that is believed: beside another kind, none is faster than alone."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Parameters of the estimates, chosen by measurement (docs/profiling.md).

    `completed_weight`: of a column with a completed entry in a distance. `nearest_weight`: of the
    nearest reference's row against the kind's own; 1 in the paper. `possible`: least completed
    chance of a pair that is taken to share.
    """

    settings: Settings = DEFAULT
    completed_weight: float = 0.1
    nearest_weight: float = 0.5
    possible: float = 0.7


USUAL = Rules()


@dataclass(frozen=True)
class Table:
    """Completed table of K kinds.

    `values` float64[K, C]: measured where `observed`, else completed; NaN in rows and columns that
    were never observed. `factors` float64[C, 1 + rank]: of the completion's columns; NaN likewise.
    """

    values: Floats
    observed: Bools
    factors: Floats


@dataclass(frozen=True)
class Book:
    """Fingerprints of kinds.

    The column of (type t, reference r, RETAINS or LEAVES) in both tables is (t * R + r) * 2 + that.
    """

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
        """Complete the measured fractions by these reference kinds (None: `references_of`).

        Raises ValueError for a negative or infinite fraction, and CompletionError with fewer than
        two references, or if the completion does not converge.
        """
        # 1. The reference kinds.
        _check(measured)
        if references is None:
            references = references_of(measured)
        chosen = tuple(sorted(set(references)))
        if len(chosen) < 2:
            raise CompletionError(
                f"{len(chosen)} reference kinds: measure at least 2 of them beside {LEAST_PARTNERS}"
                " kinds each"
            )

        # 2. The kinds that were measured beside one of them, and the types.
        all_kinds: set[str] = set()
        all_types: set[str] = set()
        for first, second, gpu_type in measured:
            if first in chosen or second in chosen:
                all_kinds.update((first, second))
                all_types.add(gpu_type)
        kinds = tuple(sorted(all_kinds))
        types = tuple(sorted(all_types))

        # 3. The two tables.
        values = _rows(measured, kinds, chosen, types)
        is_measured = np.isfinite(values)
        can_share = is_measured & (values > 0.0)
        possible = _table(np.where(can_share, 1.0, 0.0), is_measured, rules.settings, seed)
        retained = _table(values, can_share, rules.settings, seed)
        return cls(kinds, chosen, types, dict(measured), retained, possible, rules)

    @cached_property
    def row_of(self) -> Mapping[str, int]:
        """Row of each kind in the tables."""
        return {kind: row for row, kind in enumerate(self.kinds)}

    @cached_property
    def distances(self) -> Floats:
        """float64[K, R]: distance of each kind to each reference; inf to itself or if unknown."""
        fingerprints = np.hstack([self.retained.values, self.possible.values])
        observed = np.hstack([self.retained.observed, self.possible.observed])
        distances = np.full((len(self.kinds), len(self.references)), np.inf)
        for column, reference in enumerate(self.references):
            row = self.row_of.get(reference)
            if row is not None:
                weight = self.rules.completed_weight
                distances[:, column] = _distance(fingerprints, observed, row, weight)
                distances[row, column] = np.inf
        return distances

    def estimates(self, kinds: Sequence[str]) -> Floats:
        """Return float64[T, n, n]: s[kinds[i]|kinds[j],t] or its estimate; NaN if unknown."""
        # 1. Estimates by both kinds' rows.
        rows = np.array([self.row_of.get(kind, -1) for kind in kinds], dtype=np.int64)
        retained = self._mixed(self.retained)
        possible = self._mixed(self.possible)
        fractions = np.full((len(self.types), len(kinds), len(kinds)), np.nan)
        for t in range(len(self.types)):
            stand_ins = self._stand_ins(rows, t)
            chance = _both_ways(possible[:, t], rows, stand_ins)
            if_possible = _both_ways(retained[:, t], rows, stand_ins)
            fractions[t] = np.where(chance < self.rules.possible, 0.0, if_possible)

        # 2. Measured fractions in their place.
        position = {kind: i for i, kind in enumerate(kinds)}
        type_position = {gpu_type: t for t, gpu_type in enumerate(self.types)}
        for (kind, beside, gpu_type), fraction in self.measured.items():
            if kind in position and beside in position and gpu_type in type_position:
                fractions[type_position[gpu_type], position[kind], position[beside]] = fraction
        return fractions

    @cached_property
    def _nearest(self) -> Ints:
        """int64[K]: row of each kind's nearest reference; its own row if there is none."""
        reference_rows = [self.row_of.get(reference, -1) for reference in self.references]
        nearest = np.array(reference_rows, dtype=np.int64)[self.distances.argmin(axis=1)]
        has_nearest = np.isfinite(self.distances.min(axis=1))
        return np.where(has_nearest, nearest, np.arange(len(self.kinds)))

    def _mixed(self, table: Table) -> Floats:
        """Return float64[K, T, R, 2]: measured values, else a mix of own and nearest row."""
        weight = self.rules.nearest_weight
        own = table.values
        nearest = table.values[self._nearest]
        mean = np.where(np.isnan(own), nearest, weight * nearest + (1.0 - weight) * own)
        mixed = np.where(np.isnan(nearest), own, mean)
        shape = (len(self.kinds), len(self.types), len(self.references), 2)
        return np.where(table.observed, own, mixed).reshape(shape)

    def _stand_ins(self, rows: Ints, t: int) -> Ints:
        """Return int64[n]: reference whose columns stand for the kind of each row; -1 for none.

        A reference stands for itself, another kind is represented by its nearest reference that is
        measured on the type `t`.
        """
        observed = self.possible.observed.any(axis=0)
        on_type = observed.reshape(len(self.types), len(self.references), 2)[t]
        is_measured = on_type.any(axis=1)
        distances = np.where(is_measured, self.distances, np.inf)
        for column, reference in enumerate(self.references):
            if is_measured[column] and reference in self.row_of:
                distances[self.row_of[reference], column] = 0.0
        has_nearest = np.isfinite(distances.min(axis=1))
        nearest = np.where(has_nearest, distances.argmin(axis=1), -1)
        return np.where(rows >= 0, nearest[rows], -1)


def retained_of(rates: Mapping[Pair, tuple[float, float]], alone: Alone) -> dict[Pair, float]:
    """Return retained fractions of pairs whose speeds alone are known, at most MOST_RETAINED.

    `rates`: steps/s of the first and the second kind of a pair. Of a pair of one kind, the fraction
    is the mean of both.
    """
    fractions: dict[Pair, float] = {}
    for (first, second, gpu_type), (first_rate, second_rate) in rates.items():
        first_alone = alone.get((first, gpu_type), 0.0)
        second_alone = alone.get((second, gpu_type), 0.0)
        if first == second and first_alone > 0:
            fractions[first, first, gpu_type] = (first_rate + second_rate) / 2.0 / first_alone
        elif first_alone > 0 and second_alone > 0:
            fractions[first, second, gpu_type] = first_rate / first_alone
            fractions[second, first, gpu_type] = second_rate / second_alone
    return {pair: min(fraction, MOST_RETAINED) for pair, fraction in fractions.items()}


def references_of(
    measured: Retained, *, least: int = LEAST_PARTNERS, most: int = MOST_REFERENCES
) -> tuple[str, ...]:
    """Return the `most` kinds measured most often beside others, sorted by name.

    A reference was measured beside at least `least` kinds.
    """
    measured_beside: dict[str, set[tuple[str, str]]] = {}
    for kind, other, gpu_type in measured:
        measured_beside.setdefault(kind, set()).add((other, gpu_type))
    candidates = []
    for kind, partners in measured_beside.items():
        if len({other for other, _ in partners}) >= least:
            candidates.append(kind)
    candidates.sort(key=lambda kind: (-len(measured_beside[kind]), kind))
    return tuple(sorted(candidates[:most]))


def _check(measured: Retained) -> None:
    """Raise ValueError for a fraction that is negative or not finite."""
    for (kind, beside, gpu_type), fraction in measured.items():
        if not (isfinite(fraction) and fraction >= 0.0):
            raise ValueError(
                f"{kind} retains {fraction} beside {beside} on {gpu_type}: must be a finite number"
                " of 0 or more"
            )


def _rows(
    measured: Retained, kinds: Sequence[str], references: Sequence[str], types: Sequence[str]
) -> Floats:
    """Return float64[K, C], NaN where unmeasured."""
    values = np.full((len(kinds), len(types), len(references), 2), np.nan)
    row = {kind: i for i, kind in enumerate(kinds)}
    type_position = {gpu_type: t for t, gpu_type in enumerate(types)}
    column = {reference: r for r, reference in enumerate(references)}
    for (kind, beside, gpu_type), fraction in measured.items():
        if beside in column:
            values[row[kind], type_position[gpu_type], column[beside], RETAINS] = fraction
        if kind in column:
            values[row[beside], type_position[gpu_type], column[kind], LEAVES] = fraction
    return values.reshape(len(kinds), -1)


def _table(values: Floats, observed: Bools, settings: Settings, seed: int) -> Table:
    """Complete the table; rows and columns without any observation are NaN."""
    rows = np.flatnonzero(observed.any(axis=1))
    columns = np.flatnonzero(observed.any(axis=0))
    completed = np.full(values.shape, np.nan)
    factors = np.full((values.shape[1], settings.rank + 1), np.nan)
    if len(rows):
        part = np.ix_(rows, columns)
        most = max(1.0, float(values[observed].max()))
        completion = complete(values[part], observed[part], settings, seed=seed, most=most)
        completed[part] = completion.values
        factors[columns] = completion.columns
    return Table(completed, observed, factors)


def _distance(fingerprints: Floats, observed: Bools, row: int, completed_weight: float) -> Floats:
    """Return float64[K]: weighted root mean square difference of each fingerprint to a row's.

    It is inf for one without a column in common.
    """
    squares = (fingerprints - fingerprints[row]) ** 2
    both_observed = observed & observed[row]
    weights = np.where(both_observed, 1.0, completed_weight) * np.isfinite(squares)
    total = weights.sum(axis=1)
    sums = (weights * np.where(np.isfinite(squares), squares, 0.0)).sum(axis=1)
    return np.where(total > 0, np.sqrt(sums / np.where(total > 0, total, 1.0)), np.inf)


def _both_ways(table: Floats, rows: Ints, stand_ins: Ints) -> Floats:
    """Return float64[n, n]: s[i|j] of a type, the mean by the rows of i and of j; NaN if unknown.

    `table` float64[K, R, 2]. `rows`, `stand_ins` int64[n]: row of each kind, and the reference
    whose columns stand for it.
    """
    has_both = (rows >= 0) & (stand_ins >= 0)
    known = has_both[:, None] & has_both
    retains = np.where(known, table[rows[:, None], stand_ins, RETAINS], np.nan)
    leaves = np.where(known, table[rows, stand_ins[:, None], LEAVES], np.nan)
    mean = np.where(np.isnan(leaves), retains, (retains + leaves) / 2.0)
    return np.where(np.isnan(retains), leaves, mean)
