"""Gavel's policies as the paper writes them, job by job, with cvxpy: slow, obvious, independent.

They share with the product only the feasible set of `policies.gavel.convex.ShareProblem`, which
`excess` checks once more in plain loops.
"""

from collections.abc import Sequence

import cvxpy as cp
import numpy as np

from policies.contract.policy import SolverFailedError
from policies.gavel.allocation.problem import AllocationProblem, Shares
from policies.gavel.convex import ShareProblem
from tests.builders_shares import jobs_of


class Textbook(ShareProblem):
    """The share problem of a problem's jobs one by one; `class_of[i]` is the class of job i."""

    def __init__(self, problem: AllocationProblem) -> None:
        super().__init__(jobs_of(problem))
        self.class_of = np.repeat(np.arange(len(problem.count)), problem.count)
        self.jobs = range(len(self.class_of))
        time = np.outer(1.0 / self.scale, self.problem.gpus) / max(len(self.jobs), 1)
        total = np.maximum(time.sum(axis=1), 1.0)
        self.isolated_rates = (self.problem.type_rates * time).sum(axis=1) / total
        """float64[J]: throughput(job, X_isolated)."""

    def best(self, objective: cp.Expression, bounds: Sequence[cp.Constraint] = ()) -> float | None:
        """The highest objective; None where the bounds cannot be kept."""
        try:
            return self.maximise(objective, bounds).objective
        except SolverFailedError:
            return None

    def highest(self, objective: cp.Expression, bounds: Sequence[cp.Constraint] = ()) -> float:
        """The highest objective of a program that has a solution."""
        return self.maximise(objective, bounds).objective


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
    level = cp.multiply(book.normalised, 1.0 / book.weight)
    return book.highest(cp.min(level[book.runnable])) if book.runnable else 0.0


def makespan(problem: AllocationProblem, steps: Sequence[float]) -> float:
    """1 / the highest z with throughput(m, X) >= z * steps_m, steps in units of the longest job."""
    book = Textbook(problem)
    left = np.array(steps)[book.class_of]
    longest = float(left[book.runnable].max())
    done = cp.multiply(book.throughput, longest / left)
    return longest / book.highest(cp.min(done[book.runnable]))


def weighted_sum(problem: AllocationProblem, value: Sequence[float]) -> float:
    """The highest sum of value_m * throughput(m, X) over jobs."""
    book = Textbook(problem)
    return book.highest(np.array(value)[book.class_of] @ book.throughput)


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
    jobs = book.runnable
    left, gone, alone = (np.array(of)[book.class_of][jobs] for of in (steps, elapsed, isolated))
    whole = alone + left / book.isolated_rates[jobs]
    low = float((gone / whole).max())
    high = low + 1e6
    per_needed = cp.Parameter(len(jobs), nonneg=True)
    slowest = cp.min(cp.multiply(per_needed, book.throughput[jobs]))
    program = cp.Problem(cp.Maximize(slowest), book.constraints())
    while high - low > 1e-8 * high:
        rho = (low + high) / 2.0
        per_needed.value = (rho * whole - gone) / left
        program.solve(solver=cp.HIGHS)
        low, high = (low, rho) if program.value >= 1.0 else (rho, high)
    return high


def cost_ratio(
    problem: AllocationProblem, cost: Sequence[float], floor: float, needed: Sequence[float]
) -> float:
    """The highest sum of throughput(m, X) / throughput(m, X_fastest) to the cost of X, by
    bisection.
    """
    book = Textbook(problem)
    jobs = book.runnable
    progress = (1.0 / book.fastest_rates[jobs]) @ book.throughput[jobs]
    spent = np.array(cost) @ book.gpus_used
    wanted = np.maximum(floor * book.isolated_rates, np.array(needed)[book.class_of])[jobs]
    bounds = [book.throughput[jobs] >= wanted, spent >= 0.1 * min(cost), *book.constraints()]
    price = cp.Parameter(nonneg=True)
    program = cp.Problem(cp.Maximize(progress - price * spent), bounds)
    low, high = 0.0, 1e4
    while high - low > 1e-9 * high:
        price.value = (low + high) / 2.0
        program.solve(solver=cp.HIGHS)
        assert program.status == cp.OPTIMAL
        low, high = (price.value, high) if program.value >= 0.0 else (low, price.value)
    return low


def water_filled(
    problem: AllocationProblem, entity_weight: Sequence[float], fifo: Sequence[bool] = ()
) -> list[float]:
    """The level of each job's normalised throughput after water filling (section 4.3).

    Levels rise by a program. A job is stuck if a program of its own cannot give it more while all
    others keep their levels. Queues are in the order of jobs.
    """
    book = Textbook(problem)
    reached = book.normalised
    level, left = np.zeros(len(book.jobs)), set(book.runnable)
    while left:
        weight = _rising(book, left, entity_weight, fifo)
        rising = list(weight)
        rise = cp.multiply(reached[rising] - level[rising], 1.0 / np.array(list(weight.values())))
        held = [reached >= level - 1e-9]
        z = max(book.highest(cp.min(rise), held), 0.0)
        level[rising] += z * np.array(list(weight.values()))
        held = [reached >= level - 1e-9]
        stuck = {i for i in left if (book.best(reached[i], held) or 0.0) <= level[i] + 1e-6}
        assert stuck or z > 1e-9
        left -= stuck
    return [float(x) for x in level]


def _rising(
    book: Textbook, left: set[int], entity_weight: Sequence[float], fifo: Sequence[bool]
) -> dict[int, float]:
    """Weight of each job whose level rises: its entity's, divided among the entity's jobs."""
    entity, weight = book.problem.entity, {}
    for e in sorted(set(entity.tolist())):
        members = [i for i in sorted(left) if entity[i] == e]
        members = members[:1] if fifo and fifo[e] else members
        whole = sum(book.weight[i] for i in members)
        weight.update({i: entity_weight[e] * book.weight[i] / whole for i in members})
    return weight
