"""Finish-time fairness and the shortest makespan (Gavel, section 4.2 and appendix A.1).

Makespan is one program in 1 / M where the paper bisects on M:

    min max_m steps_m / throughput(m, X)  =  1 / max { z : throughput(m, X) >= z * steps_m }

Finish-time fairness (Themis): no job ends much later than with 1/n of the cluster to itself.

    min max_m rho_m,  rho_m = (t_m + steps_m / throughput(m, X)) / D_m
                      D_m = t_iso_m + steps_m / throughput(m, X_isolated)

With T_m = throughput(m, X) * D_m / steps_m and a_m = t_m / D_m this is rho_m = a_m + 1 / T_m, and
for u = 1 / rho it asks for T_m >= g_m(u) = u / (1 - a_m u), convex and rising in u up to its pole 1
/ a_m. The paper bisects on rho. Here g is replaced by its tangent at some u: one linear program,
whose highest u is no lower than the true one. Taking the tangent there again is Newton's method
from above: it falls towards the optimum, quadratically, and never leaves where g is defined. The
shares of each program reach some rho, so both an upper and a lower bound of the best u are known.
"""

from dataclasses import dataclass
from math import inf

import numpy as np

from policies.contract.policy import SolverFailedError
from policies.contract.snapshot import Floats
from policies.gavel.allocation.problem import AllocationProblem, Shares, Variables
from policies.gavel.solvers.fairness import Scaled, idle, inverse, max_min


def makespan(problem: AllocationProblem, steps: Floats, *, fill: bool = True) -> Shares:
    """Return shares under which the last job ends soonest; their objective is that time (s).

    `steps` float64[M]: left to each job of a class. Jobs that can run nowhere do not count; the
    objective is inf if all are such. With `fill`, leftover time goes where it brings most. Raises
    SolverFailedError.
    """
    shares = max_min(problem, inverse(steps), fill=fill)
    makespan_s = 1.0 / shares.objective if shares.objective > 0.0 else inf
    return Shares(shares.alone, shares.paired, makespan_s)


STEPS = 100
"""Most steps of Newton's method; it takes one to three as a rule."""

SLACK = 1e-12
"""Fraction of what was reached that is not asked for again: it is only feasible up to rounding."""

MARGIN = 1e-9
"""Extra time of each job, as a fraction of the wall clock: a solver may miss times by 1e-10."""

HALVINGS = 60
"""Halvings of the interval in which the first tangent is sought."""


@dataclass(frozen=True)
class Times:
    """Work and times of a job of each class.

    `steps` float64[M]: left. `elapsed_s` float64[M], t_m: since its arrival. `isolated_s`
    float64[M], t_iso_m: of the steps done so far, with 1/n of the cluster.
    """

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
    """Return shares whose highest rho, their objective, is the lowest possible to `precision`.

    Jobs without steps left or that can run nowhere do not count; without any the objective is 0.
    With `fill`, leftover time goes where it brings most. Raises SolverFailedError.
    """
    search = _Search(problem, times)
    if not len(search.classes):
        return idle(problem)
    search.narrow(precision)
    if fill:
        search.fill()
    shares = search.scaled.program.shares(0.0)
    return Shares(shares.alone, shares.paired, 1.0 / search.reached())


def isolated_rates(problem: AllocationProblem) -> Floats:
    """float64[M]: throughput(m, X_isolated), steps/s with 1/n of each type's GPUs, n all jobs.

    A job of s_m GPUs has 1/s_m of that time, and never more than all its time.
    """
    jobs = max(int(problem.count.sum()), 1)
    time = problem.gpus / jobs / problem.scale[:, None]
    rates: Floats = (problem.type_rates * time).sum(axis=1) / np.maximum(time.sum(axis=1), 1.0)
    return rates


