"""The feasible set of every share policy as one linear program, solved by HiGHS (Gavel, eq. 1-3).

    sum over variables of class m of its time                <=  count_m   for every class m
    sum over variables of (GPUs of type j taken) * time      <=  N_j       for every GPU type j
    time                                                     >=  0

A pair of two jobs of one class counts twice in the class's time (space sharing, section 3.1).

A policy adds its objective, and rows and columns of its own. The model is kept: after `solve` its
costs, bounds and coefficients may be changed, and the next `solve` starts from the last basis.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from math import inf, isfinite
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray

from policies.contract.policy import SolverFailedError
from policies.contract.snapshot import Floats, Ints
from policies.gavel.allocation.problem import (
    AllocationProblem,
    Coefficients,
    Shares,
    Variables,
    added,
)

TOLERANCE = 1e-6
"""Allowed violation of a constraint, relative to its bound where that is above 1."""

DUST = 1e-9
"""Time of a class, as a fraction of all its jobs' time, that counts as a rounding error."""

PRICED = 1e-9
"""Largest dual that counts as a rounding error."""

MOST = 1e12
"""Largest coefficient of a throughput; HiGHS refuses those from 1e15 on."""

MANY_CLASSES = 500
"""Classes from which the interior point method finds the first basis faster."""


class Method(Enum):
    """Methods of HiGHS: both end in a vertex (the interior point by crossing over)."""

    SIMPLEX = "simplex"
    INTERIOR = "ipm"


OPTIONS: Mapping[str, Any] = {
    "parallel": "off",
    "presolve": "off",
    "simplex_strategy": 4,
    "primal_feasibility_tolerance": 1e-10,
    "dual_feasibility_tolerance": 1e-10,
}
"""Options of HiGHS: no presolving, and the primal simplex (4), which restarts fastest here.

Tolerances are tighter than HiGHS' own: shares may be small.
"""

CAREFUL_OPTIONS: Mapping[str, Any] = {**OPTIONS, "presolve": "choose", "simplex_strategy": 1}
"""Options for a program that those cannot solve, with coefficients of very unlike size."""


