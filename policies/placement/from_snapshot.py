"""The placement engine's state and requests from a snapshot.

Training may have every healthy device that no profile run and no unknown job holds. Running jobs
hold nothing in the state that `cluster_of` returns: a policy takes what it keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from policies.contract.snapshot import NodeView, Purpose, Running, Snapshot
from policies.contract.validation import profile_runs, rank_demand
from policies.placement.cluster_state import ClusterState
from policies.placement.layout import PLAIN, Layout, capacity_of
from policies.placement.requests import (
    UNLIMITED,
    Allocation,
    Free,
    Part,
    Request,
    Span,
    capacity_in_thousandths,
)

PROFILING = Purpose.PROFILING

__all__ = ["JobRequests", "cluster_of", "resources_of"]


def cluster_of(snapshot: Snapshot) -> ClusterState:
    """Return what training may have, closed where a node takes no training."""
    nodes, known = snapshot.nodes, snapshot.jobs.position
    present, idle = [], []
    for node in nodes:
        healthy, busy = _devices(node, known)
        present.append(healthy | busy)
        idle.append(healthy & ~busy)
    layout = Layout(nodes, resources_of(snapshot), present)
    cap_mw = inf if snapshot.cap_w is None else capacity_in_thousandths(snapshot.cap_w)
    state = ClusterState(layout, cap_mw, idle, _free(snapshot, layout, idle))
    for n, node in enumerate(nodes):
        if not node.takes_training:
            state.close(n)
    return state


def resources_of(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the names of the resources that jobs use and that may run out on some node."""
    columns = snapshot.jobs.columns
    if columns.gpus_only:
        return ()
    named = {name for of in columns.others["resources"] for name, _ in of}
    plain = [name for name in PLAIN if columns.numbers[name].any()]
    finite = [n for n in plain if any(getattr(node, n) < inf for node in snapshot.nodes)]
    return (*finite, *sorted(named))


def _devices(node: NodeView, known: Mapping[str, int]) -> tuple[int, int]:
    """Return the healthy devices of a node, and those held by what training cannot move."""
    healthy, busy, bit = 0, 0, 1
    for device in node.devices:
        if device.healthy:
            healthy |= bit
        for hold in device.held:
            if hold.purpose is PROFILING or hold.job not in known:
                busy |= bit
        bit <<= 1
    return healthy, busy


def _free(snapshot: Snapshot, layout: Layout, idle: Sequence[int]) -> list[Free]:
    """Return each node's free capacity: idle devices, and what profile runs leave of resources."""
    if not layout.resources:
        return [layout.free(n, devices, ()) for n, devices in enumerate(idle)]
    left = [list(capacity_of(node, layout.resources)) for node in layout.nodes]
    for job, run in profile_runs(snapshot):
        row = snapshot.jobs.position[job]
        used = layout.amounts(rank_demand(snapshot.jobs.columns, row, len(run.ranks)))
        for seat in run.ranks if used else ():
            if (n := layout.index.get(seat.node)) is not None:
                left[n] = [a - b for a, b in zip(left[n], used, strict=True)]
    return [layout.free(n, devices, tuple(left[n])) for n, devices in enumerate(idle)]


class JobRequests:
    """Requests of a snapshot's jobs, and the allocations of what runs."""

    def __init__(self, snapshot: Snapshot, layout: Layout) -> None:
        self.snapshot, self.layout, self.columns = snapshot, layout, snapshot.jobs.columns

    def on_one_node(self, row: int, gpus: int) -> Request:
        """Return the request of a job as one process with so many devices."""
        others = self.columns.others
        return self.layout.request(
            gpus,
            self.demand(row, 1),
            types=others["allowed_types"][row],
            labels=others["labels"][row],
        )

    def spread(self, row: int, gpus: int, types: tuple[str, ...] | None = None) -> list[Request]:
        """Return a gang's requests on 2, 3 ... nodes, to be tried in turn (`find_first`).

        Over several types only for a job that may mix them.
        """
        others = self.columns.others
        span = Span.MIXED if others["may_mix"][row] else Span.ONE_TYPE
        types = others["allowed_types"][row] if types is None else types
        largest = max((len(devices) for devices in self.layout.devices), default=1)
        return [
            self.layout.request(
                1,
                {},
                units=gpus,
                span=span,
                types=types,
                labels=others["labels"][row],
                per_node=self.demand(row, ranks),
                nodes=ranks,
            )
            for ranks in range(max(2, -(-gpus // largest)), gpus + 1)
        ]

    def together(self, rows: Sequence[int], gpus: int = 1) -> Request:
        """Return the request of jobs that share all of their devices, each as one process."""
        others, demand = self.columns.others, dict[str, float]()
        for row in rows:
            for name, amount in self.demand(row, 1).items():
                demand[name] = demand.get(name, 0.0) + amount
        allowed = [set(others["allowed_types"][row]) for row in rows]
        asked = [types for types in allowed if types]
        types = tuple(sorted(set.intersection(*asked))) if asked else ()
        return self.layout.request(
            gpus if types or not asked else UNLIMITED,
            demand,
            types=types,
            labels=[label for row in rows for label in others["labels"][row]],
            slots=len(rows),
        )

    def demand(self, row: int, ranks: int) -> dict[str, float]:
        """Return what one of so many processes of a job uses of its node, without zeros."""
        if self.columns.gpus_only:
            return {}
        of_rank = rank_demand(self.columns, row, ranks)
        return {name: amount for name, amount in of_rank.items() if amount > 0.0}

    def allocation_of(self, row: int, run: Running) -> Allocation | None:
        """Return what a run holds; None if a node or device of it is gone."""
        index = self.layout.index
        if not all(s.node in index and self._has(index[s.node], s.devices) for s in run.ranks):
            return None
        ranks = [(index[s.node], s.devices) for s in run.ranks]
        if len(ranks) == 1:
            (n, devices), request = ranks[0], self.on_one_node(row, len(ranks[0][1]))
            return Allocation(request, (Part(n, 1, self.layout.bits(n, devices)),))
        gpus = sum(len(devices) for _, devices in ranks)
        used = self.layout.amounts(self.demand(row, len(ranks)))
        request = Request(gpus=1, units=gpus, per_node=used, span=Span.ANY, nodes=len(ranks))
        parts = [Part(n, len(of), self.layout.bits(n, of)) for n, of in ranks]
        return Allocation(request, tuple(parts))

    def _has(self, n: int, devices: Sequence[str]) -> bool:
        return set(devices) <= set(self.layout.devices[n])
