"""How fast groups of equal jobs run on each column: the rows T[m, c] of an allocation problem."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from policies.contract.snapshot import Floats, Snapshot
from policies.gavel.allocation.grouping import JobGroup
from policies.gavel.allocation.problem import Column
from policies.placement.cluster_state import ClusterState
from policies.placement.options import JobRequests

SpreadRates: TypeAlias = Mapping[tuple[str, str, int], float]
"""steps/s over several nodes, by kind, GPU type and GPUs."""


def spread_rates(snapshot: Snapshot, kinds: Collection[str]) -> SpreadRates:
    """Return what is known of these kinds on several nodes."""
    return {
        (kind.id, t.gpu_type, t.gpus): t.steps_per_s
        for kind in snapshot.kinds
        if kind.id in kinds
        for t in kind.throughputs
        if t.spread and t.steps_per_s > 0.0
    }


def columns_of(types: Sequence[str], spread: SpreadRates) -> tuple[Column, ...]:
    """Return a column for each type, and one for several nodes of it if a kind is known there."""
    known = {gpu_type for _, gpu_type, _ in spread}
    return (*[Column(t) for t in types], *[Column(t, True) for t in types if t in known])


def rates_of(
    snapshot: Snapshot,
    groups: Sequence[JobGroup],
    rows: Sequence[int],
    columns: Sequence[Column],
    reach: Reach,
    spread: SpreadRates,
) -> list[tuple[float, ...]]:
    """Return steps/s of each group on each column; 0 where the nodes do not give enough GPUs.

    `rows`: of a job of each group.
    """
    most, types = snapshot.max_gpus, [snapshot.type_index[c.gpu_type] for c in columns]
    kinds = [snapshot.kind_index[g.kind] for g in groups]
    gpus = [min(g.gpus, most) for g in groups]
    known = snapshot.throughputs[kinds, :, gpus].tolist() if groups else []
    found = []
    for group, row, alone in zip(groups, rows, known, strict=True):
        on_one, rates = reach.on_one_node(group, row), []
        for t, c in zip(types, columns, strict=True):
            if c.spread:
                rates.append(_spread_rate(group, row, c.gpu_type, reach, spread))
            else:
                rates.append(alone[t] if group.gpus <= on_one.get(c.gpu_type, 0) else 0.0)
        found.append(tuple(rates))
    return found


def _spread_rate(
    group: JobGroup, row: int, gpu_type: str, reach: Reach, spread: SpreadRates
) -> float:
    if group.gpus < 2 or group.gpus > reach.on_several(group, row).get(gpu_type, 0):
        return 0.0
    return spread.get((group.kind, gpu_type, group.gpus), 0.0)


class Reach:
    """The most GPUs that a job can be given, were the nodes empty."""

    def __init__(self, state: ClusterState, requests: JobRequests) -> None:
        self.state, self.requests = state, requests
        self._on_one: dict[tuple[Any, ...], Mapping[str, int]] = {}
        self._on_several: dict[tuple[Any, ...], Mapping[str, int]] = {}

    def on_one_node(self, group: JobGroup, row: int) -> Mapping[str, int]:
        """By GPU type, on one node; `row` is of one of the group's jobs."""
        key = group.types, group.labels, group.demand
        if key not in self._on_one:
            most: dict[str, int] = {}
            for gpu_type, gpus, _ in self._usable(group, row, 1):
                most[gpu_type] = max(gpus, most.get(gpu_type, 0))
            self._on_one[key] = most
        return self._on_one[key]

    def on_several(self, group: JobGroup, row: int) -> Mapping[str, int]:
        """By GPU type, on all nodes together, a process for each GPU; none if they are not two."""
        key = group.types, group.labels, group.demand, group.gpus
        if key not in self._on_several:
            total, nodes = dict[str, int](), dict[str, int]()
            for gpu_type, gpus, count in self._usable(group, row, group.gpus):
                total[gpu_type] = total.get(gpu_type, 0) + gpus * count
                nodes[gpu_type] = nodes.get(gpu_type, 0) + count
            self._on_several[key] = {t: gpus for t, gpus in total.items() if nodes[t] > 1}
        return self._on_several[key]

    def _usable(self, group: JobGroup, row: int, ranks: int) -> Iterator[tuple[str, int, int]]:
        """Yield (GPU type, free devices, nodes) of nodes that would do for a process if empty.

        Devices of a node that the power cap never allows together are left out.
        """
        left_mw = self.state.cap_mw - self.state.used_mw
        demand, layout = self.requests.demand(row, ranks), self.state.layout
        request = layout.request(0, demand, types=group.types, labels=group.labels)
        classes, allowed = layout.admitting(request)
        for c in classes:
            if request.fitting(layout.classes[c].capacity) > 0:
                for free, nodes in self.state.groups[c].items():
                    gpus = layout.classes[c].powered(free, left_mw)
                    if gpus and (usable := nodes & allowed & self.state.open):
                        yield layout.classes[c].gpu_type, gpus, usable.bit_count()


def rate_table(rows: Sequence[tuple[float, ...]], columns: int) -> Floats:
    """float64[G, C] of these rows."""
    return np.array(rows, dtype=np.float64).reshape(len(rows), columns)
