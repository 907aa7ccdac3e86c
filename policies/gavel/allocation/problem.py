"""Problem of share policies: time on GPUs among classes of equal jobs (Gavel, section 3.1).

Jobs with the same throughputs, scale factor, weight, entity and willingness to share are
interchangeable in every objective without steps or queue positions, so a row here is a *class* of
`count` jobs, its share the time of all of them. Other objectives have classes of one job. Pairs of
classes share devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from policies.contract.snapshot import Bools, Floats, Ints, frozen


@dataclass(frozen=True, slots=True)
class Column:
    """A way to get time: GPUs of one type, on one node or (`spread`) several."""

    gpu_type: str
    spread: bool = False


@dataclass(frozen=True)
class AllocationProblem:
    """Classes m of jobs, columns c, and pairs p of classes whose jobs share their devices.

    `types` names of the GPU types; `gpus` float64[T], N_j; `columns` and `column_type` int64[C]
    their types: columns of a type share its GPUs. `rates` float64[M, C], T[m, c]: steps/s of one
    job of the class, 0 where it cannot run. `count` int64[M] jobs in the class, `scale` int64[M]
    GPUs of each (s_m), `weight` float64[M] (w_m > 0), `entity` int64[M] whose they are. `pairs`
    int64[P, 2]: classes that share, the first not above the second (equal: two jobs of one class,
    of which it needs two); both have the same scale. `pair_rates` float64[P, C, 2]: steps/s of a
    job of the first and of the second together (the same for two of one class).
    """

    types: tuple[str, ...]
    gpus: Floats
    columns: tuple[Column, ...]
    column_type: Ints
    rates: Floats
    count: Ints
    scale: Ints
    weight: Floats
    entity: Ints
    pairs: Ints
    pair_rates: Floats

    @cached_property
    def usage(self) -> Floats:
        """float64[T, C]: GPUs of each type that a GPU's worth of time in a column takes."""
        table = np.zeros((len(self.types), len(self.columns)))
        table[self.column_type, np.arange(len(self.columns))] = 1.0
        return frozen(table)

    @cached_property
    def type_column(self) -> Ints:
        """int64[M, T]: the usual column of a job on a type (`usual_columns`), or -1."""
        return frozen(self.usual_columns(self.rates > 0.0))

    def usual_columns(self, usable: Bools) -> Ints:
        """int64[R, T]: first usable (bool[R, C]) column of each type, consolidated first, or -1."""
        found = np.full((len(usable), len(self.types)), -1, dtype=np.int64)
        for c in sorted(range(len(self.columns)), key=lambda c: (not self.columns[c].spread, -c)):
            found[usable[:, c], self.column_type[c]] = c
        return found

    @cached_property
    def type_rates(self) -> Floats:
        """float64[M, T]: steps/s of a job on each type, in `type_column`; 0 where it cannot run."""
        one_each = self.column_type.tolist() == list(range(len(self.types)))
        if one_each and not any(c.spread for c in self.columns):
            return self.rates  # a column for each type, as nearly always
        rates = np.take_along_axis(self.rates, np.maximum(self.type_column, 0), axis=1)
        return frozen(np.where(self.type_column < 0, 0.0, rates))

    @cached_property
    def equal_rates(self) -> Floats:
        """float64[M]: throughput(m, X_equal): steps/s with equal time on every GPU."""
        return frozen(self.type_rates @ (self.gpus / max(float(self.gpus.sum()), 1.0)))

    @cached_property
    def fastest_rates(self) -> Floats:
        """float64[M]: throughput(m, X_fastest): steps/s with all time on its fastest type."""
        return frozen(self.rates.max(axis=1, initial=0.0))


@dataclass(frozen=True)
class Shares:
    """Shares of time: a job's part is its class's, divided by `count`.

    `alone` float64[M, C]: of all jobs of a class, as fractions of the wall clock (at most `count`);
    `paired` float64[P, C]: of all pairs of the two classes.
    """

    alone: Floats
    paired: Floats
    objective: float

    def throughput(self, problem: AllocationProblem) -> Floats:
        """float64[M]: throughput(m, X): steps/s of one job of each class (section 3.1)."""
        total: Floats = (self.alone * problem.rates).sum(axis=1)
        for side in (0, 1):
            of_pairs = (self.paired * problem.pair_rates[:, :, side]).sum(axis=1)
            np.add.at(total, problem.pairs[:, side], of_pairs)
        total /= problem.count
        return total


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Nonzeros of a matrix: value[i] at row[i], column[i]; duplicates add up."""

    row: Ints
    column: Ints
    value: Floats

    @classmethod
    def none(cls) -> Coefficients:
        """A matrix of zeros."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))

    @classmethod
    def joined(cls, *parts: Coefficients) -> Coefficients:
        """The sum of matrices."""
        of = zip(*[(p.row, p.column, p.value) for p in parts], strict=True)
        return cls(*map(np.concatenate, of))

    def below(self, rows: int) -> Coefficients:
        """The same matrix under as many rows of others."""
        return Coefficients(self.row + rows, self.column, self.value)

    def of_rows(self, factor: Floats) -> Coefficients:
        """Each row times its factor; rows of factor 0 are left empty."""
        kept = factor[self.row] != 0.0
        row = self.row[kept]
        return Coefficients(row, self.column[kept], self.value[kept] * factor[row])

    def packed(self, majors: int, by_rows: bool) -> tuple[Ints, Ints, Floats]:
        """(starts, indices, values) of compressed rows (`by_rows`) or columns."""
        major, minor = (self.row, self.column) if by_rows else (self.column, self.row)
        order = np.lexsort((minor, major))
        major, minor, value = major[order], minor[order], self.value[order]
        differs = (major[1:] != major[:-1]) | (minor[1:] != minor[:-1])
        first = np.flatnonzero(np.append(True, differs)[: len(major)])
        if len(first) < len(major):
            major, minor, value = major[first], minor[first], np.add.reduceat(value, first)
        starts = np.concatenate([[0], np.cumsum(np.bincount(major, minlength=majors))])
        return starts[:majors].astype(np.int64), minor, value