class _Search:
    """Newton's method on u = 1 / rho, over the K classes that count.

    `classes` int64[K]; `per` float64[K]: T_m per throughput; `age` float64[K]: a_m; `best`
    float64[K]: the highest T_m. `lowest`, `highest`: bounds of the best u; `tangent_at`: the u of
    the last tangent. `scaled`: its program, with the column `further`.
    """

    def __init__(self, problem: AllocationProblem, times: Times) -> None:
        self.problem = problem
        rates = Variables.of_problem(problem).best_rates
        isolated = isolated_rates(problem)
        self.classes = np.flatnonzero((times.steps > 0.0) & (rates > 0.0) & (isolated > 0.0))
        steps = times.steps[self.classes]
        isolated_end_s = times.isolated_s[self.classes] + steps / isolated[self.classes]  # D_m
        self.per = isolated_end_s / steps
        self.age = times.elapsed_s[self.classes] / isolated_end_s
        self.best = self.per * rates[self.classes]

    def narrow(self, precision: float) -> None:
        """Find the highest u to this precision; leave the last tangent's program solved."""
        self.highest = float((self.best / (1.0 + self.age * self.best)).min())
        self.lowest = 0.0
        self.tangent_at = self._start()
        for _ in range(STEPS):
            self.highest = min(self.highest, self._solve_tangent())
            self.lowest = self.reached()
            if self.highest - self.lowest <= precision * self.highest:
                return
            self.tangent_at = self.highest
        raise SolverFailedError(
            f"finish-time fairness is still between {1 / self.highest} and"
            f" {1 / max(self.lowest, 1e-300)}"
        )

    def _start(self) -> float:
        """Return the u at which GPUs just suffice if each job runs where it is fastest."""
        low = 0.0
        high = self.highest
        gpus = self.problem.count[self.classes] * self.problem.scale[self.classes] / self.best
        for _ in range(HALVINGS):
            middle = (low + high) / 2.0
            if (gpus * self._needed(middle)).sum() <= self.problem.gpus.sum():
                low = middle
            else:
                high = middle
        return high

    def _needed(self, u: float) -> Floats:
        """float64[K]: g_m(u), the T_m that rho = 1 / u asks for."""
        return u / (1.0 - self.age * u)

    def _solve_tangent(self) -> float:
        """Return the highest u by the tangents at `tangent_at`.

        It is u = at * (1 + d) for the greatest d, the column `further`, with T_m / g_m(at) >= 1 + d
        / (1 - a_m at).
        """
        per = np.zeros(len(self.problem.count))
        per[self.classes] = self.per / self._needed(self.tangent_at)
        self.scaled = Scaled(self.problem, per, unit=1.0)
        program = self.scaled.program
        ones = np.ones(len(self.classes))
        at_least = ones + MARGIN * self.scaled.best
        program.bound_rows(self.scaled.rows, at_least, np.full(len(self.classes), inf))
        slope = -ones / (1.0 - self.age * self.tangent_at)
        self.further = program.add_column(self.scaled.rows, slope, lower=-1.0)
        program.maximise(np.ones(1), np.array([self.further]))
        return self.tangent_at * (1.0 + program.solve())

    def reached(self) -> float:
        """Return 1 / (the highest rho) of the program's last solution; 0 if a job never ends."""
        throughputs = self._scaled_throughputs()
        if not (throughputs > 0.0).all():
            return 0.0
        return float(1.0 / (self.age + inverse(throughputs)).max())

    def _scaled_throughputs(self) -> Floats:
        """float64[K]: T_m in the program's last solution."""
        all_jobs = self.scaled.program.throughputs()[self.classes]
        return self.per * all_jobs / self.problem.count[self.classes]

    def fill(self) -> None:
        """Use leftover time where it brings most, with no rho above what was reached."""
        program = self.scaled.program
        needed = self._needed(self.lowest) + MARGIN * self.best
        enough = np.minimum(needed, self._scaled_throughputs())
        held = enough / self._needed(self.tangent_at) * (1.0 - SLACK)
        program.bound_columns(np.array([self.further]), np.zeros(1), np.zeros(1))
        program.bound_rows(self.scaled.rows, held, np.full(len(self.classes), inf))
        program.maximise(program.variables.sums(inverse(self.problem.fastest_rates)))
        program.solve()
