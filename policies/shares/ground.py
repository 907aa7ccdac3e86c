"""What training may have: nodes and their devices without those that profile runs, unknown jobs and jobs that stay outside hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import TypeAlias

import numpy as np

from policies.job_columns import frozen
from policies.mechanisms.eligibility import admits, free_and_busy
from policies.mechanisms.staying import Stay, stays
from policies.plan import Waiting
from policies.snapshot import Ints, NodeView, Snapshot

Demand: TypeAlias = tuple[int, float, float, tuple[tuple[str, float], ...]]
"""What a job uses beside GPUs: units; cores, memory in GB and named resources of each unit."""

Given: TypeAlias = tuple[tuple[str, ...], ...]
"""Devices to give, by node."""

NOTHING: Demand = (1, 0.0, 0.0, ())


@dataclass(frozen=True, slots=True)
class Condition:
    """What jobs ask of a node beside GPUs: its type, its labels, its resources."""

    types: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    demand: Demand = NOTHING

    def of_rank(self, ranks: int) -> dict[str, float]:
        """What one of so many processes uses of its node, as `policies.judge.rank_demand` counts it; only what is above 0."""
        units, cores, memory_gb, resources = self.demand
        times = max(1, ceil(units / ranks))
        amounts = (("cores", cores), ("memory_gb", memory_gb), *resources)
        return {name: amount * times for name, amount in amounts if amount > 0.0}


@dataclass(frozen=True)
class Ground:
    """The nodes that take training, with what may be given away there.

    `devices[n]` ids of node n; `types` GPU types with any, sorted, `type_of[n]` their number (-1: nothing of this type may be
    given); `busy[n]` devices in use by what is not decided about.
    """

    nodes: tuple[NodeView, ...]
    devices: tuple[tuple[str, ...], ...]
    busy: tuple[int, ...]
    types: tuple[str, ...]
    type_of: tuple[int, ...]

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Number of each node."""
        return {n.id: i for i, n in enumerate(self.nodes)}

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Devices to give, by node."""
        return tuple(map(len, self.devices))

    @cached_property
    def gpus(self) -> Ints:
        """int64[T]: devices to give, by type."""
        counted = np.zeros(len(self.types), dtype=np.int64)
        for size, of in zip(self.sizes, self.type_of, strict=True):
            if size:
                counted[of] += size
        return frozen(counted)

    @cached_property
    def shared(self) -> tuple[int, ...]:
        """Devices to give that have room for two jobs, by type."""
        counted = [0] * len(self.types)
        for node, given, of in zip(self.nodes, self.devices, self.type_of, strict=True):
            if given and any(d.slots > 1 for d in node.devices):
                counted[of] += sum(d.slots > 1 and d.id in given for d in node.devices)
        return tuple(counted)

    def admitting(self, condition: Condition, ranks: int = 1) -> tuple[bool, ...]:
        """By node: whether a gang of so many processes may sit there, were the node empty."""
        demand = condition.of_rank(ranks)
        if not condition.types and not condition.labels and not demand:
            return (True,) * len(self.nodes)
        signature = (frozenset(condition.types), frozenset(condition.labels))
        return tuple(admits(signature, n.gpu_type, frozenset(n.labels)) and _has(n, demand) for n in self.nodes)


@dataclass(frozen=True, slots=True)
class Outside:
    """Running jobs that are not decided about, and by row those on a draining node that may stay if there is no room elsewhere."""

    stay: tuple[Stay, ...]
    fallback: Mapping[int, Stay]


def outside_of(snapshot: Snapshot, waiting: Mapping[int, Waiting]) -> Outside:
    """Who stays outside of the decision. A job launched at this very moment does not: it has its part, on its own devices."""
    if len(_training(snapshot)) == len(snapshot.nodes):
        return Outside((), {})
    pinned, fallback = stays(snapshot, waiting, never_touch=False)
    by_id = snapshot.node_by_id
    return Outside(tuple(s for s in pinned if not all(by_id[seat.node].takes_training for seat in s.run.ranks)), fallback)


def ground_of(snapshot: Snapshot, outside: Outside) -> Ground:
    """What the others may have."""
    nodes = tuple([snapshot.nodes[i] for i in _training(snapshot)])
    given = [_given(snapshot, node) for node in nodes]
    for n, node in enumerate(nodes) if outside.stay else ():
        free, in_use = given[n]
        staying = _held(outside.stay).get(node.id, ())
        given[n] = tuple(d for d in free if d not in staying), in_use + len(staying)
    devices, busy = tuple(free for free, _ in given), tuple(busy for _, busy in given)
    return Ground(nodes, devices, busy, *_types(snapshot, nodes, devices))


def _types(snapshot: Snapshot, nodes: Sequence[NodeView], devices: Given) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Types with devices to give and each node's number of them, kept while the same are given."""
    kept: tuple[Given, tuple[str, ...], tuple[int, ...]] | None = snapshot.standing.get("types given")
    if kept is not None and kept[0] == devices:
        return kept[1:]
    types = tuple(sorted({n.gpu_type for n, given in zip(nodes, devices, strict=True) if given}))
    number = {name: i for i, name in enumerate(types)}
    found = types, tuple(number.get(n.gpu_type, -1) for n in nodes)
    snapshot.standing["types given"] = (devices, *found)
    return found