@dataclass(frozen=True)
class Variables:
    """Variables: one for each class, then each pair, and column where it runs.

    `of`, `column` int64[A]: of classes; `pair`, `pair_column` int64[B]: of pairs. Columns of types
    without a GPU are left out. A pair of one class needs two jobs: with n >= 2 of them, w in such
    pairs (2 w / n of each job's time) is feasible whenever the class's total, these pairs counted
    twice, is at most n - spread evenly over the n (n - 1) / 2 pairs of jobs.
    """

    problem: AllocationProblem
    of: Ints
    column: Ints
    pair: Ints
    pair_column: Ints

    @classmethod
    def of_problem(cls, problem: AllocationProblem) -> Variables:
        there = (problem.usage[problem.gpus <= 0.0] == 0.0).all(axis=0)
        of, column = np.nonzero((problem.rates > 0.0) & there)
        first, second = problem.pairs.T
        enough = (first != second) | (problem.count[first] >= 2)
        runs = (problem.pair_rates > 0.0).all(axis=2)
        pair, pair_column = np.nonzero(runs & enough[:, None] & there)
        return cls(problem, of, column, pair, pair_column)

    @cached_property
    def best_rates(self) -> Floats:
        """float64[M]: a job's highest steps/s, alone or beside another; 0 if nowhere."""
        best = np.zeros(len(self.problem.count))
        np.maximum.at(best, self.throughputs.row, self.throughputs.value)
        return frozen(best)

    @property
    def size(self) -> int:
        """Number of variables, A + B."""
        return len(self.of) + len(self.pair)

    @cached_property
    def columns(self) -> Ints:
        """int64[A + B]: the column of each variable."""
        return frozen(np.concatenate([self.column, self.pair_column]))

    @cached_property
    def pair_class(self) -> Ints:
        """int64[B]: the first class of each variable's pair."""
        return frozen(self.problem.pairs[self.pair, 0])

    @cached_property
    def scale(self) -> Ints:
        """int64[A + B]: GPUs that a job, or a pair, takes in each variable."""
        return frozen(self.problem.scale[np.concatenate([self.of, self.pair_class])])

    @cached_property
    def times(self) -> Coefficients:
        """[M, A + B]: time of the jobs of each class; a pair within a class takes that of two."""
        pairs = np.ones(len(self.pair))
        return self._by_class(np.ones(len(self.of)), pairs, pairs)

    @cached_property
    def throughputs(self) -> Coefficients:
        """[M, A + B]: steps/s of all jobs of each class together."""
        both = self.problem.pair_rates[self.pair, self.pair_column]
        return self._by_class(self.problem.rates[self.of, self.column], both[:, 0], both[:, 1])

    def _by_class(self, alone: Floats, first: Floats, second: Floats) -> Coefficients:
        pairs, at = self.problem.pairs[self.pair], len(self.of) + np.arange(len(self.pair))
        rows = np.concatenate([self.of, pairs[:, 0], pairs[:, 1]])
        columns = np.concatenate([np.arange(len(self.of)), at, at])
        return Coefficients(rows, columns, np.concatenate([alone, first, second]))

    @cached_property
    def gpus(self) -> Coefficients:
        """[T, A + B]: GPUs of each type taken."""
        taken = self.problem.usage[:, self.columns] * self.scale
        types, column = np.nonzero(taken)
        return Coefficients(types, column, taken[types, column])

    def sums(self, per_class: Floats) -> Floats:
        """float64[A + B]: coefficient of each variable in sum_m per_class[m] * throughput."""
        weighted = self.throughputs.of_rows(per_class)
        return added(weighted.column, weighted.value, self.size)


def added(index: Ints, value: Floats, size: int) -> Floats:
    """float64[size]: the sum of the values at each index."""
    return np.bincount(index, weights=value, minlength=size).astype(np.float64)
