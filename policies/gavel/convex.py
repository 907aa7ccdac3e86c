"""Share policies written as convex programs with cvxpy.

A policy states a concave objective over the throughputs of job classes. Feasible shares are those
of Gavel, section 3.1; time slices, gangs, pairs and placements come from the engine. This needs the
extra `cvxpy`. HiGHS solves linear programs, Clarabel all others.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import cvxpy as cp
import numpy as np

from policies.contract.policy import PolicyError, SolverFailedError
from policies.contract.snapshot import Floats
from policies.gavel.allocation.observe import Observed
from policies.gavel.allocation.problem import AllocationProblem, Shares
from policies.gavel.base import Notes, SharePolicy, Solver


class ShareProblem:
    """Shares of GPU time as cvxpy variables, and the numbers that objectives are made of.

    Row m is a class of `count` equal jobs; column c is a GPU type, on one node or spread.

    Variables: `alone` [M, C]: time of all jobs of a class, as a fraction of the wall clock.
    `paired` [P, C]: time of pairs of classes that share GPUs; None without pairs.

    Numbers: `throughput` [M]: steps/s of one job. `equal_rates` float64[M]: its steps/s with equal
    time on every GPU. `fastest_rates` float64[M]: with all its time on its fastest type, 0 if it
    can run nowhere. `count`, `weight`, `scale`: as in `AllocationProblem`.
    """

    def __init__(self, problem: AllocationProblem) -> None:
        self.problem = problem
        self.count = problem.count
        self.weight = problem.weight
        self.scale = problem.scale
        self.equal_rates = problem.equal_rates
        self.fastest_rates = problem.fastest_rates
        self.alone = cp.Variable(problem.rates.shape, nonneg=True)
        self.paired: cp.Variable | None = None
        if len(problem.pairs):
            self.paired = cp.Variable(problem.pair_rates.shape[:2], nonneg=True)
        total = self._sum_by_class(problem.rates, problem.pair_rates)
        self.throughput: cp.Expression = cp.multiply(total, 1.0 / self.count)

    @property
    def runnable(self) -> list[int]:
        """Classes that can run on some type."""
        return [int(m) for m in np.flatnonzero(self.fastest_rates > 0.0)]

    @property
    def normalised(self) -> cp.Expression:
        """[M]: throughput times the job's GPUs, relative to `equal_rates`; 0 if it cannot run."""
        equal = np.where(self.equal_rates > 0.0, self.equal_rates, np.inf)
        return cp.multiply(self.throughput, self.scale / equal)

    @property
    def gpus_used(self) -> cp.Expression:
        """[T]: GPUs of each type in use, averaged over time."""
        used = self.scale @ self.alone
        if self.paired is not None:
            used = used + self.scale[self.problem.pairs[:, 0]] @ self.paired
        return self.problem.usage @ used

    def constraints(self) -> list[cp.Constraint]:
        """Return the limits of time per job and GPUs per type; no time where a job cannot run."""
        rates = self.problem.rates
        pair_rates = self.problem.pair_rates
        time = self._sum_by_class(np.ones_like(rates), np.ones_like(pair_rates))
        limits = [time <= self.count, self.gpus_used <= self.problem.gpus]
        limits.append(cp.multiply(self.alone, rates <= 0.0) == 0.0)
        if self.paired is not None:
            cannot_run = (pair_rates <= 0.0).any(axis=2)
            limits.append(cp.multiply(self.paired, cannot_run) == 0.0)
        return limits

    def maximise(self, objective: cp.Expression, also: Sequence[cp.Constraint] = ()) -> Shares:
        """Return the shares of the highest objective.

        `also`: further constraints. Raises SolverFailedError; PolicyError if not concave.
        """
        problem = cp.Problem(cp.Maximize(objective), [*self.constraints(), *also])
        if not problem.is_dcp():
            raise PolicyError(f"the objective or a constraint is not concave (DCP): {objective}")
        try:
            problem.solve(solver=cp.HIGHS if problem.is_lp() else cp.CLARABEL)
        except cp.error.SolverError as error:
            raise SolverFailedError(f"cvxpy found no shares: {error}") from error
        if problem.status != cp.OPTIMAL:
            raise SolverFailedError(f"cvxpy found no shares: the program is {problem.status}")
        paired = np.zeros(self.problem.pair_rates.shape[:2])
        if self.paired is not None:
            paired = _values(self.paired)
        return Shares(_values(self.alone), paired, float(problem.value))

    def _sum_by_class(self, rates: Floats, pair_rates: Floats) -> cp.Expression:
        """[M]: the time of each class, alone and in pairs, weighted by these rates and added up.

        `rates` float64[M, C], `pair_rates` float64[P, C, 2].
        """
        total = cp.sum(cp.multiply(rates, self.alone), axis=1)
        if self.paired is None:
            return total
        for side in (0, 1):
            is_pair_of_class = np.eye(len(rates))[self.problem.pairs[:, side]].T  # [M, P]
            weighted = cp.multiply(pair_rates[:, :, side], self.paired)
            total = total + is_pair_of_class @ cp.sum(weighted, axis=1)
        return total


def _values(variable: cp.Variable) -> Floats:
    """Return the solution without the solver's negative rounding errors."""
    return np.maximum(np.asarray(variable.value, dtype=np.float64), 0.0)


@dataclass(frozen=True, slots=True)
class ConvexPolicy(SharePolicy):
    """Share policy given by a concave objective.

    A subclass implements `objective`, and `constraints` if it has further ones. Equal jobs are one
    class with a `count`: a sum over jobs is a sum over classes times `count`.
    """

    @abstractmethod
    def objective(self, problem: ShareProblem) -> cp.Expression:
        """Return the concave expression that the shares maximise."""

    def constraints(self, problem: ShareProblem) -> list[cp.Constraint]:
        """Return constraints beside those of every share policy."""
        return []

    def _solver(self, observed: Observed, notes: Notes) -> Solver:
        def solve(problem: AllocationProblem) -> Shares:
            program = ShareProblem(problem)
            return program.maximise(self.objective(program), self.constraints(program))

        return solve
