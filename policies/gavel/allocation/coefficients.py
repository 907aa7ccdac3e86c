"""Sparse matrices by nonzeros, and the variables of the linear programs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from policies.contract.snapshot import Floats, Ints, frozen
from policies.gavel.allocation.problem import AllocationProblem


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
        rows, columns = (
            np.concatenate([p.row for p in parts]),
            np.concatenate([p.column for p in parts]),
        )
        return cls(rows, columns, np.concatenate([p.value for p in parts]))

    def below(self, rows: int) -> Coefficients:
        """The same matrix under as many rows of others."""
        return Coefficients(self.row + rows, self.column, self.value)

    def of_rows(self, factor: Floats) -> Coefficients:
        """Each row times its factor; rows of factor 0 are left empty."""
        kept = factor[self.row] != 0.0
        return Coefficients(
            self.row[kept], self.column[kept], self.value[kept] * factor[self.row[kept]]
        )

    def packed(self, majors: int, by_rows: bool) -> tuple[Ints, Ints, Floats]:
        """(starts, indices, values) of compressed rows (`by_rows`) or columns."""
        major, minor = (self.row, self.column) if by_rows else (self.column, self.row)
        order = np.lexsort((minor, major))
        major, minor, value = major[order], minor[order], self.value[order]
        first = np.flatnonzero(
            np.append(True, (major[1:] != major[:-1]) | (minor[1:] != minor[:-1]))[: len(major)]
        )
        if len(first) < len(major):
            major, minor, value = major[first], minor[first], np.add.reduceat(value, first)
        starts = np.concatenate([[0], np.cumsum(np.bincount(major, minlength=majors))[:-1]]).astype(
            np.int64
        )
        return starts[:majors], minor, value


@dataclass(frozen=True)
class Variables:
    """Where time can be given: one variable for each class and column in which its jobs run, then
    one for each pair and column in which both its jobs do; columns of types that have no GPU are
    left out.

    `of`, `column` int64[A] say whose and where the former are, `pair`, `pair_column` int64[B] the
    latter.

    A pair of one class needs two jobs: with n >= 2 of them, w in such pairs (2 w / n of each job's
    time) can be had whenever the class's total, these pairs counted twice, is at most n - spread
    evenly over the n (n - 1) / 2 pairs of jobs.
    """

    problem: AllocationProblem
    of: Ints
    column: Ints
    pair: Ints
    pair_column: Ints

    @classmethod
    def of_problem(cls, problem: AllocationProblem) -> Variables:
        """The variables of a problem."""
        there = (problem.usage[problem.gpus <= 0.0] == 0.0).all(axis=0)
        of, column = np.nonzero((problem.rates > 0.0) & there)
        first, second = problem.pairs.T
        enough = (first != second) | (problem.count[first] >= 2)
        pair, pair_column = np.nonzero(
            (problem.pair_rates > 0.0).all(axis=2) & enough[:, None] & there
        )
        return cls(problem, of, column, pair, pair_column)

    @cached_property
    def best_rates(self) -> Floats:
        """float64[M]: a job's highest steps/s, alone or beside another; 0 if nowhere."""
        best = np.zeros(len(self.problem.count))
        np.maximum.at(best, self.throughputs.row, self.throughputs.value)
        return frozen(best)

    @property
    def size(self) -> int:
        """How many variables: A + B."""
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
        return self._by_class(
            np.ones(len(self.of)), np.ones(len(self.pair)), np.ones(len(self.pair))
        )

    @cached_property
    def throughputs(self) -> Coefficients:
        """[M, A + B]: steps/s of all jobs of each class together."""
        both = self.problem.pair_rates[self.pair, self.pair_column]
        return self._by_class(self.problem.rates[self.of, self.column], both[:, 0], both[:, 1])

    def _by_class(self, alone: Floats, first: Floats, second: Floats) -> Coefficients:
        pairs, at = self.problem.pairs[self.pair], len(self.of) + np.arange(len(self.pair))
        rows = np.concatenate([self.of, pairs[:, 0], pairs[:, 1]])
        return Coefficients(
            rows,
            np.concatenate([np.arange(len(self.of)), at, at]),
            np.concatenate([alone, first, second]),
        )

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
