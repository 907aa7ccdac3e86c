"""Max-min programs: one level for all classes, and water filling (Gavel, sections 4.1 and 4.3).

    level    max z      s.t.  per_m * throughput of a job of m >= z   for every class with per_m > 0

Fairness (Least Attained Service) has l_m = s_m / w_m * throughput(m, X) / throughput(m, X_equal).
Water filling goes on for those to whom the first level leaves more, of jobs or of entities and the
jobs in them. An entity's weight is shared among its jobs: by their weights (fairness), or all of it
for the first of its queue (FIFO). Entities may be parts of a whole, as users are of a team: they
share its weight equally, and their jobs theirs by their weights. Levels of jobs rise together, each
as fast as its weight, until one is stuck: it could rise no more without another's falling below its
own level. The stuck keep what they have, their weight goes to the others of the entity, and the
rest rises on until all are stuck.

    rise     max z      s.t.  l_m >= a_e = base_e + r_e z   for rising jobs m of entity e
                              l_m >= level_m                for the stuck
    stuck    rows with a price in the rise (complementary slackness). Where a rise gains nothing,
             and for jobs that wait in a queue:
    probe    max sum d  s.t.  the same with z = 0,   l_m - best_m d_m >= ...,   0 <= d_m <= cap,
             again for those with d_m = 0 until it finds nothing: the rest are stuck.

One program is kept throughout; each step changes bounds and a few coefficients and goes on from the
last basis. The paper finds the stuck by a mixed-integer program (appendix A.1), which gives the
same set.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from policies.contract.policy import SolverFailedError
from policies.contract.snapshot import Bools, Floats, Ints
from policies.gavel.allocation.problem import AllocationProblem, Coefficients, Shares
from policies.gavel.solvers.filling import STUCK_PRICE, SmallFilled, small_filling
from policies.gavel.solvers.program import DUST, PRICED, Program


class Scaled:
    """Program with a row for each class that counts: per_m * throughput of a job / unit >= 0.

    `of` int64[K]: classes with per_m > 0 that can run, `rows` int64[K]: theirs, `best` float64[K]:
    a job's value with all its time where it is fastest. The unit is about the highest possible
    minimum, so that rows are near 1.
    """

    def __init__(self, problem: AllocationProblem, per: Floats, unit: float | None = None) -> None:
        self.program = Program(problem)
        best = per * self.program.variables.best_rates
        self.of = np.flatnonzero(best > 0.0)
        self.unit = unit or highest_level(problem, best)
        scaled = self.program.bounded(np.where(best > 0.0, per / self.unit, 0.0))
        self.best = (scaled * self.program.variables.best_rates)[self.of]
        self.rows = self.program.add_throughputs(scaled, 0.0)


class Levels(Scaled):
    """Rows less a level that all have in common, a column of its own."""

    def __init__(self, problem: AllocationProblem, per: Floats) -> None:
        super().__init__(problem, per)
        self.level = self.program.add_column(self.rows, np.full(len(self.rows), -1.0))

    def raised(self) -> float:
        """Return the highest level that all classes can have at once."""
        self.program.maximise(np.ones(1), np.array([self.level]))
        return self.program.solve() * self.unit

    def fill(self) -> None:
        """Use leftover time where it brings most, with no job below the level.

        Nothing is left if every class that can run has a price on its row (complementary
        slackness).
        """
        priced = int((np.abs(self.program.duals(self.rows)) > PRICED).sum())
        if priced == (self.program.variables.best_rates > 0.0).sum():
            return
        self.program.keep_optimum()
        fastest = self.program.problem.fastest_rates
        self.program.maximise(self.program.variables.sums(inverse(fastest)))
        self.program.solve()


def max_min(problem: AllocationProblem, per: Floats, *, fill: bool) -> Shares:
    """Shares of the highest level, their objective; 0 if no class with per_m > 0 can run.

    With `fill`, leftover time goes where it brings most. Raises SolverFailedError.
    """
    levels = Levels(problem, per)
    if not len(levels.of):
        return idle(problem)
    level = levels.raised()
    if fill:
        levels.fill()
    return levels.program.shares(level)


def idle(problem: AllocationProblem) -> Shares:
    """Shares of zeros."""
    return Shares(np.zeros(problem.rates.shape), np.zeros(problem.pair_rates.shape[:2]), 0.0)


def highest_level(problem: AllocationProblem, best: Floats) -> float:
    """Bound of the highest level, given the `best` of each class (0: it does not count).

    The least of any job's best, and of all GPUs if each job ran where it takes the least of their
    time. 1 if no class counts.
    """
    if not len(of := np.flatnonzero(best > 0.0)):
        return 1.0
    gpus = (problem.count[of] * problem.scale[of] / best[of]).sum()
    return float(min(best[of].min(), problem.gpus.sum() / gpus))


def inverse(rates: Floats) -> Floats:
    """1 / rate, and 0 where the rate is 0."""
    return np.divide(1.0, rates, out=np.zeros(len(rates)), where=rates > 0.0)


def fairness(problem: AllocationProblem, *, fill: bool = False) -> Shares:
    """Shares of the highest least normalised throughput. Raises SolverFailedError."""
    return max_min(problem, fair_scaling(problem) / problem.weight, fill=fill)


def fair_scaling(problem: AllocationProblem) -> Floats:
    """float64[M]: s_m / throughput(m, X_equal), the normalisation; 0 if it cannot run."""
    return problem.scale * inverse(problem.equal_rates)


GAIN = 1e-7
"""Rise that counts as none, relative to the highest level and to a job's best."""
CAP = 1e-2
"""Limit of a job's rise in a probe, as a fraction of its best."""
SLACKS = (1e-12, 1e-9, 1e-8, 1e-7, 1e-6)
"""Fraction of a level not demanded again, as it was feasible within tolerance only."""


