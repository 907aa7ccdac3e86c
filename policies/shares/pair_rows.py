"""Rows of jobs that share a device: which classes go together, and how fast each is beside the other (Gavel, section 3.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement
from typing import TypeAlias

import numpy as np

from policies.shares.division import Column
from policies.shares.ground import Ground
from policies.shares.rates import Group
from policies.snapshot import Floats, Ints, Snapshot

PairRates: TypeAlias = Mapping[tuple[str, str], Mapping[str, tuple[float, float]]]
"""By (kind, other kind) and GPU type: steps/s of one and of the other beside each other."""

Sides: TypeAlias = tuple[float, float]


def pair_rows(
    snapshot: Snapshot, ground: Ground, groups: Sequence[Group], count: Ints, columns: Sequence[Column], rates: Floats
) -> tuple[Ints, Floats]:
    """(int64[P, 2] classes, float64[P, C, 2] steps/s) of the pairs that beat taking turns somewhere; a class alone needs two jobs.

    Kinds are measured in pairs on one device, so jobs of one GPU share. Sharing pays where the parts of their speeds alone that
    the two keep add up to more than 1; elsewhere a pair's rates are 0: the same time, taken in turns, gives both no less. Two jobs
    of one class are equally fast beside each other.
    """
    sharing = [m for m, group in enumerate(groups) if group.shares] if any(ground.shared) else []
    known = _known(snapshot) if sharing else {}
    found: list[tuple[int, int]] = []
    table: list[list[Sides]] = []
    for first, second in combinations_with_replacement(sharing, 2):
        by_type = known.get((groups[first].kind, groups[second].kind)) if first != second or count[first] > 1 else None
        row = [_sides(by_type, ground, c, i, (first, second), rates) for i, c in enumerate(columns)] if by_type else []
        if any(a > 0.0 for a, _ in row):
            found.append((first, second))
            table.append(row)
    shape = (len(found), len(columns), 2)
    return np.array(found, dtype=np.int64).reshape(-1, 2), np.array(table, dtype=np.float64).reshape(shape)


def _sides(
    by_type: Mapping[str, Sides] | None, ground: Ground, column: Column, c: int, pair: tuple[int, int], rates: Floats
) -> Sides:
    """What two jobs do beside each other on this column, where that beats taking turns."""
    alone = rates[pair[0], c], rates[pair[1], c]
    if by_type is None or column.spread or not ground.shared[ground.types.index(column.gpu_type)] or min(alone) <= 0.0:
        return 0.0, 0.0
    own, other = by_type.get(column.gpu_type, (0.0, 0.0))
    if pair[0] == pair[1]:
        own = other = (own + other) / 2
    return (own, other) if min(own, other) > 0.0 and own / alone[0] + other / alone[1] > 1.0 else (0.0, 0.0)


def _known(snapshot: Snapshot) -> PairRates:
    """Every pair of kinds that is known, both ways round, as long as the kinds are the same; what a kind says itself counts."""
    if "pair_rates" not in snapshot.lasting:
        made: dict[tuple[str, str], dict[str, Sides]] = {}
        for kind in snapshot.kinds:
            for pair in kind.pairs:
                sides = pair.steps_per_s, pair.other_steps_per_s
                made.setdefault((kind.id, pair.other), {})[pair.gpu_type] = sides
                made.setdefault((pair.other, kind.id), {}).setdefault(pair.gpu_type, sides[::-1])
        snapshot.lasting["pair_rates"] = made
    known: PairRates = snapshot.lasting["pair_rates"]
    return known
