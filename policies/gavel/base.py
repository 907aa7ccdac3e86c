"""Base of Gavel's policies: their forms, and the way to a plan.

In the heterogeneity-agnostic form (section 4.1) all GPUs that a job may use look alike. A class has
one column, the pool of all GPUs of the types on which it runs; its time and throughput are spread
over these types as N_j. Pools overlap where types do; whatever fits the pools fits the types. Pairs
have the pools of the types on which both their jobs run together.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np

from policies.contract.plan import Plan
from policies.contract.policy import parameter
from policies.contract.snapshot import Bools, Floats, Ints, Snapshot
from policies.gavel.allocation.observe import Observed
from policies.gavel.allocation.problem import AllocationProblem, Column, Shares
from policies.gavel.allocation.rates import GroupingOptions
from policies.gavel.rounds.share_round import ShareRule, plan_of

Divided = TypeVar("Divided", bound=Shares)

WITHOUT_COLUMNS = "types", "gpus", "count", "scale", "weight", "entity", "pairs"
"""Fields of a problem that do not depend on its columns."""


@dataclass(frozen=True)
class Pools(AllocationProblem):
    """Problem `whole` with pools for columns; its `column_type` means nothing.

    `part` float64[T, G]: of a pool's time on each type. `class_columns` int64[M, T], `pair_columns`
    int64[P, T]: columns of `whole` in which a class or pair runs on each type.
    """

    whole: AllocationProblem
    part: Floats
    class_columns: Ints
    pair_columns: Ints

    @cached_property
    def usage(self) -> Floats:
        """float64[T, G]: GPUs of each type that a GPU's worth of time in a pool takes."""
        return self.part

    @cached_property
    def type_rates(self) -> Floats:
        """float64[M, T]: steps/s of a job on each type."""
        return self.whole.type_rates

    @cached_property
    def equal_rates(self) -> Floats:
        """float64[M]: steps/s of a job with all its time in its pool."""
        return self.fastest_rates


def agnostic(policy: Callable[[AllocationProblem], Divided], problem: AllocationProblem) -> Divided:
    """Return the shares of a policy to which GPUs look alike, with its own objective."""
    pools = pooled(problem)
    return spread(policy(pools), pools)


def pooled(problem: AllocationProblem) -> Pools:
    """The problem of a policy to which GPUs look alike."""
    class_columns = problem.usual_columns(problem.rates > 0.0)
    pair_columns = problem.usual_columns(np.all(problem.pair_rates > 0.0, axis=2))
    part, pool_of = _pools(np.concatenate([class_columns, pair_columns]) >= 0, problem.gpus)
    alone, beside = pool_of[: len(problem.rates)], pool_of[len(problem.rates) :]
    rates = np.zeros((len(alone), part.shape[1]))
    pair_rates = np.zeros((len(beside), part.shape[1], 2))
    rates[np.arange(len(alone)), alone] = _mean(problem.rates, class_columns, part[:, alone])
    for side in (0, 1):
        pair_rates[np.arange(len(beside)), beside, side] = _mean(
            problem.pair_rates[..., side], pair_columns, part[:, beside]
        )
    columns = tuple([Column(f"pool {g}") for g in range(part.shape[1])])
    kept = {name: getattr(problem, name) for name in WITHOUT_COLUMNS}
    return Pools(
        **kept, columns=columns, column_type=np.zeros(len(columns), dtype=np.int64), rates=rates,
        pair_rates=pair_rates, whole=problem, part=part, class_columns=class_columns,
        pair_columns=pair_columns,
    )  # fmt: skip


def spread(shares: Divided, pools: Pools) -> Divided:
    """Shares of pools as shares of columns: over the types of each pool as N_j."""
    size = len(pools.whole.columns)
    alone = _scattered(shares.alone @ pools.part.T, pools.class_columns, size)
    paired = _scattered(shares.paired @ pools.part.T, pools.pair_columns, size)
    return replace(shares, alone=alone, paired=paired)


def _pools(usable: Bools, gpus: Floats) -> tuple[Floats, Ints]:
    """(part float64[T, G], pool int64[R]): distinct rows of bool[R, T], and each row's."""
    there = usable & (gpus > 0.0)
    _, first, pool_of = np.unique(
        there @ (1 << np.arange(len(gpus))), return_index=True, return_inverse=True
    )
    taken = there[first].T * gpus[:, None]
    total = taken.sum(axis=0)
    return np.divide(taken, total, out=np.zeros(taken.shape), where=total > 0.0), pool_of