@dataclass(frozen=True, slots=True)
class Entity:
    """Weight that jobs share: by their own weights, or in the order of a queue (`fifo`).

    Entities with the same `whole` above 0 are its parts (a team's users): those with a rising job
    share one weight equally, which each of them names.
    """

    weight: float = 1.0
    fifo: bool = False
    whole: int = 0


@dataclass(frozen=True)
class Filled(Shares):
    """Shares whose `objective` is the first level l_m of those who rose in it.

    There w_m is the part of its entity's weight that a job had. Levels rose `rounds` times;
    `programs` were solved.
    """

    rounds: int = 0
    programs: int = 0


def fair_shares(problem: AllocationProblem) -> Filled:
    """Max-min fairness: no job could have more without a poorer one's having less.

    Few classes without pairs are filled without programs. Raises SolverFailedError.
    """
    small = filled_by_tableau(problem)
    if small is not None:
        return Filled(**vars(small.shares), rounds=small.rounds)
    return filled_by_programs(problem)


def filled_by_tableau(problem: AllocationProblem) -> SmallFilled | None:
    """Return the same for few classes without pairs; None where programs must find it."""
    per = fair_scaling(problem) / problem.weight
    unit = highest_level(problem, per * problem.fastest_rates)
    return small_filling(problem, per, unit)


def filled_by_programs(problem: AllocationProblem) -> Filled:
    """Max-min shares of any classes and pairs, by linear programs. Raises SolverFailedError."""
    whole = Entity(float((problem.weight * problem.count)[problem.equal_rates > 0.0].sum()))
    nobody = np.zeros(0, dtype=np.int64)
    return _Filling(problem, [whole], np.zeros(len(problem.count), dtype=np.int64), nobody).run()