def _training(snapshot: Snapshot) -> tuple[int, ...]:
    """Places of the nodes that take training."""
    if "training" not in snapshot.standing:
        snapshot.standing["training"] = tuple(i for i, n in enumerate(snapshot.nodes) if n.takes_training)
    found: tuple[int, ...] = snapshot.standing["training"]
    return found


def _given(snapshot: Snapshot, node: NodeView) -> tuple[tuple[str, ...], int]:
    """`free_and_busy` of a node, looked at again only where it is not as in the round before, or a holder is not known any more."""
    kept: dict[str, tuple[NodeView, frozenset[str], tuple[tuple[str, ...], int]]] = snapshot.standing.setdefault("given", {})
    known, before = snapshot.jobs.position, kept.get(node.id)
    if before is not None and before[0] is node and before[1] <= known.keys():
        return before[2]
    found = free_and_busy(node, known)
    holders = frozenset([hold.job for device in node.devices for hold in device.held])
    if holders <= known.keys():
        kept[node.id] = node, holders, found
    return found


def _held(staying: Iterable[Stay]) -> dict[str, set[str]]:
    held: dict[str, set[str]] = {}
    for stay in staying:
        for seat in stay.run.ranks:
            held.setdefault(seat.node, set()).update(seat.devices)
    return held


def _has(node: NodeView, demand: Mapping[str, float]) -> bool:
    if not demand:
        return True
    limits = {"cores": node.cores, "memory_gb": node.memory_gb, **dict(node.resources)}
    return all(amount <= limits.get(name, 0.0) for name, amount in demand.items())


def largest(ground: Ground, admitted: Sequence[bool]) -> list[int]:
    """By type: the most devices that one admitted node gives."""
    most = [0] * len(ground.types)
    for size, of, may in zip(ground.sizes, ground.type_of, admitted, strict=True):
        if may and of >= 0 and size > most[of]:
            most[of] = size
    return most


def widest(ground: Ground, admitted: Sequence[bool]) -> list[int]:
    """By type: the devices that all admitted nodes give together; 0 where fewer than two give any."""
    total, nodes = [0] * len(ground.types), [0] * len(ground.types)
    for size, of, may in zip(ground.sizes, ground.type_of, admitted, strict=True):
        if may and of >= 0 and size:
            total[of] += size
            nodes[of] += 1
    return [gpus if of > 1 else 0 for gpus, of in zip(total, nodes, strict=True)]
