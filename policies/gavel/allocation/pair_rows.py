"""Rows of jobs that share a device: which classes go together, and how fast each is beside the
other (Gavel, section 3.1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from policies.contract.snapshot import Bools, Floats, Ints, Snapshot
from policies.gavel.allocation.allocatable import Allocatable
from policies.gavel.allocation.pairing import among_best
from policies.gavel.allocation.problem import Column
from policies.gavel.allocation.rates import Group

Sides: TypeAlias = tuple[float, float]
PairRates: TypeAlias = Mapping[tuple[str, str], Mapping[str, Sides]]
"""By (kind, other kind) and GPU type: steps/s of one and of the other beside each other."""


def pair_rows(
    snapshot: Snapshot,
    allocatable: Allocatable,
    groups: Sequence[Group],
    count: Ints,
    columns: Sequence[Column],
    rates: Floats,
    partners: int | None = None,
) -> tuple[Ints, Floats]:
    """(int64[P, 2] classes, float64[P, C, 2] steps/s) of the pairs that beat taking turns
    somewhere; a class alone needs two jobs.

    `groups`, `count` and `rates` are of the classes. Kinds are measured in pairs on one device, so
    jobs of one GPU share. Sharing pays where the parts of their speeds alone that the two keep add
    up to more than 1; elsewhere a pair's rates are 0: the same time, taken in turns, gives both no
    less. Two jobs of one class are equally fast beside each other. With `partners`, a pair is left
    out if for neither class it is among so many best, so that pairs of jobs do not grow
    quadratically.
    """
    sharing = np.array([m for m, group in enumerate(groups) if group.shares], dtype=np.int64)
    if not len(sharing) or not any(allocatable.shared):
        return np.zeros((0, 2), dtype=np.int64), np.zeros((0, len(columns), 2))
    kinds = sorted({groups[m].kind for m in sharing})
    kind = np.array(
        [kinds.index(group.kind) if group.shares else -1 for group in groups], dtype=np.int64
    )
    beside = beside_rates(snapshot, allocatable, kinds, columns)
    first, second = (sharing[side] for side in np.triu_indices(len(sharing)))
    together = np.stack(
        [beside[kind[first], kind[second]], beside[kind[second], kind[first]]], axis=2
    )
    alone = np.stack([rates[first], rates[second]], axis=2)
    runs: Bools = np.all((together > 0.0) & (alone > 0.0), axis=2)
    kept = np.divide(together, alone, out=np.zeros_like(together), where=runs[:, :, None]).sum(
        axis=2
    )
    worth: Bools = runs & (kept > 1.0) & ((first != second) | (count[first] > 1))[:, None]
    found: Bools = np.any(worth, axis=1)
    if partners is not None:
        best = np.where(worth, kept, -np.inf).max(axis=1, initial=-np.inf)
        found[found] = among_best(first[found], second[found], best[found], len(groups), partners)
    return np.column_stack([first, second])[found], np.where(worth[:, :, None], together, 0.0)[
        found
    ]


def beside_rates(
    snapshot: Snapshot, allocatable: Allocatable, kinds: Sequence[str], columns: Sequence[Column]
) -> Floats:
    """float64[K, K, C]: steps/s of a job of the first kind beside one of the second; 0 where
    unknown, or devices have one slot.
    """
    known, table = _known(snapshot), np.zeros((len(kinds), len(kinds), len(columns)))
    for c, column in enumerate(columns):
        if column.spread or not allocatable.shared[allocatable.types.index(column.gpu_type)]:
            continue
        for i, kind in enumerate(kinds):
            for j, other in enumerate(kinds):
                own, others = known.get((kind, other), {}).get(column.gpu_type, (0.0, 0.0))
                table[i, j, c] = own if i != j else (own + others) / 2
    return table


def _known(snapshot: Snapshot) -> PairRates:
    """Every pair of kinds that is known, both ways round, as long as the kinds are the same; what a
    kind says itself counts.
    """
    if "pair_rates" not in snapshot.lasting:
        made: dict[tuple[str, str], dict[str, Sides]] = {}
        for kind in snapshot.kinds:
            for pair in kind.pairs:
                made.setdefault((pair.other, kind.id), {}).setdefault(
                    pair.gpu_type, (pair.other_steps_per_s, pair.steps_per_s)
                )
        for kind in snapshot.kinds:
            for pair in kind.pairs:
                made.setdefault((kind.id, pair.other), {})[pair.gpu_type] = (
                    pair.steps_per_s,
                    pair.other_steps_per_s,
                )
        snapshot.lasting["pair_rates"] = made
    known: PairRates = snapshot.lasting["pair_rates"]
    return known
