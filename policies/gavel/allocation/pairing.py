"""Which pairs of classes are worth a row: jobs that do more side by side on GPUs than by taking
turns (Gavel, section 3.1).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from policies.contract.snapshot import Bools, Floats, Ints
from policies.gavel.allocation.problem import AllocationProblem


def with_pairs(
    problem: AllocationProblem,
    kind: Ints,
    beside: Floats,
    sharing: Bools,
    *,
    least: float = 1.0,
    partners: int | None = None,
) -> AllocationProblem:
    """The problem with every pair of its classes that is worth a row, in the order of the classes.

    `kind` int64[M] is each class's row in `beside` float64[K, K, C]: steps/s of a job of the first
    kind beside one of the second, on the GPUs of each column; 0 where unknown or impossible.
    `sharing` bool[M]: whether its jobs may share. Both jobs must have the same scale factor, a pair
    within a class two jobs. A pair is worth it in the columns where the sum of both jobs'
    throughputs, each to its own alone there, is above `least`; in others its rates are 0.

    With `partners`, a pair is left out if for neither class it is among so many best: for problems
    of jobs, whose pairs grow quadratically. The optimum may then be lower.
    """
    first, second = _candidates(problem, sharing)
    rates = np.stack([beside[kind[first], kind[second]], beside[kind[second], kind[first]]], axis=2)
    gain = _gain(rates[..., 0], problem.rates[first]) + _gain(rates[..., 1], problem.rates[second])
    best = gain.max(axis=1, initial=-np.inf)
    kept = best > least
    if partners is not None:
        kept[kept] = among_best(first[kept], second[kept], best[kept], len(kind), partners)
    worth = np.where((gain > least)[..., None], rates, 0.0)
    return replace(problem, pairs=np.column_stack([first, second])[kept], pair_rates=worth[kept])


def _candidates(problem: AllocationProblem, sharing: Bools) -> tuple[Ints, Ints]:
    """Pairs of classes that are willing, of one scale factor, and of jobs enough."""
    of = np.flatnonzero(sharing)
    first, second = (of[side] for side in np.triu_indices(len(of)))
    fits = (problem.scale[first] == problem.scale[second]) & (
        (first != second) | (problem.count[first] >= 2)
    )
    return first[fits], second[fits]


def _gain(together: Floats, alone: Floats) -> Floats:
    """A job's throughput beside another, to its own alone; -inf where it cannot run in one of these
    ways: no sum is worth that.
    """
    ratio: Floats = np.full(together.shape, -np.inf)
    np.divide(together, alone, out=ratio, where=(together > 0.0) & (alone > 0.0))
    return ratio


def among_best(first: Ints, second: Ints, gain: Floats, classes: int, partners: int) -> Bools:
    """Whether a pair is among the best `partners` of one of its classes; of equals those next in
    the order of classes, in a ring, so that like jobs do not all choose the same.
    """
    owner, other = np.concatenate([first, second]), np.concatenate([second, first])
    order = np.lexsort(((other - owner) % classes, -np.concatenate([gain, gain]), owner))
    start = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=classes))])
    rank = np.empty(len(owner), dtype=np.int64)
    rank[order] = np.arange(len(owner)) - start[owner[order]]
    among = rank < partners
    return among[: len(first)] | among[len(first) :]
