"""Finish-time fairness and the shortest makespan (Gavel, section 4.2 and appendix A.1).

Makespan is one program in 1 / M where the paper bisects on M:

    min max_m steps_m / throughput(m, X)  =  1 / max { z : throughput(m, X) >= z * steps_m }

Finish-time fairness (Themis): nobody ends much later than with 1/n of the cluster to himself.

    min max_m rho_m,  rho_m = (t_m + steps_m / throughput(m, X)) / D_m
                      D_m = t_iso_m + steps_m / throughput(m, X_isolated)

With T_m = throughput(m, X) * D_m / steps_m and a_m = t_m / D_m this is rho_m = a_m + 1 / T_m, and
for u = 1 / rho it asks for T_m >= g_m(u) = u / (1 - a_m u), convex and rising in u up to its pole 1
/ a_m. The paper bisects on rho. Here g is replaced by its tangent at some u: one linear program,
whose highest u is no lower than the true one. Taking the tangent there again is Newton's method
from above: it falls towards the optimum, quadratically, and never leaves where g is defined. Each
program's shares say how low rho is with them, so both sides of the optimum are known.
"""

from dataclasses import dataclass
from math import inf

import numpy as np

from policies.contract.policy import SolverFailedError
from policies.contract.snapshot import Floats
from policies.gavel.allocation.problem import AllocationProblem, Shares, Variables
from policies.gavel.solvers.fairness import Scaled, idle, inverse, max_min


def makespan(problem: AllocationProblem, steps: Floats, *, fill: bool = True) -> Shares:
    """Shares under which all jobs with steps left end soonest; the objective is that time (s).

    `steps` float64[M]: left to each job of a class. Jobs that can run nowhere do not count (inf if
    all are such). With `fill`, leftover time goes where it brings most. Raises SolverFailedError.
    """
    found = max_min(problem, inverse(steps), fill=fill)
    return Shares(
        found.alone, found.paired, 1.0 / found.objective if found.objective > 0.0 else inf
    )


STEPS = 100
"""Newton's steps at most; it takes one to three as a rule."""
SLACK = 1e-12
"""Part of what was reached that is not asked for again: it is only feasible up to rounding."""
MARGIN = 1e-9
"""Part of the wall clock that a job has beside what it needs: a solver may miss times by 1e-10."""
HALVINGS = 60
"""Of the interval in which the first tangent is sought."""


@dataclass(frozen=True)
class Times:
    """By class, float64[M]: `steps` left to a job, `elapsed_s` t_m, `isolated_s` t_iso_m."""

    steps: Floats
    elapsed_s: Floats
    isolated_s: Floats


def finish_time_fairness(
    problem: AllocationProblem,
    times: Times,
    *,
    precision: float = 1e-6,
    fill: bool = True,
) -> Shares:
    """Shares whose highest rho, their objective, is the lowest possible to `precision`.

    Jobs without steps left or that can run nowhere do not count; 0 without jobs. With `fill`,
    leftover time goes where it brings most. Raises SolverFailedError.
    """
    search = _Search(problem, times)
    if not len(search.of):
        return idle(problem)
    search.narrow(precision)
    if fill:
        search.fill()
    shares = search.scaled.program.shares(0.0)
    return Shares(shares.alone, shares.paired, 1.0 / search.reached())


def isolated_rates(problem: AllocationProblem) -> Floats:
    """float64[M]: throughput(m, X_isolated): steps/s with 1/n of each type's GPUs, n all jobs.

    A job's s_m GPUs share them, and it never has more than all its time.
    """
    jobs = max(int(problem.count.sum()), 1)
    part = problem.gpus / jobs / problem.scale[:, None]
    rates: Floats = (problem.type_rates * part).sum(axis=1) / np.maximum(part.sum(axis=1), 1.0)
    return rates


class _Search:
    """Newton's method on u = 1 / rho; arrays over classes: `age` a_m, `best` highest T_m."""

    def __init__(self, problem: AllocationProblem, times: Times) -> None:
        rates, isolated = Variables.of_problem(problem).best_rates, isolated_rates(problem)
        self.problem = problem
        self.of = np.flatnonzero((times.steps > 0.0) & (rates > 0.0) & (isolated > 0.0))
        steps = times.steps[self.of]
        whole_s = times.isolated_s[self.of] + steps / isolated[self.of]
        self.per, self.age = whole_s / steps, times.elapsed_s[self.of] / whole_s
        self.best = self.per * rates[self.of]

    def narrow(self, precision: float) -> None:
        """Find the highest u to this precision; leaves the last tangent's program solved."""
        self.highest = float((self.best / (1.0 + self.age * self.best)).min())
        self.lowest, self.at = 0.0, self._start()
        for _ in range(STEPS):
            self.highest = min(self.highest, self._tangent())
            self.lowest = self.reached()
            if self.highest - self.lowest <= precision * self.highest:
                return
            self.at = self.highest
        raise SolverFailedError(
            f"finish-time fairness is still between {1 / self.highest} and"
            f" {1 / max(self.lowest, 1e-300)}"
        )

    def _start(self) -> float:
        """u at which GPUs just suffice if each job runs where it is most efficient."""
        low, high = 0.0, self.highest
        cost = self.problem.count[self.of] * self.problem.scale[self.of] / self.best
        for _ in range(HALVINGS):
            u = (low + high) / 2.0
            fits = (cost * self._needed(u)).sum() <= self.problem.gpus.sum()
            low, high = (u, high) if fits else (low, u)
        return high

    def _needed(self, u: float) -> Floats:
        """g_m(u): the T_m that rho = 1 / u asks for."""
        return u / (1.0 - self.age * u)

    def _tangent(self) -> float:
        """Highest u = at * (1 + d) with T_m / g_m(at) >= 1 + d / (1 - a_m at)."""
        per = np.zeros(len(self.problem.count))
        per[self.of] = self.per / self._needed(self.at)
        self.scaled = Scaled(self.problem, per, unit=1.0)
        ones, program = np.ones(len(self.of)), self.scaled.program
        program.bound_rows(
            self.scaled.rows, ones + MARGIN * self.scaled.best, np.full(len(self.of), inf)
        )
        self.further = program.add_column(
            self.scaled.rows, -ones / (1.0 - self.age * self.at), lower=-1.0
        )
        program.maximise(np.ones(1), np.array([self.further]))
        return self.at * (1.0 + program.solve())

    def reached(self) -> float:
        """1 / (the highest rho) of the program's last solution."""
        scaled = self._scaled_throughputs()
        return float(1.0 / (self.age + inverse(scaled)).max()) if (scaled > 0.0).all() else 0.0

    def _scaled_throughputs(self) -> Floats:
        return self.per * self.scaled.program.throughputs()[self.of] / self.problem.count[self.of]

    def fill(self) -> None:
        """Use leftover time where it brings most, with no rho above what was reached."""
        program = self.scaled.program
        enough = np.minimum(
            self._needed(self.lowest) + MARGIN * self.best, self._scaled_throughputs()
        )
        held = enough / self._needed(self.at) * (1.0 - SLACK)
        program.bound_columns(np.array([self.further]), np.zeros(1), np.zeros(1))
        program.bound_rows(self.scaled.rows, held, np.full(len(self.of), inf))
        program.maximise(program.variables.sums(inverse(self.problem.fastest_rates)))
        program.solve()
