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
    """By class, float64[M]: `steps` left to a job, and seconds until its SLO (inf: none)."""

    steps: Floats
    left_s: Floats

    @property
    def rates(self) -> Floats:
        """float64[M]: steps/s needed; 0 without SLO or work, inf if its time is over."""
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
    """Shares of the most progress per cost; the objective is that of the form.

    `cost` float64[T] of a GPU of each type for a unit of time, above 0. `floor`, from 0 to 1: least
    fraction of a job's throughput with 1/n of the cluster. `slos` are met as far as possible.
    Raises ValueError, SolverFailedError.
    """
    if not 0.0 <= floor <= 1.0 or (cost <= 0.0).any():
        raise ValueError("a floor is from 0 to 1, costs are above 0")
    needed = floor * isolated_rates(problem)
    dropped: Ints = np.zeros(0, dtype=np.int64)
    if slos is not None:
        dropped = _missed(problem, needed, slos.rates)
        kept = ~np.isin(np.arange(len(needed)), dropped)
        needed = np.maximum(needed, np.where(kept, slos.rates, 0.0))
    solve = _best_ratio if form is CostForm.PAPER else _best_sum
    shares = solve(problem, problem.usage.T @ cost, needed)
    return CostShares(shares.alone, shares.paired, shares.objective, tuple(dropped.tolist()))


def _missed(problem: AllocationProblem, floors: Floats, rates: Floats) -> Ints:
    """Return the classes that miss their SLO, with the least sum of missing parts."""
    program = Program(problem)
    possible = rates <= program.variables.best_rates
    wanted = np.flatnonzero((rates > 0.0) & possible)
    if not len(wanted):
        return np.flatnonzero(~possible)
    program.add_throughputs(inverse(floors), HELD)
    goals = program.add_throughputs(inverse(np.where(possible, rates, 0.0)), 1.0)
    part = Coefficients(goals, np.arange(len(goals)), np.ones(len(goals)))
    missing = program.add_columns(part, np.zeros(len(goals)), np.ones(len(goals)))
    program.maximise(-problem.count[wanted].astype(np.float64), missing)
    program.solve()
    missed = wanted[program.values[missing] > MISSING]
    return np.sort(np.concatenate([np.flatnonzero(~possible), missed]))


def _best_sum(problem: AllocationProblem, cost: Floats, needed: Floats) -> Shares:
    """The published form; `cost` float64[C]."""
    program = Program(problem)
    if not program.variables.size:
        return idle(problem)
    program.add_throughputs(inverse(needed), HELD)
    program.maximise(program.variables.sums(np.ones(len(needed))) / cost[program.variables.columns])
    return program.shares(program.solve())


def _best_ratio(problem: AllocationProblem, cost: Floats, needed: Floats) -> Shares:
    """Return the paper's form; of all shares with the best ratio those that use the most time."""
    program = Program(problem)
    if not program.variables.size:
        return idle(problem)
    whole = float((problem.usage.T @ problem.gpus) @ cost)
    spent = cost[program.variables.columns] * program.variables.scale
    program.add_rows(_row(spent), np.array([whole]), np.array([whole]))
    stretch = _stretched(program, needed)
    value = program.variables.sums(inverse(problem.fastest_rates))
    program.maximise(value)
    best = program.solve()
    program.keep_optimum()
    program.maximise(np.full(1, -1.0), np.array([stretch]))
    program.solve()
    return program.shares(best / whole, unit=float(program.values[stretch]))


def _stretched(program: Program, needed: Floats) -> int:
    problem, needs = program.problem, program.add_throughputs(inverse(needed), 0.0)
    limited = np.concatenate([program.class_rows, program.type_rows])
    limits = np.concatenate([problem.count, problem.gpus]).astype(np.float64)
    rows = np.concatenate([limited, needs])
    bounds = np.concatenate([limits, np.full(len(needs), HELD)])
    program.bound_rows(limited, np.full(len(limited), -inf), np.zeros(len(limited)))
    return program.add_column(rows, -bounds)


def _row(values: Floats) -> Coefficients:
    return Coefficients(np.zeros(len(values), dtype=np.int64), np.arange(len(values)), values)
