"""Problem of share policies: time on GPUs among classes of equal jobs (Gavel, section 3.1).

Jobs with the same throughputs, scale factor, weight, entity and willingness to share are
interchangeable in every objective without steps or queue positions. So a row here is a *class* of
`count` jobs; its share is the time of all of them together. For other objectives every job is a
class. Pairs of classes are rows of their own: two jobs that share devices.
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
    """M classes of jobs, C columns, T GPU types, and P pairs of classes that share devices."""

    types: tuple[str, ...]
    """Names of the GPU types."""
    gpus: Floats
    """float64[T], N_j: GPUs of each type."""
    columns: tuple[Column, ...]
    column_type: Ints
    """int64[C]: type of each column; columns of a type divide its GPUs."""

    rates: Floats
    """float64[M, C], T[m, c]: steps/s of one job of the class, 0 where it cannot run."""
    count: Ints
    """int64[M]: jobs in the class."""
    scale: Ints
    """int64[M], s_m: GPUs of each job."""
    weight: Floats
    """float64[M], w_m > 0: weight of each job."""
    entity: Ints
    """int64[M]: number of the team, or user of a team, that has the class."""

    pairs: Ints
    """int64[P, 2]: classes of a pair, of equal scale, the first number not above the second.

    If they are equal, two jobs of one class share.
    """
    pair_rates: Floats
    """float64[P, C, 2]: steps/s of a job of the first class and of one of the second together."""

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
        """int64[R, T]: the column of each type in which each row usually runs, or -1.

        `usable` bool[R, C]. A column on one node goes before one that is spread.
        """
        usual = np.full((len(usable), len(self.types)), -1, dtype=np.int64)
        last_first = sorted(
            range(len(self.columns)), key=lambda c: (not self.columns[c].spread, -c)
        )
        for c in last_first:
            usual[usable[:, c], self.column_type[c]] = c
        return usual

    @cached_property
    def type_rates(self) -> Floats:
        """float64[M, T]: steps/s of a job on each type, in `type_column`; 0 where it cannot run."""
        has_one_each = self.column_type.tolist() == list(range(len(self.types)))
        if has_one_each and not any(column.spread for column in self.columns):
            return self.rates  # as nearly always
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
    """Shares of time, as fractions of the wall clock.

    `alone` float64[M, C]: of all jobs of a class together, at most `count`; each job has an equal
    part. `paired` float64[P, C]: of all pairs of the two classes together. `objective`: its value
    in the policy's program.
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
    """Sparse matrix: value[i] at row[i], column[i]; duplicates add up."""

    row: Ints
    column: Ints
    value: Floats

    @classmethod
    def none(cls) -> Coefficients:
        """Return a matrix of zeros."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))

    @classmethod
    def joined(cls, *parts: Coefficients) -> Coefficients:
        """Return the sum of matrices."""
        return cls(
            np.concatenate([part.row for part in parts]),
            np.concatenate([part.column for part in parts]),
            np.concatenate([part.value for part in parts]),
        )

    def below(self, rows: int) -> Coefficients:
        """Return the same matrix under so many rows of zeros."""
        return Coefficients(self.row + rows, self.column, self.value)

    def of_rows(self, factor: Floats) -> Coefficients:
        """Return each row times its factor; rows of factor 0 are left empty."""
        kept = factor[self.row] != 0.0
        row = self.row[kept]
        return Coefficients(row, self.column[kept], self.value[kept] * factor[row])

    def packed(self, majors: int, by_rows: bool) -> tuple[Ints, Ints, Floats]:
        """Return (starts, indices, values) of compressed rows (`by_rows`) or columns.

        `majors`: the number of these rows or columns.
        """
        # 1. Sort by row and column, or by column and row.
        if by_rows:
            major, minor = self.row, self.column
        else:
            major, minor = self.column, self.row
        order = np.lexsort((minor, major))
        major = major[order]
        minor = minor[order]
        value = self.value[order]

        # 2. Add up duplicates.
        differs = (major[1:] != major[:-1]) | (minor[1:] != minor[:-1])
        first = np.flatnonzero(np.append(True, differs)[: len(major)])
        if len(first) < len(major):
            major = major[first]
            minor = minor[first]
            value = np.add.reduceat(value, first)

        # 3. The first element of each row or column.
        starts = np.concatenate([[0], np.cumsum(np.bincount(major, minlength=majors))])
        return starts[:majors].astype(np.int64), minor, value


@dataclass(frozen=True)
class Variables:
    """Variables of a program: the time of each class on each column where it runs, then of pairs.

    `alone_class`, `alone_column` int64[A]: class and column of the former; `pair`, `pair_column`
    int64[B]: of the latter. Columns of types without a GPU are left out.

    A pair of one class needs two jobs. With n >= 2 of them, w in such pairs (2 w / n of each job's
    time) is feasible whenever the class's total, these pairs counted twice, is at most n: spread
    evenly over the n (n - 1) / 2 pairs of jobs.
    """

    problem: AllocationProblem
    alone_class: Ints
    alone_column: Ints
    pair: Ints
    pair_column: Ints

    @classmethod
    def of_problem(cls, problem: AllocationProblem) -> Variables:
        """Return the variables of a problem."""
        has_gpus = (problem.usage[problem.gpus <= 0.0] == 0.0).all(axis=0)
        alone_class, alone_column = np.nonzero((problem.rates > 0.0) & has_gpus)
        first, second = problem.pairs.T
        has_two_jobs = (first != second) | (problem.count[first] >= 2)
        can_run = (problem.pair_rates > 0.0).all(axis=2)
        pair, pair_column = np.nonzero(can_run & has_two_jobs[:, None] & has_gpus)
        return cls(problem, alone_class, alone_column, pair, pair_column)

    @property
    def alone_size(self) -> int:
        """Number of variables of classes, A."""
        return len(self.alone_class)

    @cached_property
    def best_rates(self) -> Floats:
        """float64[M]: a job's highest steps/s, alone or beside another; 0 if nowhere."""
        best = np.zeros(len(self.problem.count))
        np.maximum.at(best, self.throughputs.row, self.throughputs.value)
        return frozen(best)

    @property
    def size(self) -> int:
        """Number of variables, A + B."""
        return len(self.alone_class) + len(self.pair)

    @cached_property
    def columns(self) -> Ints:
        """int64[A + B]: the column of each variable."""
        return frozen(np.concatenate([self.alone_column, self.pair_column]))

    @cached_property
    def classes(self) -> Ints:
        """int64[A + B]: the class of each variable, of a pair the first."""
        return frozen(np.concatenate([self.alone_class, self.problem.pairs[self.pair, 0]]))

    @cached_property
    def scale(self) -> Ints:
        """int64[A + B]: GPUs that a job, or a pair, takes in each variable."""
        return frozen(self.problem.scale[self.classes])

    @cached_property
    def times(self) -> Coefficients:
        """[M, A + B]: time of the jobs of each class; a pair within a class takes that of two."""
        of_pairs = np.ones(len(self.pair))
        return self._by_class(np.ones(self.alone_size), of_pairs, of_pairs)

    @cached_property
    def throughputs(self) -> Coefficients:
        """[M, A + B]: steps/s of all jobs of each class together."""
        alone = self.problem.rates[self.alone_class, self.alone_column]
        of_pairs = self.problem.pair_rates[self.pair, self.pair_column]
        return self._by_class(alone, of_pairs[:, 0], of_pairs[:, 1])

    def _by_class(self, alone: Floats, first: Floats, second: Floats) -> Coefficients:
        """[M, A + B]: these values float64[A], float64[B] twice, in the rows of the classes.

        A pair has one value in the row of its first class, and one in that of its second.
        """
        pairs = self.problem.pairs[self.pair]
        alone_variables = np.arange(self.alone_size)
        pair_variables = self.alone_size + np.arange(len(self.pair))
        return Coefficients(
            row=np.concatenate([self.alone_class, pairs[:, 0], pairs[:, 1]]),
            column=np.concatenate([alone_variables, pair_variables, pair_variables]),
            value=np.concatenate([alone, first, second]),
        )

    @cached_property
    def gpus(self) -> Coefficients:
        """[T, A + B]: GPUs of each type that a variable takes."""
        taken = self.problem.usage[:, self.columns] * self.scale
        gpu_type, variable = np.nonzero(taken)
        return Coefficients(gpu_type, variable, taken[gpu_type, variable])

    def sums(self, per_class: Floats) -> Floats:
        """float64[A + B]: coefficient of each variable in sum_m per_class[m] * throughput."""
        weighted = self.throughputs.of_rows(per_class)
        return added(weighted.column, weighted.value, self.size)


def added(index: Ints, value: Floats, size: int) -> Floats:
    """float64[size]: the sum of the values at each index."""
    return np.bincount(index, weights=value, minlength=size).astype(np.float64)
