"""The heterogeneity-agnostic form of every share policy: all GPUs that a job may use look alike to
it (Gavel, section 4.1).

A class has one column, the pool of all GPUs of the types on which it runs; a unit of time there is
spread over these types as N_j, and so is its throughput: a job's steps/s in its pool are what it
gets when spread so. Its X_equal is all its time in its pool. Classes with the same types share a
pool. Pools overlap where types do; each takes from every type its part, so that whatever fits the
pools fits the types. Pairs have the pools of the types on which both their jobs run together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from policies.contract.snapshot import Bools, Floats, Ints
from policies.gavel.allocation.problem import AllocationProblem, Column, Shares

Divided = TypeVar("Divided", bound=Shares)


@dataclass(frozen=True)
class Pools(AllocationProblem):
    """The problem `whole` with pools for columns: `part` float64[T, G] of a pool's time is on each
    type. Its `column_type` means nothing: `usage` and `type_rates` say what that would.

    `class_columns` int64[M, T], `pair_columns` int64[P, T]: the columns of `whole` in which a class
    or pair runs on each type.
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
    """The shares of a policy to which GPUs look alike, over the columns of the problem; their
    objective is the policy's own.

    What goes beside the problem into a policy fits both forms: it is by class or by GPU type.
    Raises what the policy raises.
    """
    pools = pooled(problem)
    return spread(policy(pools), pools)


def pooled(problem: AllocationProblem) -> Pools:
    """The problem as it looks to whom GPUs are alike."""
    class_columns = problem.usual_columns(problem.rates > 0.0)
    pair_columns = problem.usual_columns(np.all(problem.pair_rates > 0.0, axis=2))
    part, pool_of = _pools(np.concatenate([class_columns, pair_columns]) >= 0, problem.gpus)
    alone, beside = pool_of[: len(problem.rates)], pool_of[len(problem.rates) :]
    rates, pair_rates = (
        np.zeros((len(alone), part.shape[1])),
        np.zeros((len(beside), part.shape[1], 2)),
    )
    rates[np.arange(len(alone)), alone] = _mean(problem.rates, class_columns, part[:, alone])
    for side in (0, 1):
        pair_rates[np.arange(len(beside)), beside, side] = _mean(
            problem.pair_rates[..., side], pair_columns, part[:, beside]
        )
    return Pools(
        types=problem.types,
        gpus=problem.gpus,
        columns=tuple(Column(f"pool {g}") for g in range(part.shape[1])),
        column_type=np.zeros(part.shape[1], dtype=np.int64),
        rates=rates,
        count=problem.count,
        scale=problem.scale,
        weight=problem.weight,
        entity=problem.entity,
        pairs=problem.pairs,
        pair_rates=pair_rates,
        whole=problem,
        part=part,
        class_columns=class_columns,
        pair_columns=pair_columns,
    )


def spread(shares: Divided, pools: Pools) -> Divided:
    """Shares of pools as shares of columns: over the types of each pool as N_j."""
    size = len(pools.whole.columns)
    alone = _scattered(shares.alone @ pools.part.T, pools.class_columns, size)
    return replace(
        shares,
        alone=alone,
        paired=_scattered(shares.paired @ pools.part.T, pools.pair_columns, size),
    )


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
