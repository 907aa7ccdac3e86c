"""Share policies written out plainly, job by job, over scipy: slow, obvious, and sharing no line
with the product's programs.

A row is a job alone or a pair of jobs; a variable is the part of the wall clock that a row has in a
column (Gavel, section 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from policies.gavel.allocation.problem import AllocationProblem, Shares

Vector = NDArray[np.float64]


class Bound(NamedTuple):
    """coefficients @ x >= at_least."""

    coefficients: Vector
    at_least: float


class Textbook:
    """The jobs of a problem one by one; `class_of[i]` is the class of job i."""

    def __init__(self, problem: AllocationProblem) -> None:
        self.problem = problem
        self.class_of = [m for m, n in enumerate(problem.count) for _ in range(n)]
        self.jobs = range(len(self.class_of))
        paired = {(int(a), int(b)) for a, b in problem.pairs}
        together = [
            (i, j)
            for i, j in combinations(self.jobs, 2)
            if (self.class_of[i], self.class_of[j]) in paired
        ]
        self.rows: list[tuple[int, ...]] = [*((i,) for i in self.jobs), *together]
        self.variables = [(row, c) for row in self.rows for c in range(len(problem.columns))]

    def rate(self, job: int, row: tuple[int, ...], column: int) -> float:
        """T[row, column] of a job of the row."""
        if job not in row:
            return 0.0
        if len(row) == 1:
            return float(self.problem.rates[self.class_of[job], column])
        classes = [self.class_of[j] for j in row]
        p = self.problem.pairs.tolist().index(classes)
        return float(self.problem.pair_rates[p, column, row.index(job)])

    def throughput(self, job: int) -> Vector:
        """throughput(job, X) as coefficients of X."""
        return np.array([self.rate(job, row, c) for row, c in self.variables])

    def equal(self, job: int) -> float:
        """throughput(job, X_equal)."""
        n = self.problem.gpus
        return float(
            sum(self.problem.rates[self.class_of[job], j] * n[j] / n.sum() for j in range(len(n)))
        )

    def fastest(self, job: int) -> float:
        """throughput(job, X_fastest)."""
        return float(max(self.problem.rates[self.class_of[job]]))

    def isolated(self, job: int) -> float:
        """throughput(job, X_isolated)."""
        m = self.class_of[job]
        x = [n / len(self.jobs) / self.problem.scale[m] for n in self.problem.gpus]
        return float(
            sum(t * part for t, part in zip(self.problem.rates[m], x, strict=True))
            / max(sum(x), 1.0)
        )

    def normalised(self, job: int) -> Vector:
        """s_m * throughput(m, X) / throughput(m, X_equal)."""
        return (
            self.throughput(job) * float(self.problem.scale[self.class_of[job]]) / self.equal(job)
        )

    def weight(self, job: int) -> float:
        return float(self.problem.weight[self.class_of[job]])

    def limits(self) -> tuple[list[Vector], list[float]]:
        """The feasible set: what must be <= what."""
        left, right = [], []
        for job in self.jobs:
            left.append(np.array([float(job in row) for row, _ in self.variables]))
            right.append(1.0)
        for j, n in enumerate(self.problem.gpus):
            of_type = [self.problem.column_type[c] == j for _, c in self.variables]
            scale = [float(self.problem.scale[self.class_of[row[0]]]) for row, _ in self.variables]
            left.append(np.array(scale) * of_type)
            right.append(float(n))
        return left, right

    def usable(self) -> list[tuple[float, float | None]]:
        """0 <= X, and X = 0 where a job of the row cannot run."""
        return [
            (0.0, None if all(self.rate(j, row, c) > 0.0 for j in row) else 0.0)
            for row, c in self.variables
        ]

    def best(self, objective: Vector, bounds: Sequence[Bound] = ()) -> float | None:
        """The highest objective @ X; None where the bounds cannot be kept."""
        left, right = self.limits()
        return _highest(
            objective,
            [*left, *(-b.coefficients for b in bounds)],
            [*right, *(-b.at_least for b in bounds)],
            self.usable(),
        )

    def max_min(
        self,
        of: Sequence[Vector],
        per: Sequence[float],
        above: Sequence[float],
        bounds: Sequence[Bound] = (),
    ) -> float:
        """The highest z with of[i] @ X >= above[i] + z * per[i] for all i."""
        left, right = self.limits()
        left = [np.append(row, 0.0) for row in [*left, *(-b.coefficients for b in bounds)]]
        right = [*right, *(-b.at_least for b in bounds)]
        left += [np.append(-row, part) for row, part in zip(of, per, strict=True)]
        right += [-x for x in above]
        objective = np.append(np.zeros(len(self.variables)), 1.0)
        found = _highest(objective, left, right, [*self.usable(), (None, None)])
        assert found is not None
        return found

    def running(self) -> list[int]:
        """Jobs that can run somewhere."""
        return [i for i in self.jobs if self.fastest(i) > 0.0]


def _highest(
    objective: Vector, left: list[Vector], right: list[float], bounds: list[Any]
) -> float | None:
    found = linprog(
        -objective, A_ub=np.array(left), b_ub=np.array(right), bounds=bounds, method="highs"
    )
    assert found.status in (0, 2), found.message
    return -float(found.fun) if found.status == 0 else None


def excess(problem: AllocationProblem, shares: Shares) -> float:
    """The most by which a class has more time than its jobs, a type more use than GPUs, or anything
    less than none.
    """
    over = [-float(min(shares.alone.min(initial=0.0), shares.paired.min(initial=0.0)))]
    for m, n in enumerate(problem.count):
        beside = sum(
            float(shares.paired[p].sum()) * list(pair).count(m)
            for p, pair in enumerate(problem.pairs)
        )
        over.append(float(shares.alone[m].sum()) + beside - float(n))
    for j, n in enumerate(problem.gpus):
        columns = [c for c in range(len(problem.columns)) if problem.column_type[c] == j]
        alone = sum(
            float(shares.alone[m, c] * problem.scale[m])
            for m in range(len(problem.count))
            for c in columns
        )
        paired = sum(
            float(shares.paired[p, c] * problem.scale[a])
            for p, (a, _) in enumerate(problem.pairs)
            for c in columns
        )
        over.append(alone + paired - float(n))
    return max(over)


def fairness(problem: AllocationProblem) -> float:
    """max min s_m / w_m * throughput(m, X) / throughput(m, X_equal)."""
    book = Textbook(problem)
    jobs = book.running()
    return (
        book.max_min(
            [book.normalised(i) for i in jobs], [book.weight(i) for i in jobs], [0.0] * len(jobs)
        )
        if jobs
        else 0.0
    )


def makespan(problem: AllocationProblem, steps: Sequence[float]) -> float:
    """1 / the highest z with throughput(m, X) >= z * steps_m."""
    book = Textbook(problem)
    jobs = book.running()
    z = book.max_min(
        [book.throughput(i) for i in jobs],
        [steps[book.class_of[i]] for i in jobs],
        [0.0] * len(jobs),
    )
    return 1.0 / z


def weighted_sum(problem: AllocationProblem, value: Sequence[float]) -> float:
    """The highest sum of value_m * throughput(m, X) over jobs."""
    book = Textbook(problem)
    found = book.best(
        sum(
            (book.throughput(i) * value[book.class_of[i]] for i in book.jobs),
            np.zeros(len(book.variables)),
        )
    )
    assert found is not None
    return found


def finish_time(
    problem: AllocationProblem,
    steps: Sequence[float],
    elapsed: Sequence[float],
    isolated: Sequence[float],
) -> float:
    """The lowest rho for which throughput(m, X) >= steps_m / (rho * D_m - t_m) can be had, by
    bisection.
    """
    book = Textbook(problem)
    jobs = book.running()
    m = [book.class_of[i] for i in jobs]
    whole = [isolated[k] + steps[k] / book.isolated(i) for i, k in zip(jobs, m, strict=True)]
    low = max(elapsed[k] / d for k, d in zip(m, whole, strict=True))
    high = low + 1e6

    def possible(rho: float) -> bool:
        needed = [steps[k] / (rho * d - elapsed[k]) for k, d in zip(m, whole, strict=True)]
        of = [book.throughput(i) / part for i, part in zip(jobs, needed, strict=True)]
        return book.max_min(of, [1.0] * len(jobs), [0.0] * len(jobs)) >= 1.0

    while high - low > 1e-8 * high:
        rho = (low + high) / 2.0
        low, high = (low, rho) if possible(rho) else (rho, high)
    return high


def cost_ratio(
    problem: AllocationProblem, cost: Sequence[float], floor: float, needed: Sequence[float]
) -> float:
    """The highest sum of throughput(m, X) / throughput(m, X_fastest) to the cost of X, by
    bisection.
    """
    book = Textbook(problem)
    progress = sum(
        (book.throughput(i) / book.fastest(i) for i in book.running()),
        np.zeros(len(book.variables)),
    )
    spent = np.array(
        [
            cost[problem.column_type[c]] * problem.scale[book.class_of[row[0]]]
            for row, c in book.variables
        ]
    )
    bounds = [
        Bound(book.throughput(i), max(floor * book.isolated(i), needed[book.class_of[i]]))
        for i in book.running()
    ]
    low, high = 0.0, 1e4
    while high - low > 1e-9 * high:
        ratio = (low + high) / 2.0
        something = Bound(spent, 0.1 * min(cost))
        best = book.best(progress - ratio * spent, [*bounds, something])
        assert best is not None
        low, high = (ratio, high) if best >= 0.0 else (low, ratio)
    return low


def water_filled(
    problem: AllocationProblem, entity_weight: Sequence[float], fifo: Sequence[bool] = ()
) -> list[float]:
    """The level of each job's normalised throughput after water filling, as section 4.3 has it:
    levels rise by a program, and a job is stuck if a program of its own cannot give it more while
    all others keep their levels. Queues are in the order of jobs.
    """
    book = Textbook(problem)
    entity = [int(problem.entity[book.class_of[i]]) for i in book.jobs]
    queued = [bool(fifo) and fifo[e] for e in entity]
    level, left = [0.0] * len(book.jobs), set(book.running())
    while left:
        weight = {}
        for e in set(entity):
            members = [i for i in sorted(left) if entity[i] == e]
            members = members[:1] if members and queued[members[0]] else members
            whole = sum(book.weight(i) for i in members)
            weight.update({i: entity_weight[e] * book.weight(i) / whole for i in members})
        held = [Bound(book.normalised(i), level[i] - 1e-9) for i in book.running()]
        rising = list(weight)
        z = book.max_min(
            [book.normalised(i) for i in rising],
            [weight[i] for i in rising],
            [level[i] for i in rising],
            held,
        )
        level = [x + max(z, 0.0) * weight.get(i, 0.0) for i, x in enumerate(level)]
        held = [Bound(book.normalised(i), level[i] - 1e-9) for i in book.running()]
        stuck = {i for i in left if (book.best(book.normalised(i), held) or 0.0) <= level[i] + 1e-6}
        assert stuck or z > 1e-9
        left -= stuck
    return level
