"""Pairs of job classes that do more side by side on GPUs than in turns (Gavel, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from policies.contract.snapshot import Bools, Floats, Ints, frozen
from policies.gavel.allocation.problem import AllocationProblem, Column
from policies.placement.speed import Speeds


def with_pairs(
    problem: AllocationProblem,
    kind: Ints,
    colocated: Floats,
    sharing: Bools,
    *,
    partners: int | None = None,
) -> AllocationProblem:
    """Return the problem with every pair of its classes that beats taking turns.

    `kind` int64[M]: each class's row in `colocated` float64[K, K, C], steps/s of a job of the first
    kind with one of the second on its GPU, 0 if unknown. `sharing` bool[M]: classes whose jobs may
    share. A pair of one class needs two jobs; both classes have the same scale. A pair is worth it
    on the columns where the fractions that both keep of their speed alone add up to more than 1.
    With `partners`, a pair must be among so many best of one of its classes: else pairs of single
    jobs grow quadratically.
    """
    first, second = _candidates(problem, sharing)
    rates = np.stack(
        [colocated[kind[first], kind[second]], colocated[kind[second], kind[first]]], axis=2
    )
    kept = _kept(rates[..., 0], problem.rates[first]) + _kept(rates[..., 1], problem.rates[second])
    best = kept.max(axis=1, initial=-np.inf)
    found = best > 1.0
    if partners is not None:
        found[found] = among_best(first[found], second[found], best[found], len(kind), partners)
    worth = np.where((kept > 1.0)[..., None], rates, 0.0)
    pairs = np.column_stack([first, second])[found]
    return replace(problem, pairs=frozen(pairs), pair_rates=frozen(worth[found]))


def colocated_rates(
    speeds: Speeds, kinds: Sequence[str], columns: Sequence[Column], wide: frozenset[str]
) -> Floats:
    """float64[K, K, C]: steps/s of a job of the first kind with one of the second on its GPU.

    0 if unknown, and on GPU types without devices for two (`wide` names those with).
    """
    table = np.zeros((len(kinds), len(kinds), len(columns)))
    for c, column in enumerate(columns):
        if column.spread or column.gpu_type not in wide:
            continue
        for i, kind in enumerate(kinds):
            for j, other in enumerate(kinds):
                table[i, j, c] = speeds.pair(kind, other, column.gpu_type)[0]
    return table


def _candidates(problem: AllocationProblem, sharing: Bools) -> tuple[Ints, Ints]:
    """Pairs of classes that are willing, of one scale factor, and with enough jobs."""
    of = np.flatnonzero(sharing)
    first, second = (of[side] for side in np.triu_indices(len(of)))
    fits = (problem.scale[first] == problem.scale[second]) & (
        (first != second) | (problem.count[first] >= 2)
    )
    return first[fits], second[fits]


def _kept(together: Floats, alone: Floats) -> Floats:
    """Return the fraction of its speed that a job keeps; -inf where it cannot run in both ways."""
    ratio: Floats = np.full(together.shape, -np.inf)
    np.divide(together, alone, out=ratio, where=(together > 0.0) & (alone > 0.0))
    return ratio


def among_best(first: Ints, second: Ints, gain: Floats, classes: int, partners: int) -> Bools:
    """Return True for pairs among the best `partners` of one of their classes.

    Of equals those next in the order of classes, in a ring, so that equal jobs do not all choose
    the same.
    """
    owner, other = np.concatenate([first, second]), np.concatenate([second, first])
    order = np.lexsort(((other - owner) % classes, -np.concatenate([gain, gain]), owner))
    start = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=classes))])
    rank = np.empty(len(owner), dtype=np.int64)
    rank[order] = np.arange(len(owner)) - start[owner[order]]
    among = rank < partners
    return among[: len(first)] | among[len(first) :]
