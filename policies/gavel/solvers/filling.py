"""Max-min fairness of few classes, water filled on a dense tableau: a tenth of a solver's time.

One tableau is kept through all levels, and what a level changes is a column. Rows are in the form
B^-1 A, `value` B^-1 b; columns are time of a class on a column of the problem, slacks of the rows
(jobs' time, GPUs, levels), and last the rise z of the level.
"""

from dataclasses import dataclass

import numpy as np

from policies.contract.snapshot import Floats, Ints
from policies.gavel.allocation.problem import AllocationProblem, Shares
from policies.gavel.solvers.program import DUST, excess
from policies.placement.kernels import compiled

DEGENERATE = 40
"""Steps without gain after which Bland's rule chooses, which never cycles."""
SMALLEST_PIVOT = 1e-9
SMALLEST_GAIN = 1e-11
STEPS_PER_ROW = 50
"""More than this and something is wrong: whoever called asks another solver."""


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
def entering(gain: Floats, by_index: bool) -> int:
    """Column that gains most by time, or the first that gains; -1 where none does."""
    best, found = SMALLEST_GAIN, -1
    for j in range(len(gain)):
        if gain[j] > best:
            best, found = gain[j], j
            if by_index:
                return j
    return found


@compiled
def leaving(table: Floats, value: Floats, basis: Ints, column: int, by_index: bool) -> int:
    """Row whose bound is met first; ties by largest pivot or lowest variable; or -1."""
    found, least = -1, np.inf
    for i in range(len(value)):
        part = table[i, column]
        if part > SMALLEST_PIVOT:
            ratio = max(value[i], 0.0) / part
            if ratio < least:
                found, least = i, ratio
            elif ratio == least and (
                basis[i] < basis[found] if by_index else part > table[found, column]
            ):
                found = i
    return found


@compiled
def rise(table: Floats, value: Floats, gain: Floats, basis: Ints) -> bool:
    """Go to the optimum of the last column, by the primal simplex; whether it was found."""
    idle = 0
    for _ in range(STEPS_PER_ROW * len(value)):
        by_index = idle > DEGENERATE
        column = entering(gain, by_index)
        if column < 0:
            return True
        row = leaving(table, value, basis, column, by_index)
        if row < 0:
            return False
        idle = idle + 1 if value[row] <= 0.0 else 0
        pivot(table, value, gain, basis, row, column)
    return False


@compiled
def row_of(basis: Ints, column: int) -> int:
    """Row in whose basis a column is; -1 where it is in none."""
    for i in range(len(basis)):
        if basis[i] == column:
            return i
    return -1


@compiled
def stop(
    table: Floats, gain: Floats, slack: Ints, level: Floats, reached: float, priced: float
) -> int:
    """Stop classes with a price on their rows at `reached`; the slack of the highest price, or -1.

    The rise leaves their rows: its column is that of before less those of their slacks (identity
    columns, so that B^-1 of them is in the table).
    """
    best, highest = priced, -1
    for k in range(len(slack)):
        price = -gain[slack[k]]
        if level[k] < 0.0 and price > priced:
            level[k] = reached
            table[:, -1] -= table[:, slack[k]]
            if price > best:
                best, highest = price, slack[k]
    return highest


@compiled
def fill(
    table: Floats, value: Floats, basis: Ints, slack: Ints, begin: Ints, priced: float
) -> Floats:
    """float64[K]: levels at which the classes of `slack` columns got stuck, rising together.

    `table` float64[R, V], `value` float64[R], `basis` int64[R]: changed to the last optimum's.
    `begin` int64[K]: a column of each class that enters first, so that levels rise without a
    degenerate step. `priced`: fraction of a rise's price that marks a class as stuck. All levels
    are below 0 if an optimum was not found.
    """
    level, reached, last = np.full(len(slack), -1.0), 0.0, table.shape[1] - 1
    gain = np.zeros(table.shape[1])
    for k in range(len(slack)):
        pivot(table, value, gain, basis, len(value) - len(slack) + k, begin[k])
    while level.min() < 0.0:
        gain[:] = 0.0
        gain[last] = 1.0
        found = rise(table, value, gain, basis)
        row = row_of(basis, last)
        reached += value[row] if row >= 0 else 0.0
        highest = stop(table, gain, slack, level, reached, priced) if found else -1
        if highest < 0:
            return np.full(len(slack), -1.0)
        if row >= 0:  # what has risen stays; its place in the basis goes to a slack, which is 0
            value[row] = 0.0
            pivot(table, value, gain, basis, row, highest)
    return level