def _mean(rates: Floats, columns: Ints, part: Floats) -> Floats:
    """float64[R]: steps/s of time spread over types as in `part` float64[T, R]."""
    on_types = np.take_along_axis(rates, np.maximum(columns, 0), axis=1)
    mean: Floats = (on_types * part.T).sum(axis=1)
    return mean


def _scattered(by_type: Floats, columns: Ints, size: int) -> Floats:
    """Time of each row on each type, in the column that it has there."""
    time = np.zeros((len(columns), size))
    row, of_type = np.nonzero(columns >= 0)
    time[row, columns[row, of_type]] = by_type[row, of_type]
    return time


Solver: TypeAlias = Callable[[AllocationProblem], Shares]
"""Shares of a problem. What else it knows is by class or GPU type, so that it fits both forms."""

Notes: TypeAlias = MutableMapping[str, Any]
"""Notes of a policy for the next round: plain data in the plan's memory."""

ONE_STEP = 1.0
"""Least number of steps left to a present job."""


@dataclass(frozen=True, slots=True)
class SharePolicy(ABC):
    """Row of Gavel's table of policies: defines its shares in `_solver`.

    `name` is its name in the registry. Decisions are those of `plan_of` in `rounds.share_round`.
    """

    name: ClassVar[str]

    form: str = parameter(
        "aware",
        meaning=(
            "aware: by each job's speed on each type; agnostic: as if types were alike; sharing:"
            " aware, two may share a GPU"
        ),
        choices=("aware", "agnostic", "sharing"),
    )
    spread: bool = parameter(
        False,
        meaning=("let gangs that fit on one node use several nodes, if their speed there is known"),
    )
    recompute_s: float = parameter(
        0.0,
        meaning=(
            "age in seconds at which shares are computed again; 0: only when jobs, nodes or speeds"
            " change"
        ),
        minimum=0.0,
        maximum=1e9,
    )

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Return the plan. Raises SolverFailedError where no shares can be had."""
        memory, pairs, own = snapshot.memory, self.form == "sharing", repr(self)
        notes: Notes = dict(memory.get("notes", {})) if memory.get("policy") == own else {}
        rule = ShareRule(
            name=self.name,
            memory_of=own,
            allocate=partial(self._allocate, notes),
            options=replace(self._grouping(snapshot), spread=self.spread, pairs=pairs),
            recompute_s=self.recompute_s,
            depend_on=self._depend_on(snapshot),
            fills=self._fills(),
        )
        plan = plan_of(snapshot, rule)
        if not notes:
            return plan
        message = self._message(snapshot, notes)
        return replace(plan, memory={**plan.memory, "notes": notes}, message=message)

    @abstractmethod
    def _solver(self, observed: Observed, notes: Notes) -> Solver:
        """Return the solver of the observed time; it may write notes."""

    def _grouping(self, snapshot: Snapshot) -> GroupingOptions:
        """Return what job classes distinguish, but for `spread` and `pairs`."""
        return GroupingOptions()

    def _depend_on(self, snapshot: Snapshot) -> str:
        """Return further inputs of the shares, which are made again when it changes."""
        return ""

    def _fills(self) -> bool:
        """Return True if GPUs that the shares leave idle go to any job that can use them."""
        return True

    def _message(self, snapshot: Snapshot, notes: Notes) -> str:
        return ""

    def _allocate(self, notes: Notes, observed: Observed) -> Shares:
        solver = self._solver(observed, notes)
        if self.form == "agnostic":
            return agnostic(solver, observed.problem)
        return solver(observed.problem)


def steps_left(observed: Observed) -> Floats:
    """float64[M]: steps left to each job, of problems in which every job is a class."""
    return np.maximum(observed.number("remaining_steps"), ONE_STEP)


def queue_positions(observed: Observed) -> Ints:
    """int64[M]: position in the queue of each class of one job, by arrival, from 0."""
    arrival = observed.number("arrival_s")
    position = np.empty(len(arrival), dtype=np.int64)
    position[np.argsort(arrival, kind="stable")] = np.arange(len(arrival))
    return position
