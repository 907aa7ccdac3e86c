"""The feasible set of every share policy as one linear program, solved by HiGHS (Gavel, eq. 1-3).

    sum over variables of class m of its time                <=  count_m   for every class m
    sum over variables of (GPUs of type j taken) * time      <=  N_j       for every GPU type j
    time                                                     >=  0

A pair within a class has its time twice (space sharing, section 3.1).

A policy adds its objective, and rows and columns of its own. The model is kept: after `solve` its
costs, bounds and coefficients may be changed, and the next `solve` starts from the last basis.
"""

from collections.abc import Mapping
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
"""Time of a class, in parts of its jobs' wall clock, that no solver of doubles tells from none."""
PRICED = 1e-9
"""A dual below this may be an error of rounding."""
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

CAREFUL: Mapping[str, Any] = {**OPTIONS, "presolve": "choose", "simplex_strategy": 1}
"""For what they could not solve: coefficients of very unlike size."""


class Program:
    """Linear program of a problem, which maximises.

    Its first columns are the problem's `variables`; `class_rows` and `type_rows` its first rows.
    SolverFailedError if HiGHS refuses a change: wrong shapes or infinite coefficients.
    """

    def __init__(self, problem: AllocationProblem) -> None:
        self.problem = problem
        self.variables = Variables.of_problem(problem)
        self.class_rows = np.arange(len(problem.count))
        self.type_rows = len(problem.count) + np.arange(len(problem.types))
        self._rows, self._columns = 0, 0
        self._solved = False
        self._read: Any = None
        self._highs = highspy.Highs()
        self._highs.setOptionValue("output_flag", False)
        self._pass_feasible_set()

    def _pass_feasible_set(self) -> None:
        upper = np.concatenate([self.problem.count, self.problem.gpus]).astype(np.float64)
        gpus = self.variables.gpus.below(len(self.class_rows))
        coefficients = Coefficients.joined(self.variables.times, gpus)
        starts, index, value = coefficients.packed(self.variables.size, by_rows=False)
        nothing, endless = np.zeros(self.variables.size), np.full(self.variables.size, inf)
        self._rows, self._columns = len(upper), self.variables.size
        size = self._columns, self._rows, len(value)
        how = int(highspy.MatrixFormat.kColwise), -1, 0.0  # -1: maximise
        bounds = (nothing, nothing, endless, np.full(len(upper), -inf), upper)
        integrality = np.zeros(self.variables.size, dtype=np.int32)
        matrix = _short(starts), _short(index), value, integrality
        self._check(self._highs.passModel(*size, *how, *bounds, *matrix), "the model")

    def add_rows(
        self, coefficients: Coefficients, lower: Floats, upper: Floats | None = None
    ) -> Ints:
        """Add rows lower <= coefficients @ columns <= upper (None: unbounded); their indices."""
        starts, index, value = coefficients.packed(len(lower), by_rows=True)
        above = np.full(len(lower), inf) if upper is None else upper
        matrix = len(value), _short(starts), _short(index), value
        self._check(self._highs.addRows(len(lower), lower, above, *matrix), "rows")
        self._rows += len(lower)
        return np.arange(self._rows - len(lower), self._rows)

    def add_throughputs(self, per: Floats, lower: float) -> Ints:
        """Add rows per_m * throughput of a job of m >= lower for classes with per_m > 0; indices.

        A `per` is lowered as far as it would make a coefficient larger than MOST.
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
        costs, matrix = (
            np.full(len(lower), cost),
            (len(value), _short(starts), _short(index), value),
        )
        self._check(self._highs.addCols(len(lower), costs, lower, upper, *matrix), "columns")
        self._columns += len(lower)
        return np.arange(self._columns - len(lower), self._columns)

    def add_column(
        self, rows: Ints, values: Floats, lower: float = 0.0, upper: float = inf, cost: float = 0.0
    ) -> int:
        """A new column with these values in these rows; returns its index."""
        coefficients = Coefficients(rows, np.zeros(len(rows), dtype=np.int64), values)
        return int(self.add_columns(coefficients, np.array([lower]), np.array([upper]), cost)[0])

    def maximise(self, costs: Floats, columns: Ints | None = None) -> None:
        """Maximise the sum of costs * columns (default: the variables); others cost 0."""
        whole = np.zeros(self._columns)
        whole[np.arange(self.variables.size) if columns is None else columns] = costs
        every = _short(np.arange(self._columns))
        changed = self._highs.changeColsCost(self._columns, every, whole)
        self._check(changed, "the objective")

    def bound_rows(self, rows: Ints, lower: Floats, upper: Floats) -> None:
        """Change the bounds of rows."""
        changed = self._highs.changeRowsBounds(len(rows), _short(rows), lower, upper)
        self._check(changed, "bounds of rows")

    def bound_columns(self, columns: Ints, lower: Floats, upper: Floats) -> None:
        """Change the bounds of columns."""
        changed = self._highs.changeColsBounds(len(columns), _short(columns), lower, upper)
        self._check(changed, "bounds of columns")

    def change(self, rows: Ints, column: int, values: Floats) -> None:
        """Change the coefficients of a column in some rows."""
        for row, value in zip(rows.tolist(), values.tolist(), strict=True):
            self._check(self._highs.changeCoeff(row, column, value), "a coefficient")

    def solve(self, method: Method | None = None) -> float:
        """Solve to optimality and return the objective.

        By default the simplex from the last basis; without one, if classes are many, the interior
        point. If that finds no optimum, again from nothing as HiGHS itself would begin. Raises
        SolverFailedError where that is none within TOLERANCE.
        """
        large = len(self.class_rows) >= MANY_CLASSES and not self._solved
        status = self._run(method or (Method.INTERIOR if large else Method.SIMPLEX), OPTIONS)
        if status != highspy.HighsModelStatus.kOptimal:
            self._check(self._highs.clearSolver(), "clearing the solver")
            status = self._run(Method.SIMPLEX, CAREFUL)
        self._solved = status == highspy.HighsModelStatus.kOptimal
        if not self._solved:
            ended = self._highs.modelStatusToString(status)
            raise SolverFailedError(f"a linear program of {self._size} ended as {ended}")
        info = self._highs.getInfo()
        self._read = self._highs.getSolution()
        broken, objective = info.max_primal_infeasibility, float(info.objective_function_value)
        if not (broken <= TOLERANCE and isfinite(objective)):
            raise SolverFailedError(
                f"a linear program of {self._size} broke a bound by {broken:.3g}"
            )
        return objective

    def keep_optimum(self) -> None:
        """Bound the program to its optima, for a second objective: priced rows and columns are
        fixed.

        By complementary slackness these are all optima. The basis stays feasible.
        """
        lp, found = self._highs.getLp(), self._read
        columns = found.col_dual, found.col_value, lp.col_lower_, lp.col_upper_, self.bound_columns
        rows = found.row_dual, found.row_value, lp.row_lower_, lp.row_upper_, self.bound_rows
        for duals, values, below, above, bound in (columns, rows):
            priced = np.flatnonzero(np.abs(np.array(duals)) > PRICED)
            value, lower, upper = (np.array(part)[priced] for part in (values, below, above))
            at = np.where(np.abs(value - lower) <= np.abs(upper - value), lower, upper)
            bound(priced, at, at)

    def _run(self, method: Method, options: Mapping[str, Any]) -> Any:
        for name, value in {**options, "solver": method.value}.items():
            self._check(self._highs.setOptionValue(name, value), name)
        self._check(self._highs.run(), "solving")
        return self._highs.getModelStatus()

    @property
    def _size(self) -> str:
        return f"{self._rows} rows and {self._columns} columns"

    def _check(self, status: Any, what: str) -> None:
        if status == highspy.HighsStatus.kError:
            raise SolverFailedError(f"HiGHS refused {what} of a linear program of {self._size}")

    @property
    def values(self) -> Floats:
        """float64: every column in the last solution."""
        return np.array(self._read.col_value)

    def duals(self, rows: Ints) -> Floats:
        """float64: increase of the objective with the bound of each row in the last solution."""
        return np.array(self._read.row_dual)[rows]

    def throughputs(self) -> Floats:
        """float64[M]: steps/s of all jobs of each class together in the last solution."""
        found = self.variables.throughputs
        return added(found.row, found.value * self.values[found.column], len(self.class_rows))

    def shares(self, objective: float, unit: float = 1.0, dust: float = DUST) -> Shares:
        """Return the last solution divided by `unit`, as shares.

        At most `dust` for each of a class's jobs becomes 0: no job must start for an error of
        rounding. Raises SolverFailedError where a constraint is broken by more than TOLERANCE.
        """
        time = self.values[: self.variables.size] / unit
        found = self._spread(time, objective)
        if not (broken := excess(found, self.problem)) <= TOLERANCE:
            raise SolverFailedError(
                f"the solution of a linear program of {self._size} breaks a constraint by"
                f" {broken:.3g}"
            )
        classes = np.concatenate([self.variables.of, self.variables.pair_class])
        jobs = self.problem.count[classes]
        return self._spread(np.where(time <= dust * jobs, 0.0, time), objective)

    def _spread(self, time: Floats, objective: float) -> Shares:
        variables, problem = self.variables, self.problem
        alone, paired = np.zeros(problem.rates.shape), np.zeros(problem.pair_rates.shape[:2])
        alone[variables.of, variables.column] = time[: len(variables.of)]
        paired[variables.pair, variables.pair_column] = time[len(variables.of) :]
        return Shares(alone, paired, objective)


def _short(index: Ints) -> NDArray[np.int32]:
    return index.astype(np.int32)


def time_of(shares: Shares, problem: AllocationProblem) -> Floats:
    """float64[M]: time of all jobs of a class; a pair within a class counts twice."""
    total: Floats = shares.alone.sum(axis=1)
    for side in (0, 1) if len(problem.pairs) else ():
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
    """Return the most by which shares break a constraint, relative to a bound above 1.

    0 if none is broken, NaN where shares are no numbers.
    """
    over = (
        (time_of(shares, problem) - problem.count) / np.maximum(problem.count, 1),
        (gpus_of(shares, problem) - problem.gpus) / np.maximum(problem.gpus, 1.0),
        -shares.alone.ravel(),
        -shares.paired.ravel(),
    )
    return float(np.concatenate(over).max(initial=0.0))
