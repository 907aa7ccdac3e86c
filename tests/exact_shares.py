"""Water filling in whole fractions: no tolerance and no rounding, for a handful of classes.

Levels rise together (Gavel, section 4.3); who is stuck is asked one by one: whoever can have no
more than the level while nobody falls below his own. Programs are solved by the simplex with
Bland's rule, which ends whatever the ties.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from policies.gavel.allocation.problem import AllocationProblem

Row = list[Fraction]
ZERO, ONE = Fraction(0), Fraction(1)


def exact_levels(problem: AllocationProblem) -> list[float]:
    """By class s_m / w_m * throughput(m, X) / throughput(m, X_equal), of whoever can run; 0 of the
    others.
    """
    return [float(level) for level in _Classes(problem).levels()]


def maximum(costs: Row, rows: Sequence[Row], bounds: Row) -> Fraction:
    """max costs x   s.t.   rows x <= bounds, x >= 0; some x is feasible, and the maximum is
    finite.
    """
    program = _Tableau(rows, bounds, len(costs))
    if min(bounds) < 0:
        program.make_feasible()
    return program.maximised(costs)


class _Classes:
    """Variables: time of each class on each column, then the level z that rises."""

    def __init__(self, problem: AllocationProblem) -> None:
        self.rates = [[Fraction(rate) for rate in row] for row in problem.rates.tolist()]
        self.gpus = [Fraction(n) for n in problem.gpus.tolist()]
        self.scale, self.count = problem.scale.tolist(), problem.count.tolist()
        self.weight = [Fraction(w) for w in problem.weight.tolist()]
        self.size = len(self.rates) * len(self.gpus) + 1
        self.of = [m for m in range(len(self.rates)) if self._equal(m) > 0]

    def levels(self) -> Row:
        stuck: dict[int, Fraction] = {}
        while len(stuck) < len(self.of):
            rising = [m for m in self.of if m not in stuck]
            z = maximum(
                self._row({self.size - 1: ONE}), *self._floors({**dict.fromkeys(rising), **stuck})
            )
            held = self._floors({**dict.fromkeys(rising, z), **stuck})
            stuck |= {m: z for m in rising if maximum(self._level(m), *held) == z}
        return [stuck.get(m, ZERO) for m in range(len(self.rates))]

    def _floors(self, floors: Mapping[int, Fraction | None]) -> tuple[list[Row], Row]:
        """Jobs have as much time as there is, types as many GPUs, and classes at least their floor;
        None: the level z.
        """
        types = range(len(self.gpus))
        rows = [self._row({self._at(m, t): ONE for t in types}) for m in range(len(self.rates))]
        rows += [
            self._row({self._at(m, t): Fraction(s) for m, s in enumerate(self.scale)})
            for t in types
        ]
        bounds = [*map(Fraction, self.count), *self.gpus]
        for m, floor in floors.items():
            row = [-part for part in self._level(m)]
            row[-1] = ONE if floor is None else ZERO
            rows.append(row)
            bounds.append(ZERO if floor is None else -floor)
        return rows, bounds

    def _level(self, m: int) -> Row:
        per = self.scale[m] / (self.weight[m] * self._equal(m) * self.count[m])
        return self._row({self._at(m, t): per * rate for t, rate in enumerate(self.rates[m])})

    def _equal(self, m: int) -> Fraction:
        total: Fraction = sum(
            (rate * n for rate, n in zip(self.rates[m], self.gpus, strict=True)), ZERO
        ) / sum(self.gpus, ZERO)
        return total

    def _at(self, m: int, t: int) -> int:
        return m * len(self.gpus) + t

    def _row(self, parts: dict[int, Fraction]) -> Row:
        return [parts.get(i, ZERO) for i in range(self.size)]


class _Tableau:
    """n variables, a slack of each row, and one more that makes any bound possible: it is
    subtracted from every row.
    """

    def __init__(self, rows: Sequence[Row], bounds: Row, n: int) -> None:
        slacks = range(len(rows))
        self.rows = [
            [*row, *(Fraction(i == j) for j in slacks), -ONE, bounds[i]]
            for i, row in enumerate(rows)
        ]
        self.basis = [n + i for i in slacks]
        self.extra = n + len(rows)

    def make_feasible(self) -> None:
        """Make the extra variable as large as the lowest bound needs, then as small as can be:
        0.
        """
        self._enter(min(range(len(self.rows)), key=lambda i: self.rows[i][-1]), self.extra)
        left = self._solve([ZERO] * self.extra + [-ONE, ZERO], lambda j: True)
        assert left == 0, "nothing is feasible"
        if self.extra in self.basis:
            row = self.basis.index(self.extra)
            self._enter(row, next(j for j in range(self.extra) if self.rows[row][j] != 0))

    def maximised(self, costs: Row) -> Fraction:
        return self._solve(
            [*costs, *[ZERO] * (self.extra + 2 - len(costs))], lambda j: j != self.extra
        )

    def _solve(self, gain: Row, may_enter: Callable[[int], bool]) -> Fraction:
        for row, of in zip(self.rows, self.basis, strict=True):
            gain = _less(gain, gain[of], row)
        while (
            column := next((j for j in range(self.extra + 1) if gain[j] > 0 and may_enter(j)), None)
        ) is not None:
            ratios = [
                (row[-1] / row[column], self.basis[i], i)
                for i, row in enumerate(self.rows)
                if row[column] > 0
            ]
            leaving = min(ratios)[-1]
            self._enter(leaving, column)
            gain = _less(gain, gain[column], self.rows[leaving])
        return -gain[-1]

    def _enter(self, row: int, column: int) -> None:
        pivot = self.rows[row][column]
        self.rows[row] = [part / pivot for part in self.rows[row]]
        for i, other in enumerate(self.rows):
            if i != row:
                self.rows[i] = _less(other, other[column], self.rows[row])
        self.basis[row] = column


def _less(row: Row, times: Fraction, other: Row) -> Row:
    return [a - times * b for a, b in zip(row, other, strict=True)] if times else row
