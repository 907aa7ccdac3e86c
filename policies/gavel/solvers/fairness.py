"""Max-min programs: one level for all classes, and water filling (Gavel, sections 4.1 and 4.3).

    level    max z      s.t.  per_m * throughput of a job of m >= z   for every class with per_m > 0

Fairness (Least Attained Service) has levels l_m = s_m / w_m * throughput(m, X) / throughput(m,
X_equal). Water filling goes on for classes to which the first level leaves more: levels of jobs
rise together, each as fast as its weight, until one is stuck, that is, could rise no more without
another's falling below its own level. Stuck jobs keep their level, their weight goes to the others
of their entity, and the rest rises on until all are stuck.

An entity's weight is shared among its jobs: by their weights (fairness), or all of it goes to the
first of its queue (FIFO). Entities may be parts of a whole, as users are of a team: they share its
weight equally.

    rise     max z      s.t.  l_m >= a_e = base_e + r_e z   for rising jobs m of entity e
                              l_m >= level_m                for stuck jobs
             Jobs whose row has a price are stuck (complementary slackness).
    probe    where a rise gains nothing, and for jobs that wait in a queue:
             max sum d  s.t.  the same with z = 0,   l_m - best_m d_m >= ...,   0 <= d_m <= cap
             again for those with d_m = 0 until it finds nothing: the rest are stuck.

One program is kept throughout; each step changes bounds and a few coefficients and goes on from the
last basis. The paper finds the stuck jobs by a mixed-integer program (appendix A.1), which gives
the same set.
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

    `classes` int64[K]: those with per_m > 0 that can run; `rows` int64[K]: their rows; `best`
    float64[K]: value of a row if a job has all its time where it is fastest. `unit` is by default
    about the highest possible minimum, so that rows are near 1.
    """

    def __init__(self, problem: AllocationProblem, per: Floats, unit: float | None = None) -> None:
        self.program = Program(problem)
        best_rates = self.program.variables.best_rates
        best = per * best_rates
        self.classes = np.flatnonzero(best > 0.0)
        self.unit = unit or highest_level(problem, best)
        scaled = self.program.bounded(np.where(best > 0.0, per / self.unit, 0.0))
        self.best = (scaled * best_rates)[self.classes]
        self.rows = self.program.add_throughputs(scaled, 0.0)


class Levels(Scaled):
    """Program whose rows are less a common level, which is a column of its own."""

    def __init__(self, problem: AllocationProblem, per: Floats) -> None:
        super().__init__(problem, per)
        self.level = self.program.add_column(self.rows, np.full(len(self.rows), -1.0))

    def raised(self) -> float:
        """Return the highest level that all classes can have at once."""
        self.program.maximise(np.ones(1), np.array([self.level]))
        return self.program.solve() * self.unit

    def fill(self) -> None:
        """Use leftover time where it brings most, with no job below the level."""
        # Nothing is left if every class that can run has a price (complementary slackness).
        priced = int((np.abs(self.program.duals(self.rows)) > PRICED).sum())
        if priced == (self.program.variables.best_rates > 0.0).sum():
            return
        self.program.keep_optimum()
        fastest = self.program.problem.fastest_rates
        self.program.maximise(self.program.variables.sums(inverse(fastest)))
        self.program.solve()


def max_min(problem: AllocationProblem, per: Floats, *, fill: bool) -> Shares:
    """Return the shares of the highest level; it is 0 if no class with per_m > 0 can run.

    With `fill`, leftover time goes where it brings most. Raises SolverFailedError.
    """
    levels = Levels(problem, per)
    if not len(levels.classes):
        return idle(problem)
    level = levels.raised()
    if fill:
        levels.fill()
    return levels.program.shares(level)


def idle(problem: AllocationProblem) -> Shares:
    """Return shares of zeros."""
    return Shares(np.zeros(problem.rates.shape), np.zeros(problem.pair_rates.shape[:2]), 0.0)


