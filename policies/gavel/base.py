"""Base of Gavel's policies: their forms, and the way to a plan.

In the heterogeneity-agnostic form (section 4.1) all GPUs that a job may use look alike. A class has
one column, its pool: all GPUs of the types on which it runs. Its time and throughput there are
spread over these types in proportion to their GPUs N_j. Pools of classes that run on some of the
same types overlap; shares that fit the pools fit the types. The pool of a pair is that of the types
on which both its jobs run together.
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

FIELDS_WITHOUT_COLUMNS = ("types", "gpus", "count", "scale", "weight", "entity", "pairs")
"""Fields of a problem that do not depend on its columns."""


@dataclass(frozen=True)
class Pools(AllocationProblem):
    """Problem `whole` with G pools for columns; its `column_type` means nothing.

    `part` float64[T, G]: the part of a pool's time on each type. `class_columns` int64[M, T],
    `pair_columns` int64[P, T]: column of `whole` in which a class or pair runs on each type, or -1.
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
    """Return the problem of a policy to which GPUs look alike."""
    # 1. The pools of classes and pairs.
    class_columns = problem.usual_columns(problem.rates > 0.0)
    pair_columns = problem.usual_columns(np.all(problem.pair_rates > 0.0, axis=2))
    is_usable = np.concatenate([class_columns, pair_columns]) >= 0
    part, pool = _distinct_pools(is_usable, problem.gpus)
    class_pool = pool[: len(problem.rates)]
    pair_pool = pool[len(problem.rates) :]

    # 2. Steps/s there; each class and pair has only its own pool.
    classes = np.arange(len(class_pool))
    rates = np.zeros((len(class_pool), part.shape[1]))
    rates[classes, class_pool] = _mean_rates(problem.rates, class_columns, part[:, class_pool])
    pairs = np.arange(len(pair_pool))
    pair_rates = np.zeros((len(pair_pool), part.shape[1], 2))
    for side in (0, 1):
        side_rates = problem.pair_rates[..., side]
        pair_rates[pairs, pair_pool, side] = _mean_rates(
            side_rates, pair_columns, part[:, pair_pool]
        )

    columns = tuple([Column(f"pool {number}") for number in range(part.shape[1])])
    return Pools(
        **{name: getattr(problem, name) for name in FIELDS_WITHOUT_COLUMNS},
        columns=columns,
        column_type=np.zeros(len(columns), dtype=np.int64),
        rates=rates,
        pair_rates=pair_rates,
        whole=problem,
        part=part,
        class_columns=class_columns,
        pair_columns=pair_columns,
    )


def spread(shares: Divided, pools: Pools) -> Divided:
    """Return shares of pools as shares of columns, spread over the types of each pool."""
    columns = len(pools.whole.columns)
    alone = _time_on_columns(shares.alone @ pools.part.T, pools.class_columns, columns)
    paired = _time_on_columns(shares.paired @ pools.part.T, pools.pair_columns, columns)
    return replace(shares, alone=alone, paired=paired)


def _distinct_pools(is_usable: Bools, gpus: Floats) -> tuple[Floats, Ints]:
    """Return `Pools.part` float64[T, G], and int64[R]: the pool of each of R classes and pairs.

    `is_usable` bool[R, T]: types on which they run. Equal rows have one pool.
    """
    is_usable = is_usable & (gpus > 0.0)
    bit_set = is_usable @ (1 << np.arange(len(gpus)))
    _, example, pool = np.unique(bit_set, return_index=True, return_inverse=True)
    gpus_of_pool = is_usable[example].T * gpus[:, None]
    total = gpus_of_pool.sum(axis=0)
    part = np.divide(gpus_of_pool, total, out=np.zeros(gpus_of_pool.shape), where=total > 0.0)
    return part, pool


def _mean_rates(rates: Floats, columns: Ints, part: Floats) -> Floats:
    """float64[R]: steps/s of time spread over types as in `part` float64[T, R].

    `rates` float64[R, C]; `columns` int64[R, T]: the column of each type, or -1.
    """
    on_types = np.take_along_axis(rates, np.maximum(columns, 0), axis=1)
    mean: Floats = (on_types * part.T).sum(axis=1)
    return mean


def _time_on_columns(time_on_types: Floats, columns: Ints, count: int) -> Floats:
    """float64[R, C]: time float64[R, T] of each row on each type, in the column of the type.

    `columns` int64[R, T], or -1; `count` is C.
    """
    time = np.zeros((len(columns), count))
    row, gpu_type = np.nonzero(columns >= 0)
    time[row, columns[row, gpu_type]] = time_on_types[row, gpu_type]
    return time


Solver: TypeAlias = Callable[[AllocationProblem], Shares]
"""Function from a problem to its shares.

It may know more about the round by class or GPU type, but not by column, so that it fits all forms.
"""

Notes: TypeAlias = MutableMapping[str, Any]
"""Notes of a policy for the next round: plain data in the plan's memory."""

ONE_STEP = 1.0
"""Least number of steps left to a present job."""


@dataclass(frozen=True, slots=True)
class SharePolicy(ABC):
    """Policy of Gavel's table: a subclass defines its shares in `_solver`.

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
        # Notes of another policy, or of this one with other parameters, do not count.
        memory_of = repr(self)
        notes: Notes = {}
        if snapshot.memory.get("policy") == memory_of:
            notes = dict(snapshot.memory.get("notes", {}))

        grouping = self._grouping(snapshot)
        rule = ShareRule(
            name=self.name,
            memory_of=memory_of,
            allocate=partial(self._allocate, notes),
            options=replace(grouping, spread=self.spread, pairs=self.form == "sharing"),
            recompute_s=self.recompute_s,
            depend_on=self._depend_on(snapshot),
            fills=self._fills(),
        )
        plan = plan_of(snapshot, rule)  # makes the shares if needed, and so may write notes
        if not notes:
            return plan
        message = self._message(snapshot, notes)
        return replace(plan, memory={**plan.memory, "notes": notes}, message=message)

    @abstractmethod
    def _solver(self, observed: Observed, notes: Notes) -> Solver:
        """Return the solver for this round; when it is called, it may write notes."""

    def _grouping(self, snapshot: Snapshot) -> GroupingOptions:
        """Return which properties of jobs make classes of their own, but for `spread`, `pairs`."""
        return GroupingOptions()

    def _depend_on(self, snapshot: Snapshot) -> str:
        """Return further inputs of the shares, which are made again when it changes."""
        return ""

    def _fills(self) -> bool:
        """Return True if GPUs that the shares leave idle go to any job that can use them."""
        return True

    def _message(self, snapshot: Snapshot, notes: Notes) -> str:
        """Return the plan's message by the policy's notes."""
        return ""

    def _allocate(self, notes: Notes, observed: Observed) -> Shares:
        """Return the shares by the policy's solver, in its form."""
        solver = self._solver(observed, notes)
        if self.form == "agnostic":
            return agnostic(solver, observed.problem)
        return solver(observed.problem)


def steps_left(observed: Observed) -> Floats:
    """float64[M]: steps left to each job, at least 1, where every job is a class."""
    return np.maximum(observed.number("remaining_steps"), ONE_STEP)


def queue_positions(observed: Observed) -> Ints:
    """int64[M]: position in the queue of each class of one job, by arrival, from 0."""
    arrival_s = observed.number("arrival_s")
    position = np.empty(len(arrival_s), dtype=np.int64)
    position[np.argsort(arrival_s, kind="stable")] = np.arange(len(arrival_s))
    return position
