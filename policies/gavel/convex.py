"""Share policies written as convex programs with cvxpy.

A policy states a concave objective over the throughputs of job classes. Feasible shares are
Gavel's, section 3.1; time slices, gangs, pairs and placements come from the engine. Needs the extra
`cvxpy`. HiGHS solves linear programs, Clarabel all others.
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
    `alone` [M, C]: time of all jobs of a class, as a fraction of the wall clock. `paired` [P, C]:
    time of pairs of classes that share GPUs; None without pairs. `throughput` [M]: steps/s of one
    job. `equal_rates` float64[M]: its steps/s with equal time on every GPU. `fastest_rates`
    float64[M]: with all its time on its fastest type, 0 if it can run nowhere.
    """

    def __init__(self, problem: AllocationProblem) -> None:
        self.problem = problem
        self.count, self.weight, self.scale = problem.count, problem.weight, problem.scale
        self.equal_rates, self.fastest_rates = problem.equal_rates, problem.fastest_rates
        self.alone = cp.Variable(problem.rates.shape, nonneg=True)
        pairs = problem.pair_rates.shape[:2]
        self.paired = cp.Variable(pairs, nonneg=True) if pairs[0] else None
        total = self._of_classes(problem.rates, problem.pair_rates)
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
        of = self.problem
        used = self.scale @ self.alone
        if self.paired is not None:
            used = used + self.scale[of.pairs[:, 0]] @ self.paired
        return of.usage @ used

    def constraints(self) -> list[cp.Constraint]:
        """The feasible shares: time per job, GPUs per type, no time where a job cannot run."""
        of = self.problem
        time = self._of_classes(np.ones_like(of.rates), np.ones_like(of.pair_rates))
        limits = [time <= self.count, self.gpus_used <= of.gpus]
        limits.append(cp.multiply(self.alone, of.rates <= 0.0) == 0.0)
        if self.paired is not None:
            limits.append(cp.multiply(self.paired, (of.pair_rates <= 0.0).any(axis=2)) == 0.0)
        return limits

    def maximise(self, objective: cp.Expression, also: Sequence[cp.Constraint] = ()) -> Shares:
        """Shares of the highest objective. Raises SolverFailedError; PolicyError if not concave."""
        problem = cp.Problem(cp.Maximize(objective), [*self.constraints(), *also])
        if not problem.is_dcp():
            raise PolicyError(f"the objective or a constraint is not concave (DCP): {objective}")
        try:
            problem.solve(solver=cp.HIGHS if problem.is_lp() else cp.CLARABEL)
        except cp.error.SolverError as error:
            raise SolverFailedError(f"cvxpy found no shares: {error}") from error
        if problem.status != cp.OPTIMAL:
            raise SolverFailedError(f"cvxpy found no shares: the program is {problem.status}")
        return Shares(_shares(self.alone), self._paired(), float(problem.value))

    def _paired(self) -> Floats:
        empty = np.zeros(self.problem.pair_rates.shape[:2])
        return empty if self.paired is None else _shares(self.paired)

    def _of_classes(self, rates: Floats, pair_rates: Floats) -> cp.Expression:
        """[M]: the time of each class, alone and in pairs, weighted by these rates and added up."""
        total = cp.sum(cp.multiply(rates, self.alone), axis=1)
        for side in (0, 1) if self.paired is not None else ():
            of_class = np.eye(len(rates))[self.problem.pairs[:, side]].T
            rated = cp.multiply(pair_rates[:, :, side], self.paired)
            total = total + of_class @ cp.sum(rated, axis=1)
        return total


def _shares(variable: cp.Variable) -> Floats:
    """The solution without the solver's negative rounding errors."""
    return np.maximum(np.asarray(variable.value, dtype=np.float64), 0.0)


@dataclass(frozen=True, slots=True)
class ConvexPolicy(SharePolicy):
    """A share policy given by a concave objective: implement `objective`, and `constraints` if any.

    Equal jobs are one class with a `count`: a sum over jobs is a sum over classes times `count`.
    """

    @abstractmethod
    def objective(self, problem: ShareProblem) -> cp.Expression:
        """Concave expression that the shares maximise."""

    def constraints(self, problem: ShareProblem) -> list[cp.Constraint]:
        """Constraints beside those of every share policy."""
        return []

    def _solver(self, observed: Observed, notes: Notes) -> Solver:
        def solve(problem: AllocationProblem) -> Shares:
            program = ShareProblem(problem)
            return program.maximise(self.objective(program), self.constraints(program))

        return solve