@compiled
def tableau(
    rates: Floats, worth: Floats, count: Ints, scale: Ints, usage: Floats, gpus: Floats
) -> tuple[Ints, Ints, Floats, Floats, Ints]:
    """(class and column of each variable; table, value and first column of each class for `fill`).

    A variable is the time of a class on a column where it runs. Rows, in the basis of their
    slacks: time of a class on all columns <= count; GPUs of a type <= N; z - worth of its time +
    slack = 0. A class begins where its time is worth most, with nothing of nothing.
    """
    classes, types = len(count), len(gpus)
    place, column = np.nonzero(rates > 0.0)
    variables, rows = len(place), 2 * classes + types
    table, value = np.zeros((rows, variables + rows + 1)), np.zeros(rows)
    begin, most = np.zeros(classes, dtype=np.int64), np.full(classes, -1.0)
    for p in range(variables):
        k, c = place[p], column[p]
        table[k, p] = 1.0
        for t in range(types):
            table[classes + t, p] = usage[t, c] * scale[k]
        table[classes + types + k, p] = -worth[k, c]
        if worth[k, c] > most[k]:
            begin[k], most[k] = p, worth[k, c]
    for row in range(rows):
        table[row, variables + row] = 1.0
    table[classes + types :, -1] = 1.0
    value[:classes], value[classes : classes + types] = count, gpus
    return place, column, table, value, begin


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
    """(float64[K]: the level at which each class got stuck, float64[K, C]: its time).

    `rates` and `worth` float64[K, C]: steps/s on each column, of which every class has one, and how
    much a class's level rises with its time there. The others as a problem has them.
    """
    place, column, table, value, begin = tableau(rates, worth, count, scale, usage, gpus)
    classes, variables = len(count), len(place)
    basis = variables + np.arange(len(value))
    level = fill(table, value, basis, basis[len(value) - classes :].copy(), begin, priced)
    time = np.zeros(rates.shape)
    for row in range(len(value)):
        if basis[row] < variables:
            time[place[basis[row]], column[basis[row]]] = value[row]
    return level, time


MOST_CLASSES = 100
"""Most classes: the tableau grows with their square, and beyond HiGHS is as fast."""
STUCK_PRICE = 1e-6
"""Relative price above which a job counts as stuck; lower ones may be rounding errors."""
MISSED = 1e-9
"""By how much a level or a bound may be missed, in parts of it where it is above 1."""


@dataclass(frozen=True)
class SmallFilled:
    """`shares`, and float64[K] `level` of the classes that can run."""

    shares: Shares
    level: Floats

    @property
    def rounds(self) -> int:
        return len(set(self.level.tolist()))


def small_filling(problem: AllocationProblem, per: Floats, unit: float) -> SmallFilled | None:
    """Shares with which no job could have more without a poorer one's having less.

    `per` float64[M]: of a job's throughput for its level, 0 if it cannot run; `unit`: about the
    highest level. None with pairs, no or over MOST_CLASSES classes, or where the result misses
    MISSED.
    """
    of = np.flatnonzero(per * problem.fastest_rates > 0.0)
    if not 0 < len(of) <= MOST_CLASSES or len(problem.pairs):
        return None
    rates, count = problem.rates[of], problem.count[of]
    worth = rates * (per[of] / unit / count)[:, None]
    level, time = filled(
        rates, worth, count, problem.scale[of], problem.usage, problem.gpus, STUCK_PRICE
    )
    had = (time * worth).sum(axis=1)
    holds = (had >= level - MISSED * np.maximum(level, 1.0)).all() and (time >= -MISSED).all()
    if level[0] < 0.0 or not holds:
        return None
    alone = np.zeros(problem.rates.shape)
    alone[of] = np.where(time <= DUST * count[:, None], 0.0, time)
    shares = Shares(alone, np.zeros(problem.pair_rates.shape[:2]), float(level.min()) * unit)
    return SmallFilled(shares, level * unit) if excess(shares, problem) <= MISSED else None
