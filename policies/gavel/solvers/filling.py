"""Max-min fairness of few classes, water filled on a dense tableau: a tenth of a solver's time.

All classes rise together to the highest common level (a linear program). Classes that cannot rise
further are stuck there, and the others rise on, level by level, until all are stuck. One simplex
tableau is kept through all levels; what a level changes is its last column.

The tableau is B^-1 A, with R rows and V columns, and `value` B^-1 b. Its columns are the times of
each class on each column of the problem where it runs, then the slack of each row, and last the
rise z of the level. Its rows bound the time of each class, the GPUs of each type, and the level of
each class. `basis` int64[R]: the column that is basic in each row. `gain` float64[V]: reduced
costs, the gain of z per unit of each column.
"""

from dataclasses import dataclass

import numpy as np

from policies.contract.snapshot import Floats, Ints
from policies.gavel.allocation.problem import AllocationProblem, Shares
from policies.gavel.solvers.program import DUST, excess
from policies.placement.kernels import compiled

MOST_CLASSES = 100
"""Most classes: the tableau grows with their square, and beyond HiGHS is as fast."""

STUCK_PRICE = 1e-6
"""Relative price above which a class counts as stuck; lower ones may be rounding errors."""

MISSED = 1e-9
"""Amount by which a level or a bound may be missed, relative to it where it is above 1."""

DEGENERATE = 40
"""Steps without gain after which Bland's rule chooses, which never cycles."""

SMALLEST_PIVOT = 1e-9
"""Largest element of the tableau that counts as 0."""

SMALLEST_GAIN = 1e-11
"""Largest reduced cost that counts as 0."""

STEPS_PER_ROW = 50
"""Most simplex steps per row; more are a failure, and the caller asks another solver."""


@dataclass(frozen=True)
class SmallFilled:
    """Shares, and float64[K]: the levels of the K classes that can run."""

    shares: Shares
    level: Floats

    @property
    def rounds(self) -> int:
        """Return the number of distinct levels."""
        return len(set(self.level.tolist()))


def small_filling(problem: AllocationProblem, per: Floats, unit: float) -> SmallFilled | None:
    """Return shares with which no job could have more without a poorer one's having less.

    A job's level is `per` float64[M] times its throughput; `per` is 0 if it cannot run. `unit`:
    about the highest level. None with pairs, without or with over MOST_CLASSES classes, or if the
    result misses a bound by more than MISSED.
    """
    runnable = np.flatnonzero(per * problem.fastest_rates > 0.0)
    if not 0 < len(runnable) <= MOST_CLASSES or len(problem.pairs):
        return None

    # 1. Fill.
    rates = problem.rates[runnable]
    count = problem.count[runnable]
    worth = rates * (per[runnable] / unit / count)[:, None]
    level, time = filled(
        rates, worth, count, problem.scale[runnable], problem.usage, problem.gpus, STUCK_PRICE
    )

    # 2. Check the result.
    reached = (time * worth).sum(axis=1)
    has_levels = (reached >= level - MISSED * np.maximum(level, 1.0)).all()
    if level[0] < 0.0 or not has_levels or not (time >= -MISSED).all():
        return None
    alone = np.zeros(problem.rates.shape)
    alone[runnable] = np.where(time <= DUST * count[:, None], 0.0, time)
    paired = np.zeros(problem.pair_rates.shape[:2])
    shares = Shares(alone, paired, float(level.min()) * unit)
    if excess(shares, problem) <= MISSED:
        return SmallFilled(shares, level * unit)
    return None


@compiled
def filled(
    rates: Floats,
    worth: Floats,
    count: Ints,
    scale: Ints,
    usage: Floats,
    gpus: Floats,
    priced: float,
) -> tuple[Floats, Floats]:
    """Return float64[K]: the level at which each class got stuck, and float64[K, C]: its time.

    `rates` float64[K, C]: steps/s on each column; every class runs on one at least. `worth`
    float64[K, C]: rise of a class's level with its time there. `priced`: see `fill`. The others are
    as in `AllocationProblem`, of these classes.
    """
    class_of, column_of, table, value, begin = tableau(rates, worth, count, scale, usage, gpus)
    classes = len(count)
    variables = len(class_of)
    basis = variables + np.arange(len(value))
    level_slacks = basis[len(value) - classes :].copy()
    level = fill(table, value, basis, level_slacks, begin, priced)
    time = np.zeros(rates.shape)
    for row in range(len(value)):
        variable = basis[row]
        if variable < variables:
            time[class_of[variable], column_of[variable]] = value[row]
    return level, time


@compiled
def tableau(
    rates: Floats, worth: Floats, count: Ints, scale: Ints, usage: Floats, gpus: Floats
) -> tuple[Ints, Ints, Floats, Floats, Ints]:
    """Return (class of each variable, its column, table, value, begin), in the basis of the slacks.

    A variable is the time of a class on a column where it runs. `begin` int64[K]: the variable of
    each class that is worth most. Rows: time of a class on all columns <= count; GPUs of a type <=
    N; z - worth of a class's time + slack = 0.
    """
    classes = len(count)
    types = len(gpus)
    class_of, column_of = np.nonzero(rates > 0.0)
    variables = len(class_of)
    rows = 2 * classes + types
    table = np.zeros((rows, variables + rows + 1))
    value = np.zeros(rows)
    begin = np.zeros(classes, dtype=np.int64)
    most_worth = np.full(classes, -1.0)
    for variable in range(variables):
        k = class_of[variable]
        c = column_of[variable]
        table[k, variable] = 1.0
        for t in range(types):
            table[classes + t, variable] = usage[t, c] * scale[k]
        table[classes + types + k, variable] = -worth[k, c]
        if worth[k, c] > most_worth[k]:
            begin[k] = variable
            most_worth[k] = worth[k, c]
    for row in range(rows):
        table[row, variables + row] = 1.0
    table[classes + types :, -1] = 1.0
    value[:classes] = count
    value[classes : classes + types] = gpus
    return class_of, column_of, table, value, begin