class Program:
    """Linear program of a problem, which maximises.

    Its first columns are the problem's `variables`, its first rows `class_rows` and `type_rows`.
    All methods raise SolverFailedError if HiGHS refuses a change, for wrong shapes or infinite
    coefficients.
    """

    def __init__(self, problem: AllocationProblem) -> None:
        self.problem = problem
        self.variables = Variables.of_problem(problem)
        self.class_rows = np.arange(len(problem.count))
        self.type_rows = len(problem.count) + np.arange(len(problem.types))
        self._rows = len(self.class_rows) + len(self.type_rows)
        self._columns = self.variables.size
        self._solved = False
        self._solution: Any = None
        self._highs = highspy.Highs()
        self._highs.setOptionValue("output_flag", False)
        self._pass_feasible_set()

    def _pass_feasible_set(self) -> None:
        """Give the feasible set to HiGHS, with an objective of zeros."""
        gpus = self.variables.gpus.below(len(self.class_rows))
        coefficients = Coefficients.joined(self.variables.times, gpus)
        starts, index, value = coefficients.packed(self._columns, by_rows=False)
        column_format = int(highspy.MatrixFormat.kColwise)
        maximise = -1
        offset = 0.0
        costs = np.zeros(self._columns)
        column_lower = np.zeros(self._columns)
        column_upper = np.full(self._columns, inf)
        row_lower = np.full(self._rows, -inf)
        row_upper = np.concatenate([self.problem.count, self.problem.gpus]).astype(np.float64)
        is_integer = np.zeros(self._columns, dtype=np.int32)
        status = self._highs.passModel(
            self._columns,
            self._rows,
            len(value),
            column_format,
            maximise,
            offset,
            costs,
            column_lower,
            column_upper,
            row_lower,
            row_upper,
            _short(starts),
            _short(index),
            value,
            is_integer,
        )
        self._check(status, "the model")

    def add_rows(
        self, coefficients: Coefficients, lower: Floats, upper: Floats | None = None
    ) -> Ints:
        """Add rows lower <= coefficients @ columns <= upper; return their indices.

        `upper` None: unbounded.
        """
        if upper is None:
            upper = np.full(len(lower), inf)
        starts, index, value = coefficients.packed(len(lower), by_rows=True)
        status = self._highs.addRows(
            len(lower), lower, upper, len(value), _short(starts), _short(index), value
        )
        self._check(status, "rows")
        self._rows += len(lower)
        return np.arange(self._rows - len(lower), self._rows)

    def add_throughputs(self, per: Floats, lower: float) -> Ints:
        """Add rows per_m * throughput of a job of m >= lower for classes with per_m > 0.

        Returns their indices. A factor per_m that would make a coefficient larger than MOST is
        lowered.
        """
        scaled = self.variables.throughputs.of_rows(self.bounded(per) / self.problem.count)
        row = np.cumsum(per > 0.0) - 1
        of_classes = Coefficients(row[scaled.row], scaled.column, scaled.value)
        return self.add_rows(of_classes, np.full(int((per > 0.0).sum()), lower))

    def bounded(self, per: Floats) -> Floats:
        """float64[M]: throughput factors, at most MOST where a job is fastest."""
        best = self.variables.best_rates
        most: Floats = np.divide(MOST, best, out=np.full(len(best), inf), where=best > 0.0)
        return np.asarray(np.minimum(per, most), dtype=np.float64)

    def add_columns(
        self, coefficients: Coefficients, lower: Floats, upper: Floats, cost: float = 0.0
    ) -> Ints:
        """Add columns with these coefficients; return their indices."""
        starts, index, value = coefficients.packed(len(lower), by_rows=False)
        costs = np.full(len(lower), cost)
        status = self._highs.addCols(
            len(lower), costs, lower, upper, len(value), _short(starts), _short(index), value
        )
        self._check(status, "columns")
        self._columns += len(lower)
        return np.arange(self._columns - len(lower), self._columns)

    def add_column(
        self, rows: Ints, values: Floats, lower: float = 0.0, upper: float = inf, cost: float = 0.0
    ) -> int:
        """Add a column with these values in these rows; return its index."""
        coefficients = Coefficients(rows, np.zeros(len(rows), dtype=np.int64), values)
        return int(self.add_columns(coefficients, np.array([lower]), np.array([upper]), cost)[0])

    def maximise(self, costs: Floats, columns: Ints | None = None) -> None:
        """Set the objective: the sum of costs * columns (default: the variables)."""
        if columns is None:
            columns = np.arange(self.variables.size)
        all_costs = np.zeros(self._columns)
        all_costs[columns] = costs
        all_columns = _short(np.arange(self._columns))
        status = self._highs.changeColsCost(self._columns, all_columns, all_costs)
        self._check(status, "the objective")

    def bound_rows(self, rows: Ints, lower: Floats, upper: Floats) -> None:
        """Change the bounds of rows."""
        status = self._highs.changeRowsBounds(len(rows), _short(rows), lower, upper)
        self._check(status, "bounds of rows")

    def bound_columns(self, columns: Ints, lower: Floats, upper: Floats) -> None:
        """Change the bounds of columns."""
        status = self._highs.changeColsBounds(len(columns), _short(columns), lower, upper)
        self._check(status, "bounds of columns")

    def change(self, rows: Ints, column: int, values: Floats) -> None:
        """Change the coefficients of a column in some rows."""
        for row, value in zip(rows.tolist(), values.tolist(), strict=True):
            self._check(self._highs.changeCoeff(row, column, value), "a coefficient")

    def solve(self, method: Method | None = None) -> float:
        """Solve to optimality and return the objective.

        By default the simplex from the last basis; without one, if classes are many, the interior
        point. If that finds no optimum, again without a basis and with HiGHS' own strategy. Raises
        SolverFailedError if there is no optimum within TOLERANCE.
        """
        # 1. Solve.
        if method is None:
            is_large = len(self.class_rows) >= MANY_CLASSES and not self._solved
            method = Method.INTERIOR if is_large else Method.SIMPLEX
        status = self._run(method, OPTIONS)
        if status != highspy.HighsModelStatus.kOptimal:
            self._check(self._highs.clearSolver(), "clearing the solver")
            status = self._run(Method.SIMPLEX, CAREFUL_OPTIONS)
        self._solved = status == highspy.HighsModelStatus.kOptimal
        if not self._solved:
            ended = self._highs.modelStatusToString(status)
            raise SolverFailedError(f"a linear program of {self._size} ended as {ended}")

        # 2. Check the solution.
        info = self._highs.getInfo()
        self._solution = self._highs.getSolution()
        violation = info.max_primal_infeasibility
        objective = float(info.objective_function_value)
        if not (violation <= TOLERANCE and isfinite(objective)):
            raise SolverFailedError(
                f"a linear program of {self._size} broke a bound by {violation:.3g}"
            )
        return objective

    def keep_optimum(self) -> None:
        """Bound the program to its optima, for a second objective.

        Priced rows and columns are fixed at their bounds: by complementary slackness these are all
        optima. The basis stays feasible.
        """
        lp = self._highs.getLp()
        solution = self._solution
        columns, fixed_columns = _priced_bounds(
            solution.col_dual, solution.col_value, lp.col_lower_, lp.col_upper_
        )
        rows, fixed_rows = _priced_bounds(
            solution.row_dual, solution.row_value, lp.row_lower_, lp.row_upper_
        )
        self.bound_columns(columns, fixed_columns, fixed_columns)
        self.bound_rows(rows, fixed_rows, fixed_rows)

    def _run(self, method: Method, options: Mapping[str, Any]) -> Any:
        """Run HiGHS and return its model status."""
        for name, value in {**options, "solver": method.value}.items():
            self._check(self._highs.setOptionValue(name, value), name)
        self._check(self._highs.run(), "solving")
        return self._highs.getModelStatus()

    @property
    def _size(self) -> str:
        return f"{self._rows} rows and {self._columns} columns"

    def _check(self, status: Any, part: str) -> None:
        """Raise SolverFailedError if HiGHS refused a part of the program."""
        if status == highspy.HighsStatus.kError:
            raise SolverFailedError(f"HiGHS refused {part} of a linear program of {self._size}")

    @property
    def values(self) -> Floats:
        """float64: every column in the last solution."""
        return np.array(self._solution.col_value)

    def duals(self, rows: Ints) -> Floats:
        """float64: increase of the objective with the bound of each row in the last solution."""
        return np.array(self._solution.row_dual)[rows]

    def throughputs(self) -> Floats:
        """float64[M]: steps/s of all jobs of each class together in the last solution."""
        rates = self.variables.throughputs
        return added(rates.row, rates.value * self.values[rates.column], len(self.class_rows))

    def shares(self, objective: float, unit: float = 1.0, dust: float = DUST) -> Shares:
        """Return the last solution divided by `unit`, as shares.

        Times of at most `dust` for each of a class's jobs become 0: no job must start because of a
        rounding error. Raises SolverFailedError if a constraint is broken by more than TOLERANCE.
        """
        time = self.values[: self.variables.size] / unit
        violation = excess(self._as_shares(time, objective), self.problem)
        if not violation <= TOLERANCE:
            raise SolverFailedError(
                f"the solution of a linear program of {self._size} breaks a constraint by"
                f" {violation:.3g}"
            )
        jobs = self.problem.count[self.variables.classes]
        return self._as_shares(np.where(time <= dust * jobs, 0.0, time), objective)

    def _as_shares(self, time: Floats, objective: float) -> Shares:
        """Return the time of each variable, float64[A + B], as shares."""
        variables = self.variables
        alone = np.zeros(self.problem.rates.shape)
        alone[variables.alone_class, variables.alone_column] = time[: variables.alone_size]
        paired = np.zeros(self.problem.pair_rates.shape[:2])
        paired[variables.pair, variables.pair_column] = time[variables.alone_size :]
        return Shares(alone, paired, objective)


