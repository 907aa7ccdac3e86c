"""Max-min programs: raise the lowest of the classes' scaled throughputs (fairness, makespan).

max z   s.t.   per_m * throughput of a job of m  >=  z   for every class m with per_m > 0,   and the
feasible set
"""

from __future__ import annotations

import numpy as np

from policies.contract.snapshot import Floats
from policies.gavel.allocation.problem import AllocationProblem, Shares
from policies.gavel.solvers.program import PRICED, Method, Program


class Scaled:
    """A program with a row for each class that counts: per_m * throughput of a job of m, in parts
    of `unit`, at least 0.

    `of` int64[K] are the classes that count, those with per_m > 0 that can run; `rows` int64[K]
    theirs, `best` float64[K] what a job has in them with all its time where it runs fastest. If
    none is given, the unit is about the most that the lowest of them can be, so that rows are near
    1 however many jobs share however few GPUs.
    """

    def __init__(self, problem: AllocationProblem, per: Floats, unit: float | None = None) -> None:
        self.program = Program(problem)
        best = per * self.program.variables.best_rates
        self.of = np.flatnonzero(best > 0.0)
        self.unit = unit or highest_level(problem, best)
        scaled = self.program.bounded(np.where(best > 0.0, per / self.unit, 0.0))
        self.best = (scaled * self.program.variables.best_rates)[self.of]
        self.rows = self.program.add_throughputs(scaled, 0.0)


class Levels(Scaled):
    """Rows less a level that all have in common, a column of its own."""

    def __init__(self, problem: AllocationProblem, per: Floats) -> None:
        super().__init__(problem, per)
        self.level = self.program.add_column(self.rows, np.full(len(self.rows), -1.0))

    def raised(self, method: Method | None = None) -> float:
        """The highest level that all classes can have at once."""
        self.program.maximise(np.ones(1), np.array([self.level]))
        return self.program.solve(method) * self.unit

    def fill(self) -> None:
        """Give what the highest level leaves: the highest sum of throughputs, each to its job's
        fastest, with nobody below it.

        Where every class that can run has a price on its row, each has exactly the level in every
        optimum (complementary slackness), and there is nothing to give.
        """
        priced = int((np.abs(self.program.duals(self.rows)) > PRICED).sum())
        if priced == (self.program.variables.best_rates > 0.0).sum():
            return
        self.program.keep_optimum()
        self.program.maximise(
            self.program.variables.sums(inverse(self.program.problem.fastest_rates))
        )
        self.program.solve()


def max_min(
    problem: AllocationProblem, per: Floats, fill: bool, method: Method | None = None
) -> Shares:
    """Shares of the highest level (their objective) of per_m * throughput(m, X), over classes with
    per_m > 0 that can run at all.

    With `fill`, time that the level leaves over goes to whom it brings most. An objective of 0
    where there is no such class. Raises SolverFailedError.
    """
    levels = Levels(problem, per)
    if not len(levels.of):
        return idle(problem)
    level = levels.raised(method)
    if fill:
        levels.fill()
    return levels.program.shares(level)


def idle(problem: AllocationProblem) -> Shares:
    """Nobody gets anything."""
    return Shares(np.zeros(problem.rates.shape), np.zeros(problem.pair_rates.shape[:2]), 0.0)


def highest_level(problem: AllocationProblem, best: Floats) -> float:
    """About the highest level, given the `best` of each class (0: it does not count): no more than
    any job's best, nor than what all GPUs could do if each job ran where it takes the least of
    their time. 1 where no class counts.
    """
    if not len(of := np.flatnonzero(best > 0.0)):
        return 1.0
    gpus = (problem.count[of] * problem.scale[of] / best[of]).sum()
    return float(min(best[of].min(), problem.gpus.sum() / gpus))


def inverse(rates: Floats) -> Floats:
    """1 / rate, and 0 where the rate is 0."""
    return np.divide(1.0, rates, out=np.zeros(len(rates)), where=rates > 0.0)