def hierarchical_shares(
    problem: AllocationProblem, entities: Sequence[Entity], position: Ints | None = None
) -> Filled:
    """Fairness among entities by their weights, and inside each fairness or FIFO, water filled.

    `problem.entity` names each class's row in `entities`. `position` int64[M]: position in its
    entity's queue, lowest first, for entities with `fifo`, whose classes have one job each.
    ValueError where that or a weight above 0 is missing. Raises SolverFailedError.
    """
    if any(e.weight <= 0.0 for e in entities):
        raise ValueError("an entity's weight must be above 0")
    queued = np.array([e.fifo for e in entities], dtype=np.bool_)[problem.entity]
    if queued.any() and (position is None or (problem.count[queued] != 1).any()):
        raise ValueError(
            "jobs of an entity with a queue need their position in it, and a class of their own"
        )
    order = np.arange(len(queued)) if position is None else np.lexsort((position, ~queued))
    order = order[: int(queued.sum())]
    return _Filling(problem, entities, problem.entity, order).run()


class _Filling:
    """Program of a filling. Arrays over the K runnable classes or the E entities."""

    def __init__(
        self, problem: AllocationProblem, entities: Sequence[Entity], entity: Ints, queue: Ints
    ) -> None:
        self.problem = problem
        self.scaled = Scaled(problem, fair_scaling(problem) / problem.weight)
        self.program, self.of, self.rows = self.scaled.program, self.scaled.of, self.scaled.rows
        self.entity = entity[self.of]
        self.weight = np.array([e.weight for e in entities])
        self.whole = np.array([e.whole or -1 - i for i, e in enumerate(entities)], dtype=np.int64)
        self.mass = (problem.weight * problem.count)[self.of]
        self.waiting = _queues(queue, self.of, self.entity, len(entities))
        self.rising = np.array([not e.fifo for e in entities], dtype=np.bool_)[self.entity]
        self.stuck = np.zeros(len(self.of), dtype=np.bool_)
        self.floor = np.zeros(len(self.of))
        self.base, self.rate = np.zeros(len(entities)), np.zeros(len(entities))
        self.rounds = self.programs = self.slack = 0
        self._add_columns()

    def _add_columns(self) -> None:
        program, jobs, entities = self.program, len(self.of), len(self.weight)
        self.ties = program.add_rows(Coefficients.none(), np.zeros(entities), np.zeros(entities))
        rising = np.flatnonzero(self.rising)
        below = Coefficients(self.rows[rising], self.entity[rising], np.full(len(rising), -1.0))
        tied = Coefficients(self.ties, np.arange(entities), np.ones(entities))
        self.levels = program.add_columns(
            Coefficients.joined(below, tied), np.zeros(entities), np.full(entities, inf)
        )
        self.rise = program.add_column(self.ties, np.zeros(entities))
        more = Coefficients(self.rows, np.arange(jobs), -self.scaled.best)
        self.more = program.add_columns(more, np.zeros(jobs), np.zeros(jobs))

    def run(self) -> Filled:
        """Fill until all are stuck."""
        if not len(self.of):
            return Filled(**vars(idle(self.problem)))
        for entity in range(len(self.weight)):
            self._call_next(entity)
        first = self._raise_levels() * self.scaled.unit
        while not self.stuck.all():
            self._raise_levels()
        shares = self.program.shares(first, dust=max(DUST, 10.0 * SLACKS[self.slack]))
        return Filled(shares.alone, shares.paired, shares.objective, self.rounds, self.programs)

    def _raise_levels(self) -> float:
        """One rise, after which at least one more job is stuck; returns it by weight, in units."""
        fastest = self._tie()
        gain = self._solve(np.ones(1), np.array([self.rise])) / fastest
        self.base = np.maximum(self.base, self.program.values[self.levels])
        price = np.abs(self.program.duals(self.rows)) * self.rate[self.entity]
        stuck = self.rising & (price > STUCK_PRICE)
        if not stuck.any():
            raise SolverFailedError(
                "levels of shares rose as far as they can, but no job has a price"
            )
        self.rounds += 1
        self._stop(stuck)
        if gain * fastest <= GAIN * max(1.0, float(self.base.max())):
            self._probe()
        return gain

    def _tie(self) -> float:
        """Let each entity rise by its weight; returns the fastest rate, which becomes 1."""
        mass = np.bincount(
            self.entity[self.rising], weights=self.mass[self.rising], minlength=len(self.weight)
        )
        rises = mass > 0.0
        _, whole, parts = np.unique(self.whole[rises], return_inverse=True, return_counts=True)
        rate = np.zeros(len(mass))
        rate[rises] = self.weight[rises] / parts[whole] / mass[rises]
        fastest = float(rate.max())
        self.rate = rate / fastest
        self.program.change(self.ties, self.rise, -self.rate)
        return fastest

    def _stop(self, stuck: Bools) -> None:
        self.floor[stuck & self.rising] = self.base[self.entity[stuck & self.rising]]
        self.stuck |= stuck
        self._let_rise(np.flatnonzero(stuck & self.rising), False)
        for entity in np.unique(self.entity[stuck]).tolist():
            self._call_next(entity)

    def _call_next(self, entity: int) -> None:
        """Let the next of the entity's queue rise, from nothing, if nobody of it does."""
        queue = self.waiting[entity]
        if not queue or (self.rising & (self.entity == entity)).any():
            return
        while queue and self.stuck[queue[-1]]:
            queue.pop()
        if queue:
            self.base[entity] = 0.0
            self._let_rise(np.array([queue.pop()]), True)

    def _let_rise(self, jobs: Ints, rises: bool) -> None:
        self.rising[jobs] = rises
        for entity in np.unique(self.entity[jobs]).tolist():
            of = jobs[self.entity[jobs] == entity]
            self.program.change(
                self.rows[of], int(self.levels[entity]), np.full(len(of), -1.0 if rises else 0.0)
            )

    def _probe(self) -> None:
        """Find the stuck: those that no program can raise while nobody else falls."""
        self._hold_rise(True)
        doubtful = ~self.stuck
        while doubtful.any():
            self.program.bound_columns(
                self.more, np.zeros(len(self.of)), np.where(doubtful, CAP, 0.0)
            )
            self._solve(np.ones(int(doubtful.sum())), self.more[doubtful])
            more = (
                self.program.values[self.more] > GAIN + SLACKS[self.slack] * self.problem.gpus.sum()
            )
            if not (more & doubtful).any():
                break
            doubtful &= ~more
        self.program.bound_columns(self.more, np.zeros(len(self.of)), np.zeros(len(self.of)))
        self._hold_rise(False)
        self._stop(doubtful)

    def _hold_rise(self, hold: bool) -> None:
        self.program.bound_columns(
            np.array([self.rise]), np.zeros(1), np.array([0.0 if hold else inf])
        )

    def _solve(self, costs: Floats, columns: Ints) -> float:
        """Return the highest sum at which no job falls below its level."""
        self.program.maximise(costs, columns)
        for slack in SLACKS[self.slack :]:
            self.programs += 1
            self._hold_levels(1.0 - slack)
            try:
                return self.program.solve()
            except SolverFailedError as error:
                why = error
            self.slack = min(self.slack + 1, len(SLACKS) - 1)
        raise SolverFailedError(
            f"levels could not be held, not even but for {SLACKS[-1]} of them: {why}"
        ) from why

    def _hold_levels(self, part: float) -> None:
        lower = np.where(self.stuck, self.floor * part, 0.0)
        self.program.bound_rows(self.rows, lower, np.full(len(lower), inf))
        self.program.bound_rows(self.ties, self.base * part, self.base * part)


def _queues(queue: Ints, of: Ints, entity: Ints, entities: int) -> list[list[int]]:
    """Waiting classes of each entity by position in `of`, the first in the queue last."""
    number = {int(m): k for k, m in enumerate(of)}
    waiting: list[list[int]] = [[] for _ in range(entities)]
    for m in queue[::-1].tolist():
        if m in number:
            waiting[entity[number[m]]].append(number[m])
    return waiting