def highest_level(problem: AllocationProblem, best: Floats) -> float:
    """Return an upper bound of the highest level.

    `best` float64[M]: level of a job with all its time where it is fastest; classes with 0 do not
    count. The level is at most the least of these, and at most the one for which all GPUs suffice
    if each job runs where it is fastest. 1 if no class counts.
    """
    classes = np.flatnonzero(best > 0.0)
    if not len(classes):
        return 1.0
    gpus_per_level = (problem.count[classes] * problem.scale[classes] / best[classes]).sum()
    return float(min(best[classes].min(), problem.gpus.sum() / gpus_per_level))


def inverse(rates: Floats) -> Floats:
    """Return 1 / rate, and 0 where the rate is 0."""
    return np.divide(1.0, rates, out=np.zeros(len(rates)), where=rates > 0.0)


def fairness(problem: AllocationProblem, *, fill: bool = False) -> Shares:
    """Return the shares of the highest least normalised throughput. Raises SolverFailedError."""
    return max_min(problem, fair_scaling(problem) / problem.weight, fill=fill)


def fair_scaling(problem: AllocationProblem) -> Floats:
    """float64[M]: s_m / throughput(m, X_equal), the normalisation; 0 if it cannot run."""
    return problem.scale * inverse(problem.equal_rates)


GAIN = 1e-7
"""Rise that counts as none, relative to the highest level and to a job's best."""

CAP = 1e-2
"""Limit of a job's rise in a probe, as a fraction of its best."""

SLACKS = (1e-12, 1e-9, 1e-8, 1e-7, 1e-6)
"""Fraction of a level not demanded again, as it was feasible within tolerance only.

If a program has no solution, the next larger fraction is tried.
"""


@dataclass(frozen=True, slots=True)
class Entity:
    """Team, or user of a team: a weight that jobs share.

    They share it by their own weights, or in the order of a queue (`fifo`). Entities with the same
    `whole` above 0 are parts of it (a team's users): each has the `weight` of the whole, and those
    with a rising job share it equally.
    """

    weight: float = 1.0
    fifo: bool = False
    whole: int = 0


