"""The placement engine's state and requests from a snapshot.

Training may have every healthy device that no profile run and no unknown job holds. Running jobs
hold nothing in the state that `cluster_of` returns: a policy takes what it keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TypeAlias

from policies.contract.snapshot import NodeView, Purpose, RankPlacement, Running, Snapshot
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

LayoutOf: TypeAlias = Callable[[Sequence[NodeView], tuple[str, ...], Sequence[int]], Layout]
"""The layout of nodes, with the resources that count, and by node the devices that do."""

__all__ = ["JobRequests", "cluster_of", "resources_of"]


def cluster_of(snapshot: Snapshot, layout: LayoutOf = Layout) -> ClusterState:
    """Return what training may have, closed where a node takes no training."""
    present, idle = _devices(snapshot.nodes, snapshot.jobs.position)
    of = layout(snapshot.nodes, resources_of(snapshot), present)
    cap_mw = inf if snapshot.cap_w is None else capacity_in_thousandths(snapshot.cap_w)
    state = ClusterState(of, cap_mw, idle, _free(snapshot, of, idle))
    for n, node in enumerate(snapshot.nodes):
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


def _devices(nodes: Sequence[NodeView], known: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """Return by node the devices that count, and those that training may have.

    Not to be had are those that profile runs or unknown jobs hold, and those out of order.
    """
    present, idle = [], []
    for node in nodes:
        healthy, busy, bit = 0, 0, 1
        for device in node.devices:
            if device.healthy:
                healthy |= bit
            if device.held:
                for hold in device.held:
                    if hold.job not in known or hold.purpose is PROFILING:
                        busy |= bit
            bit <<= 1
        present.append(healthy | busy)
        idle.append(healthy & ~busy)
    return present, idle


def _free(snapshot: Snapshot, layout: Layout, idle: Sequence[int]) -> list[Free]:
    """Return each node's free capacity: idle devices, and what profile runs leave of resources."""
    if not layout.resources and not layout.levels:
        return [(devices.bit_count(),) for devices in idle]
    if not layout.resources:
        return [layout.free(n, devices, ()) for n, devices in enumerate(idle)]
    left = [list(capacity_of(node, layout.resources)) for node in layout.nodes]
    for job, run in profile_runs(snapshot):
        row = snapshot.jobs.position[job]
        demand = rank_demand(snapshot.jobs.columns, row, len(run.ranks))
        for seat in run.ranks:
            used = layout.amounts(with_quota(demand, [seat]))
            if used and (n := layout.index.get(seat.node)) is not None:
                left[n] = [a - b for a, b in zip(left[n], used, strict=True)]
    return [layout.free(n, devices, tuple(left[n])) for n, devices in enumerate(idle)]


def with_quota(demand: Mapping[str, float], ranks: Sequence[RankPlacement]) -> Mapping[str, float]:
    """Return a process's demand with the most cores that a quota gives to any of these seats."""
    if all(seat.cpu_quota is None for seat in ranks):
        return demand
    cores = demand.get("cores", 0.0)
    most = max(cores if seat.cpu_quota is None else seat.cpu_quota for seat in ranks)
    return {**demand, "cores": most}


class JobRequests:
    """Requests of a snapshot's jobs, and the allocations of what runs."""

    def __init__(self, snapshot: Snapshot, layout: Layout) -> None:
        self.snapshot, self.layout, self.columns = snapshot, layout, snapshot.jobs.columns

    def on_one_node(self, row: int, gpus: int, ranks: Sequence[RankPlacement] = ()) -> Request:
        """Return the request of a job as one process with so many devices, on its seat if given."""
        others = self.columns.others
        return self.layout.request(
            gpus,
            with_quota(self.demand(row, 1), ranks),
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
        largest = max((of.size for of in self.layout.classes), default=1)
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
        index, parts = self.layout.index, list[Part]()
        for seat in run.ranks:
            n, wanted = index.get(seat.node, -1), set(seat.devices)
            bits = self.layout.bits(n, wanted) if n >= 0 else 0
            if n < 0 or bits.bit_count() < len(wanted):
                return None
            parts.append(Part(n, len(wanted), bits))
        if len(parts) == 1:
            request = self.on_one_node(row, parts[0].units, run.ranks)
            return Allocation(request, (parts[0]._replace(units=1),))
        gpus, ranks = sum(part.units for part in parts), len(parts)
        used = self.layout.amounts(with_quota(self.demand(row, ranks), run.ranks))
        request = Request(gpus=1, units=gpus, per_node=used, span=Span.ANY, nodes=ranks)
        return Allocation(request, tuple(parts))
