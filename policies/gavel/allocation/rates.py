"""How fast groups of like jobs run on each column: the rows T[m, c] of a problem, 0 where the gang
cannot sit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np

from policies.contract.snapshot import Floats, Snapshot
from policies.gavel.allocation.allocatable import Allocatable, Condition, largest, widest
from policies.gavel.allocation.problem import Column

SpreadRates: TypeAlias = Mapping[tuple[str, str, int], float]
"""steps/s over several nodes, by kind, GPU type and GPUs."""


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs that are alike in all that can matter: kind, GPUs, weight, team, whether they share
    devices, condition; or the one `job` whose place in a queue matters. The `user` where that
    matters.
    """

    kind: str
    gpus: int
    weight: float
    team: str
    shares: bool
    condition: Condition
    job: str = ""
    user: str = ""


def spread_rates(snapshot: Snapshot) -> SpreadRates:
    """What is known of kinds on several nodes, kept as long as the kinds are the same."""
    if "spread_rates" not in snapshot.lasting:
        known = [
            (k.id, t)
            for k in snapshot.kinds
            for t in k.throughputs
            if t.spread and t.steps_per_s > 0.0
        ]
        snapshot.lasting["spread_rates"] = {
            (kind, t.gpu_type, t.gpus): t.steps_per_s for kind, t in known
        }
    found: SpreadRates = snapshot.lasting["spread_rates"]
    return found


def columns_of(snapshot: Snapshot, allocatable: Allocatable, *, spread: bool) -> tuple[Column, ...]:
    """A column for each type with GPUs to give and, where `spread`, one for several nodes of it if
    any kind is known there.
    """
    known = {gpu_type for _, gpu_type, _ in spread_rates(snapshot)} if spread else set()
    return (
        *[_column(t, False) for t in allocatable.types],
        *[_column(t, True) for t in allocatable.types if t in known],
    )


@cache
def _column(gpu_type: str, spread: bool) -> Column:
    """Always the same object: columns of one round are compared with those of the next."""
    return Column(gpu_type, spread)


def rates_of(
    snapshot: Snapshot, allocatable: Allocatable, groups: Sequence[Group], columns: Sequence[Column]
) -> Floats:
    """float64[G, C]: steps/s; consolidated time needs a node that gives the gang's GPUs, spread
    time several that do together.
    """
    reach = _Reach(allocatable)
    most = np.array([reach.gpus(group, columns) for group in groups], dtype=np.int64).reshape(
        len(groups), len(columns)
    )
    fits = np.array([group.gpus for group in groups], dtype=np.int64)[:, None] <= most
    rates = np.where(fits, _rates_alone(snapshot, groups, columns), 0.0)
    for c, column in enumerate(columns):
        if column.spread:
            rates[:, c] = [
                speed(snapshot, group, column) if fits[g, c] else 0.0
                for g, group in enumerate(groups)
            ]
    return rates


def _rates_alone(snapshot: Snapshot, groups: Sequence[Group], columns: Sequence[Column]) -> Floats:
    """float64[G, C]: steps/s on one node, were there one of as many GPUs."""
    kinds = np.array([snapshot.kind_index[g.kind] for g in groups], dtype=np.int64)
    gpus = np.array([g.gpus for g in groups], dtype=np.int64)
    types = np.array([snapshot.type_index[c.gpu_type] for c in columns], dtype=np.int64)
    known = snapshot.throughputs[
        kinds[:, None], types[None, :], np.minimum(gpus, snapshot.max_gpus)[:, None]
    ]
    return np.where((gpus > snapshot.max_gpus)[:, None], 0.0, known)


def speed(snapshot: Snapshot, group: Group, column: Column) -> float:
    """steps/s of such a job on this column, were it there; 0 where that is not known."""
    if column.spread:
        return spread_rates(snapshot).get((group.kind, column.gpu_type, group.gpus), 0.0)
    if group.gpus > snapshot.max_gpus:
        return 0.0
    return float(
        snapshot.throughputs[
            snapshot.kind_index[group.kind], snapshot.type_index[column.gpu_type], group.gpus
        ]
    )


class _Reach:
    """The most GPUs that jobs of a condition can be given, by column; looked up once for all of
    them.
    """

    def __init__(self, allocatable: Allocatable) -> None:
        self.allocatable = allocatable
        self.number = {name: i for i, name in enumerate(allocatable.types)}
        self.of_one: dict[Condition, list[int]] = {}
        self.together: dict[tuple[Condition, int], list[int]] = {}

    def gpus(self, group: Group, columns: Sequence[Column]) -> list[int]:
        """By column: on one node, or where the column is spread on several of them together."""
        if group.condition not in self.of_one:
            self.of_one[group.condition] = largest(
                self.allocatable, self.allocatable.admitting(group.condition)
            )
        on_one = self.of_one[group.condition]
        return [
            self._on_several(group, c) if c.spread else on_one[self.number[c.gpu_type]]
            for c in columns
        ]

    def _on_several(self, group: Group, column: Column) -> int:
        if group.gpus < 2:
            return 0
        key = group.condition, group.gpus
        if key not in self.together:
            self.together[key] = widest(
                self.allocatable, self.allocatable.admitting(group.condition, group.gpus)
            )
        return self.together[key][self.number[column.gpu_type]]