@compiled
def fill(
    table: Floats, value: Floats, basis: Ints, slack: Ints, begin: Ints, priced: float
) -> Floats:
    """Return float64[K]: the level of each class, all below 0 if an optimum was not found.

    `table` float64[R, V], `value` float64[R], `basis` int64[R]: changed to the last optimum's.
    `slack` int64[K]: columns of the classes' slacks. `begin` int64[K]: a column of each class that
    enters first, so that levels rise without a degenerate step. `priced`: fraction of a rise's
    price that marks a class as stuck.
    """
    classes = len(slack)
    rise_column = table.shape[1] - 1
    level = np.full(classes, -1.0)
    reached = 0.0
    gain = np.zeros(table.shape[1])
    for k in range(classes):
        pivot(table, value, gain, basis, len(value) - classes + k, begin[k])
    while level.min() < 0.0:
        # 1. Rise as far as possible; mark those that are stuck then.
        gain[:] = 0.0
        gain[rise_column] = 1.0
        is_optimal = rise(table, value, gain, basis)
        row = row_of(basis, rise_column)
        if row >= 0:
            reached += value[row]
        highest = -1
        if is_optimal:
            highest = stop(table, gain, slack, level, reached, priced)
        if highest < 0:
            return np.full(classes, -1.0)

        # 2. What has risen stays: z is 0 again, and a slack that is 0 takes its place in the basis.
        if row >= 0:
            value[row] = 0.0
            pivot(table, value, gain, basis, row, highest)
    return level


@compiled
def stop(
    table: Floats, gain: Floats, slack: Ints, level: Floats, reached: float, priced: float
) -> int:
    """Stop rising classes whose rows have a price; return the slack of the highest one, or -1.

    Their `level` becomes `reached`. The rise leaves their rows: its column becomes that of before
    less those of their slacks (identity columns, so that B^-1 of them is in the table).
    """
    highest_price = priced
    highest = -1
    for k in range(len(slack)):
        price = -gain[slack[k]]
        if level[k] < 0.0 and price > priced:
            level[k] = reached
            table[:, -1] -= table[:, slack[k]]
            if price > highest_price:
                highest_price = price
                highest = slack[k]
    return highest


@compiled
def rise(table: Floats, value: Floats, gain: Floats, basis: Ints) -> bool:
    """Go to the optimum for `gain` by the primal simplex; return if it was found."""
    steps_without_gain = 0
    for _ in range(STEPS_PER_ROW * len(value)):
        is_by_index = steps_without_gain > DEGENERATE
        column = entering(gain, is_by_index)
        if column < 0:
            return True
        row = leaving(table, value, basis, column, is_by_index)
        if row < 0:
            return False
        if value[row] <= 0.0:
            steps_without_gain += 1
        else:
            steps_without_gain = 0
        pivot(table, value, gain, basis, row, column)
    return False


@compiled
def entering(gain: Floats, is_by_index: bool) -> int:
    """Return the column that gains most, or the first that gains; -1 if none does."""
    most_gain = SMALLEST_GAIN
    best = -1
    for j in range(len(gain)):
        if gain[j] > most_gain:
            if is_by_index:
                return j
            most_gain = gain[j]
            best = j
    return best


@compiled
def leaving(table: Floats, value: Floats, basis: Ints, column: int, is_by_index: bool) -> int:
    """Return the row whose bound is met first when `column` enters, or -1.

    Ties go to the largest pivot or the lowest variable.
    """
    first = -1
    least_ratio = np.inf
    for i in range(len(value)):
        part = table[i, column]
        if part <= SMALLEST_PIVOT:
            continue
        ratio = max(value[i], 0.0) / part
        if ratio < least_ratio:
            first = i
            least_ratio = ratio
        elif ratio == least_ratio:
            has_lower_index = basis[i] < basis[first]
            has_larger_pivot = part > table[first, column]
            if (is_by_index and has_lower_index) or (not is_by_index and has_larger_pivot):
                first = i
    return first


@compiled
def pivot(table: Floats, value: Floats, gain: Floats, basis: Ints, row: int, column: int) -> None:
    """Let `column` enter the basis in `row`; columns change all at once, which is fastest."""
    factor = table[row, column]
    table[row] /= factor
    value[row] /= factor
    source = table[row].copy()
    for i in range(len(value)):
        part = table[i, column]
        if i != row and part != 0.0:
            target = table[i]
            for j in range(len(source)):
                target[j] -= part * source[j]
            value[i] -= part * value[row]
            table[i, column] = 0.0
    part = gain[column]
    if part != 0.0:
        for j in range(len(source)):
            gain[j] -= part * source[j]
        gain[column] = 0.0
    table[row, column] = 1.0
    basis[row] = column


@compiled
def row_of(basis: Ints, column: int) -> int:
    """Return the row in which a column is basic; -1 if in none."""
    for i in range(len(basis)):
        if basis[i] == column:
            return i
    return -1
