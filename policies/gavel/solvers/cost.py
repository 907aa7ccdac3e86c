"""The least cost per progress, in two forms, and SLOs (Gavel, section 4.2).

    paper      max  sum_m throughput(m, X) / throughput(m, X_fastest) / sum_m,j cost_j s_m X[m, j]
    published  max  sum_m,j T[m, j] X[m, j] / cost_j              (as the authors' program has it)
    s.t.       throughput(m, X) >= steps_m / SLO_m  and  >= floor * throughput(m, X_isolated)

The first is linear-fractional. By Charnes and Cooper: with y = t X every constraint's bound is
multiplied by t, the cost of y is set to that of the whole cluster, and the numerator is maximised:
one program. A ratio is best where only the cheapest progress is made, so without a floor most jobs
starve. A pair's GPUs are paid for once.
"""

from dataclasses import dataclass
from enum import Enum
from math import inf

import numpy as np

from policies.contract.snapshot import Floats, Ints
from policies.gavel.allocation.problem import AllocationProblem, Coefficients, Shares
from policies.gavel.solvers.fairness import idle, inverse
from policies.gavel.solvers.finish_time import isolated_rates
from policies.gavel.solvers.program import Program

MISSING = 1e-7
"""Fraction of an SLO's steps that may be missing when it counts as met."""

HELD = 1.0 - 2e-7
"""Fraction demanded of a throughput that another program found possible but for MISSING."""


class CostForm(Enum):
    """The objective: the paper's ratio, or the published program's sum."""

    PAPER = "paper"
    PUBLISHED = "published"


@dataclass(frozen=True)
class Slos:
    """Work and SLO of a job of each class, where every job is a class.

    `steps` float64[M]: left. `left_s` float64[M]: seconds until its SLO; inf without one.
    """

    steps: Floats
    left_s: Floats

    @property
    def rates(self) -> Floats:
        """float64[M]: steps/s needed; 0 without SLO or work, inf if the SLO is past."""
        never = np.full(len(self.steps), inf)
        needed = np.divide(self.steps, self.left_s, out=never, where=self.left_s > 0.0)
        return np.where(self.steps > 0.0, needed, 0.0)


@dataclass(frozen=True)
class CostShares(Shares):
    """Shares of least cost; `dropped`: classes whose SLO could not be met and was left out."""

    dropped: tuple[int, ...] = ()


def min_cost(
    problem: AllocationProblem,
    cost: Floats,
    *,
    floor: float,
    form: CostForm = CostForm.PAPER,
    slos: Slos | None = None,
) -> CostShares:
    """Return the shares of the most progress per cost; the objective is that of the form.

    `cost` float64[T]: of a GPU of each type for a unit of time, above 0. `floor`, from 0 to 1:
    least fraction of a job's throughput with 1/n of the cluster. `slos` are met as far as possible.
    Raises ValueError, SolverFailedError.
    """
    if not 0.0 <= floor <= 1.0 or (cost <= 0.0).any():
        raise ValueError("a floor is from 0 to 1, costs are above 0")

    # 1. The throughput that each job needs at least.
    needed = floor * isolated_rates(problem)
    dropped: Ints = np.zeros(0, dtype=np.int64)
    if slos is not None:
        dropped = _unmet_slos(problem, needed, slos.rates)
        is_kept = ~np.isin(np.arange(len(needed)), dropped)
        needed = np.maximum(needed, np.where(is_kept, slos.rates, 0.0))

    # 2. The shares, at the cost of each column.
    column_cost = problem.usage.T @ cost
    if form is CostForm.PAPER:
        shares = _best_ratio(problem, column_cost, needed)
    else:
        shares = _best_sum(problem, column_cost, needed)
    return CostShares(shares.alone, shares.paired, shares.objective, tuple(dropped.tolist()))


def _unmet_slos(problem: AllocationProblem, floors: Floats, rates: Floats) -> Ints:
    """Return the classes that miss their SLO if the sum of missing fractions is least.

    `floors`, `rates` float64[M]: throughput that each job has in any case, and for its SLO.
    """
    program = Program(problem)
    is_possible = rates <= program.variables.best_rates
    wanted = np.flatnonzero((rates > 0.0) & is_possible)
    if not len(wanted):
        return np.flatnonzero(~is_possible)
    program.add_throughputs(inverse(floors), HELD)
    # throughput / rate + missing >= 1
    goals = program.add_throughputs(inverse(np.where(is_possible, rates, 0.0)), 1.0)
    in_goals = Coefficients(goals, np.arange(len(goals)), np.ones(len(goals)))
    missing = program.add_columns(in_goals, np.zeros(len(goals)), np.ones(len(goals)))
    program.maximise(-problem.count[wanted].astype(np.float64), missing)
    program.solve()
    unmet = wanted[program.values[missing] > MISSING]
    return np.sort(np.concatenate([np.flatnonzero(~is_possible), unmet]))


def _best_sum(problem: AllocationProblem, cost: Floats, needed: Floats) -> Shares:
    """Return shares in the published form; `cost` float64[C], `needed` float64[M]: steps/s."""
    program = Program(problem)
    if not program.variables.size:
        return idle(problem)
    program.add_throughputs(inverse(needed), HELD)
    throughputs = program.variables.sums(np.ones(len(needed)))
    program.maximise(throughputs / cost[program.variables.columns])
    return program.shares(program.solve())


def _best_ratio(problem: AllocationProblem, cost: Floats, needed: Floats) -> Shares:
    """Return shares in the paper's form; of those with the best ratio the ones of most time.

    `cost` float64[C], `needed` float64[M]: steps/s.
    """
    program = Program(problem)
    if not program.variables.size:
        return idle(problem)

    # 1. Variables y = t X that cost as much as the whole cluster.
    whole_cost = float((problem.usage.T @ problem.gpus) @ cost)
    costs = cost[program.variables.columns] * program.variables.scale
    in_one_row = np.zeros(len(costs), dtype=np.int64)
    cost_row = Coefficients(in_one_row, np.arange(len(costs)), costs)
    program.add_rows(cost_row, np.array([whole_cost]), np.array([whole_cost]))
    stretch = _add_stretch(program, needed)

    # 2. The most progress; then, with that, the least t: y / t is the most time.
    program.maximise(program.variables.sums(inverse(problem.fastest_rates)))
    progress = program.solve()
    program.keep_optimum()
    program.maximise(np.full(1, -1.0), np.array([stretch]))
    program.solve()
    return program.shares(progress / whole_cost, unit=float(program.values[stretch]))


def _add_stretch(program: Program, needed: Floats) -> int:
    """Add the column t, by which all bounds are multiplied; return its index."""
    problem = program.problem
    limited_rows = np.concatenate([program.class_rows, program.type_rows])
    limits = np.concatenate([problem.count, problem.gpus]).astype(np.float64)
    needed_rows = program.add_throughputs(inverse(needed), 0.0)

    # A row of a <= limit becomes a - limit * t <= 0, and so those of needs.
    nothing = np.zeros(len(limited_rows))
    program.bound_rows(limited_rows, np.full(len(limited_rows), -inf), nothing)
    bounds = np.concatenate([limits, np.full(len(needed_rows), HELD)])
    return program.add_column(np.concatenate([limited_rows, needed_rows]), -bounds)