@dataclass(frozen=True)
class Filled(Shares):
    """Shares by water filling.

    Their `objective` is the first level l_m of the jobs that rose in it; there w_m is the part of
    its entity's weight that a job had. Levels rose `rounds` times; `programs` were solved.
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
    """Return max-min shares of few classes without pairs; None where programs must find them."""
    per = fair_scaling(problem) / problem.weight
    unit = highest_level(problem, per * problem.fastest_rates)
    return small_filling(problem, per, unit)


def filled_by_programs(problem: AllocationProblem) -> Filled:
    """Return max-min shares of any classes and pairs. Raises SolverFailedError."""
    # All jobs are in one entity, without a queue.
    weights = (problem.weight * problem.count)[problem.equal_rates > 0.0]
    entity_of_class = np.zeros(len(problem.count), dtype=np.int64)
    no_queue = np.zeros(0, dtype=np.int64)
    entities = [Entity(float(weights.sum()))]
    return _Filling(problem, entities, entity_of_class, no_queue).run()


def hierarchical_shares(
    problem: AllocationProblem, entities: Sequence[Entity], position: Ints | None = None
) -> Filled:
    """Return shares that are fair among entities, and fair or FIFO inside each, water filled.

    `problem.entity` is the number of each class's entity. `position` int64[M]: position in its
    entity's queue, lowest first, for entities with `fifo`, whose classes have one job each. Raises
    ValueError where that or a weight above 0 is missing, SolverFailedError.
    """
    if any(entity.weight <= 0.0 for entity in entities):
        raise ValueError("an entity's weight must be above 0")
    is_fifo = np.array([entity.fifo for entity in entities], dtype=np.bool_)
    is_queued = is_fifo[problem.entity]
    queue = np.zeros(0, dtype=np.int64)
    if is_queued.any():
        if position is None or (problem.count[is_queued] != 1).any():
            raise ValueError(
                "jobs of an entity with a queue need their position in it, and a class of their own"
            )
        queued_first = np.lexsort((position, ~is_queued))
        queue = queued_first[: int(is_queued.sum())]
    return _Filling(problem, entities, problem.entity, queue).run()


class _Filling:
    """Program of a filling, over the K classes that can run and the E entities.

    A "job" here is a class of equal jobs. `rows` int64[K]: row of l_m of each. Of jobs: `entity`
    int64[K]; `mass` float64[K]: weight of all jobs of the class; `rising`, `stuck` bool[K]; `floor`
    float64[K]: level of stuck ones. `waiting`: by entity the jobs in its queue, the first one last.

    Of entities: `weight` float64[E]; `whole` int64[E]: equal for parts of one; `base` float64[E]:
    base_e, the level before the rise; `rate` float64[E]: r_e.

    Columns: `levels` int64[E] a_e, `rise` z, `more` int64[K] d_m. Rows: `ties` int64[E], a_e - r_e
    z = base_e. `slack`: position in SLACKS.
    """

    def __init__(
        self,
        problem: AllocationProblem,
        entities: Sequence[Entity],
        entity_of_class: Ints,
        queue: Ints,
    ) -> None:
        self.problem = problem
        self.scaled = Scaled(problem, fair_scaling(problem) / problem.weight)
        self.program = self.scaled.program
        self.classes = self.scaled.classes
        self.rows = self.scaled.rows

        self.entity = entity_of_class[self.classes]
        self.mass = (problem.weight * problem.count)[self.classes]
        self.rising = np.array([not e.fifo for e in entities], dtype=np.bool_)[self.entity]
        self.stuck = np.zeros(len(self.classes), dtype=np.bool_)
        self.floor = np.zeros(len(self.classes))
        self.waiting = _queues(queue, self.classes, self.entity, len(entities))

        self.weight = np.array([entity.weight for entity in entities])
        # An entity that is no part of another one is a whole by itself.
        wholes = [entity.whole or -1 - number for number, entity in enumerate(entities)]
        self.whole = np.array(wholes, dtype=np.int64)
        self.base = np.zeros(len(entities))
        self.rate = np.zeros(len(entities))

        self.rounds = 0
        self.programs = 0
        self.slack = 0
        self._add_columns()

    def _add_columns(self) -> None:
        """Add the columns a_e, z and d_m, and the rows that tie a_e to z."""
        program = self.program
        jobs = len(self.classes)
        entities = len(self.weight)
        self.ties = program.add_rows(Coefficients.none(), np.zeros(entities), np.zeros(entities))
        rising = np.flatnonzero(self.rising)
        in_rows = Coefficients(self.rows[rising], self.entity[rising], np.full(len(rising), -1.0))
        in_ties = Coefficients(self.ties, np.arange(entities), np.ones(entities))
        self.levels = program.add_columns(
            Coefficients.joined(in_rows, in_ties), np.zeros(entities), np.full(entities, inf)
        )
        self.rise = program.add_column(self.ties, np.zeros(entities))
        less_best = Coefficients(self.rows, np.arange(jobs), -self.scaled.best)
        self.more = program.add_columns(less_best, np.zeros(jobs), np.zeros(jobs))

    def run(self) -> Filled:
        """Fill until all are stuck. Raises SolverFailedError."""
        if not len(self.classes):
            return Filled(**vars(idle(self.problem)))
        for entity in range(len(self.weight)):
            self._call_next(entity)
        first_level = self._raise_levels() * self.scaled.unit
        while not self.stuck.all():
            self._raise_levels()
        shares = self.program.shares(first_level, dust=max(DUST, 10.0 * SLACKS[self.slack]))
        return Filled(shares.alone, shares.paired, shares.objective, self.rounds, self.programs)

    def _raise_levels(self) -> float:
        """Let levels rise until one more job at least is stuck; return z by weight, in units."""
        # 1. Rise.
        fastest = self._set_rates()
        gain = self._solve(np.ones(1), np.array([self.rise])) / fastest
        self.base = np.maximum(self.base, self.program.values[self.levels])

        # 2. Jobs with a price are stuck.
        price = np.abs(self.program.duals(self.rows)) * self.rate[self.entity]
        stuck = self.rising & (price > STUCK_PRICE)
        if not stuck.any():
            raise SolverFailedError(
                "levels of shares rose as far as they can, but no job has a price"
            )
        self.rounds += 1
        self._stop(stuck)

        # 3. Without a gain prices say too little: more jobs may be stuck.
        if gain * fastest <= GAIN * max(1.0, float(self.base.max())):
            self._probe()
        return gain

    def _set_rates(self) -> float:
        """Let each entity rise by its weight; return the fastest rate, which becomes 1."""
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
        """Hold these jobs at the levels that they have; the next of their queues rise."""
        has_risen = stuck & self.rising
        self.floor[has_risen] = self.base[self.entity[has_risen]]
        self.stuck |= stuck
        self._set_rising(np.flatnonzero(has_risen), False)
        for entity in np.unique(self.entity[stuck]).tolist():
            self._call_next(entity)

    def _call_next(self, entity: int) -> None:
        """Let the next job of the entity's queue rise, from 0, if no job of the entity does."""
        queue = self.waiting[entity]
        if not queue or (self.rising & (self.entity == entity)).any():
            return
        while queue and self.stuck[queue[-1]]:
            queue.pop()
        if queue:
            self.base[entity] = 0.0
            self._set_rising(np.array([queue.pop()]), True)

    def _set_rising(self, jobs: Ints, is_rising: bool) -> None:
        """Let jobs rise with the level of their entities, or no longer."""
        self.rising[jobs] = is_rising
        coefficient = -1.0 if is_rising else 0.0
        for entity in np.unique(self.entity[jobs]).tolist():
            rows = self.rows[jobs[self.entity[jobs] == entity]]
            self.program.change(rows, int(self.levels[entity]), np.full(len(rows), coefficient))

    def _probe(self) -> None:
        """Find the stuck jobs: those that no program can raise while no other falls."""
        nothing = np.zeros(len(self.classes))
        self._bound_rise(0.0)
        doubtful = ~self.stuck
        while doubtful.any():
            self.program.bound_columns(self.more, nothing, np.where(doubtful, CAP, 0.0))
            self._solve(np.ones(int(doubtful.sum())), self.more[doubtful])
            least_gain = GAIN + SLACKS[self.slack] * self.problem.gpus.sum()
            gains = self.program.values[self.more] > least_gain
            if not (gains & doubtful).any():
                break
            doubtful &= ~gains
        self.program.bound_columns(self.more, nothing, nothing)
        self._bound_rise(inf)
        self._stop(doubtful)

    def _bound_rise(self, most: float) -> None:
        """Bound z from above."""
        self.program.bound_columns(np.array([self.rise]), np.zeros(1), np.array([most]))

    def _solve(self, costs: Floats, columns: Ints) -> float:
        """Return the highest sum of costs * columns at which no job falls below its level.

        If there is none, levels are held with the next larger slack, from then on. Raises
        SolverFailedError if there is none even so.
        """
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
        """Demand this part of the levels that stuck jobs and entities have."""
        lower = np.where(self.stuck, self.floor * part, 0.0)
        self.program.bound_rows(self.rows, lower, np.full(len(lower), inf))
        self.program.bound_rows(self.ties, self.base * part, self.base * part)


def _queues(queue: Ints, classes: Ints, entity: Ints, entities: int) -> list[list[int]]:
    """Return the waiting jobs of each entity, the first in its queue last.

    `queue`: classes in the order of their queues. Jobs are numbered by position in `classes`
    int64[K], classes that can run; `entity` int64[K].
    """
    number = {int(m): k for k, m in enumerate(classes)}
    waiting: list[list[int]] = [[] for _ in range(entities)]
    for m in queue[::-1].tolist():
        if m in number:
            waiting[entity[number[m]]].append(number[m])
    return waiting