def _priced_bounds(
    duals: Sequence[float], values: Sequence[float], lower: Sequence[float], upper: Sequence[float]
) -> tuple[Ints, Floats]:
    """Return the indices of rows or columns with a price, and the bound that each has reached."""
    priced = np.flatnonzero(np.abs(np.array(duals)) > PRICED)
    value = np.array(values)[priced]
    below = np.array(lower)[priced]
    above = np.array(upper)[priced]
    is_at_lower = np.abs(value - below) <= np.abs(above - value)
    return priced, np.where(is_at_lower, below, above)


def _short(index: Ints) -> NDArray[np.int32]:
    """Return indices as HiGHS wants them."""
    return index.astype(np.int32)


def time_of(shares: Shares, problem: AllocationProblem) -> Floats:
    """float64[M]: time of all jobs of a class; a pair within a class counts twice."""
    total: Floats = shares.alone.sum(axis=1)
    if len(problem.pairs):
        for side in (0, 1):
            np.add.at(total, problem.pairs[:, side], shares.paired.sum(axis=1))
    return total


def gpus_of(shares: Shares, problem: AllocationProblem) -> Floats:
    """float64[T]: GPUs of each type in use on average."""
    scale = problem.scale
    in_columns = scale @ shares.alone
    if len(problem.pairs):
        in_columns = in_columns + scale[problem.pairs[:, 0]] @ shares.paired
    return problem.usage @ in_columns


def excess(shares: Shares, problem: AllocationProblem) -> float:
    """Return the most by which shares break a constraint, relative to its bound if above 1.

    0 if none is broken, NaN where shares are no numbers.
    """
    excesses = (
        (time_of(shares, problem) - problem.count) / np.maximum(problem.count, 1),
        (gpus_of(shares, problem) - problem.gpus) / np.maximum(problem.gpus, 1.0),
        -shares.alone.ravel(),
        -shares.paired.ravel(),
    )
    return float(np.concatenate(excesses).max(initial=0.0))
