"""What training may have: nodes and their devices without those that profile runs, unknown jobs and
jobs that stay outside hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import NamedTuple, TypeAlias

import numpy as np

from policies.contract.job_columns import frozen
from policies.contract.plan import Waiting
from policies.contract.snapshot import Ints, NodeView, Snapshot
from policies.placement.eligibility import admits, free_and_busy
from policies.placement.staying import Stay, stays

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
        """What one of so many processes uses of its node; only what is above 0."""
        units, cores, memory_gb, resources = self.demand
        times = max(1, ceil(units / ranks))
        amounts = (("cores", cores), ("memory_gb", memory_gb), *resources)
        return {name: amount * times for name, amount in amounts if amount > 0.0}


@dataclass(frozen=True)
class Allocatable:
    """The nodes that take training, with what may be given away there.

    `devices[n]` ids of node n; `types` GPU types with any, sorted, `type_of[n]` their number (-1:
    nothing of this type may be given); `busy[n]` devices in use by what is not decided about.
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

    def going_on(self, nodes: tuple[NodeView, ...], busy: tuple[int, ...]) -> Allocatable:
        """The same nodes with the same devices to give, as their views and what is in use of them
        are now.
        """
        after = Allocatable(nodes, self.devices, busy, self.types, self.type_of)
        known = vars(self)
        vars(after).update(
            {name: known[name] for name in ("index", "sizes", "gpus") if name in known}
        )
        return after

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
        return tuple(
            admits(signature, n.gpu_type, frozenset(n.labels)) and _has(n, demand)
            for n in self.nodes
        )


@dataclass(frozen=True, slots=True)
class Outside:
    """Running jobs that are not decided about, and by row those on a draining node that may stay if
    there is no room elsewhere.
    """

    stay: tuple[Stay, ...]
    fallback: Mapping[int, Stay]


def outside_of(snapshot: Snapshot, waiting: Mapping[int, Waiting]) -> Outside:
    """Who stays outside of the decision. A job launched at this very moment does not: it has its
    part, on its own devices.
    """
    if len(_training(snapshot)) == len(snapshot.nodes):
        return Outside((), {})
    pinned, fallback = stays(snapshot, waiting, never_touch=False)
    by_id = snapshot.node_by_id
    return Outside(
        tuple(
            s for s in pinned if not all(by_id[seat.node].takes_training for seat in s.run.ranks)
        ),
        fallback,
    )


def allocatable_of(snapshot: Snapshot, outside: Outside) -> Allocatable:
    """What the others may have."""
    at = _training(snapshot)
    nodes = (
        snapshot.nodes if len(at) == len(snapshot.nodes) else tuple([snapshot.nodes[i] for i in at])
    )
    looks = _looks(snapshot, nodes)
    devices, busy = tuple([look.free for look in looks]), tuple([look.busy for look in looks])
    if outside.stay:
        held = _held(outside.stay)
        staying = [held.get(node.id, set()) for node in nodes]
        devices = tuple(
            [
                tuple([d for d in free if d not in of])
                for free, of in zip(devices, staying, strict=True)
            ]
        )
        busy = tuple([in_use + len(of) for in_use, of in zip(busy, staying, strict=True)])
    return _ground(snapshot, nodes, devices, busy)


def _ground(
    snapshot: Snapshot, nodes: tuple[NodeView, ...], devices: Given, busy: tuple[int, ...]
) -> Allocatable:
    """These nodes with these devices; what follows of the devices is kept while the same are
    given.
    """
    kept: Allocatable | None = snapshot.standing.get("allocatable")
    if kept is not None and kept.devices == devices:
        return kept.going_on(nodes, busy)
    types = tuple(sorted({n.gpu_type for n, given in zip(nodes, devices, strict=True) if given}))
    number = {name: i for i, name in enumerate(types)}
    found = Allocatable(
        nodes, devices, busy, types, tuple([number.get(n.gpu_type, -1) for n in nodes])
    )
    snapshot.standing["allocatable"] = found
    return found


def _training(snapshot: Snapshot) -> tuple[int, ...]:
    """Variables of the nodes that take training."""
    if "training" not in snapshot.standing:
        snapshot.standing["training"] = tuple(
            i for i, n in enumerate(snapshot.nodes) if n.takes_training
        )
    found: tuple[int, ...] = snapshot.standing["training"]
    return found


class _Look(NamedTuple):
    """A node as it was when it was looked at: its view, who held its devices (None where one was
    not known), `free_and_busy`.
    """

    node: NodeView
    holders: frozenset[str] | None
    free: tuple[str, ...]
    busy: int

    @classmethod
    def at(cls, node: NodeView, known: Mapping[str, int]) -> _Look:
        """As it is now; `known` are the snapshot's jobs."""
        holders = frozenset([hold.job for device in node.devices for hold in device.held])
        return cls(node, holders if holders <= known.keys() else None, *free_and_busy(node, known))


def _looks(snapshot: Snapshot, nodes: tuple[NodeView, ...]) -> list[_Look]:
    """A look at each node; anew only where its view is not as in the round before, or a holder was
    or is not known.
    """
    ids, known = snapshot.jobs.columns.ids, snapshot.jobs.position
    before: tuple[tuple[str, ...], list[_Look]] | None = snapshot.standing.get("looks")
    if before is None:
        looks = [_Look.at(node, known) for node in nodes]
    else:
        same_jobs = before[0] == ids
        looks = [
            (
                look
                if look.node is node
                and (of := look.holders) is not None
                and (same_jobs or of <= known.keys())
                else _Look.at(node, known)
            )
            for look, node in zip(before[1], nodes, strict=True)
        ]
    snapshot.standing["looks"] = ids, looks
    return looks


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


def largest(allocatable: Allocatable, admitted: Sequence[bool]) -> list[int]:
    """By type: the most devices that one admitted node gives."""
    most = [0] * len(allocatable.types)
    for size, of, may in zip(allocatable.sizes, allocatable.type_of, admitted, strict=True):
        if may and of >= 0 and size > most[of]:
            most[of] = size
    return most


def widest(allocatable: Allocatable, admitted: Sequence[bool]) -> list[int]:
    """By type: the devices that all admitted nodes give together; 0 where fewer than two give
    any.
    """
    total, nodes = [0] * len(allocatable.types), [0] * len(allocatable.types)
    for size, of, may in zip(allocatable.sizes, allocatable.type_of, admitted, strict=True):
        if may and of >= 0 and size:
            total[of] += size
            nodes[of] += 1
    return [gpus if of > 1 else 0 for gpus, of in zip(total, nodes, strict=True)]
