"""Free GPUs and amounts of nodes once a plan is carried out, and what a waiting job lacks."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import cached_property
from math import inf

from policies.contract.plan import BILLIONTHS, UNLIMITED, Placement
from policies.contract.snapshot import NodeView, Snapshot
from policies.placement.cluster_state import ClusterState
from policies.placement.from_snapshot import left_beside
from policies.placement.layout import DEVICES, RESOURCES
from policies.placement.priced_options import JobRequests
from policies.placement.waiting.reasons import has, needs_of


class Unfit(StrEnum):
    """Reason why a job cannot start on a node's free GPUs, the nearest to a start first."""

    POWER_CAP = "power_cap"
    TOO_FEW_GPUS = "too_few_gpus"
    TOO_LITTLE = "too_little"
    UNSUITABLE = "unsuitable"


class Leftover:
    """Free capacity of open nodes in a state that is left by placements."""

    def __init__(self, snapshot: Snapshot, state: ClusterState) -> None:
        self.snapshot = snapshot
        self.state = state
        self._requests = JobRequests(snapshot.jobs.columns, state.layout)

    @classmethod
    def of(cls, snapshot: Snapshot, placements: Iterable[Placement]) -> Leftover:
        """Return what these placements leave of the snapshot's nodes."""
        return cls(snapshot, left_beside(snapshot, tuple(placements)))

    @cached_property
    def gpus(self) -> dict[str, int]:
        """Free GPUs by open node."""
        gpus: dict[str, int] = {}
        for node, free in zip(self.snapshot.nodes, self.state.free, strict=True):
            if node.takes_training:
                gpus[node.id] = free[DEVICES]
        return gpus

    def amount(self, node: NodeView, name: str) -> float:
        """Return how much of cores, memory or a named resource is left on a node; inf: any."""
        resources = self.state.layout.resources
        if name not in resources:  # no job uses it, or no node lacks it
            return has(node, name)
        free = self.state.free[self.state.layout.index[node.id]]
        left = free[RESOURCES + resources.index(name)]
        is_unlimited = left >= UNLIMITED / 2  # however much of it jobs use
        return inf if is_unlimited else left / BILLIONTHS

    def alike(self, node: NodeView) -> object:
        """Return a key that is equal for nodes of one class with as much left."""
        n = self.state.layout.index[node.id]
        return self.state.layout.class_of[n], self.state.free[n], node.labels

    def unfit(self, row: int, node: NodeView) -> Unfit | None:
        """Return why the job in this row could not start on a node now; None if it could."""
        state = self.state
        n = state.layout.index[node.id]
        least = int(self.snapshot.jobs.columns.counts["gpus_min"][row])
        if not all(need.suits(node) for need in needs_of(self.snapshot, row)):
            return Unfit.UNSUITABLE
        if state.free[n][DEVICES] < least:
            return Unfit.TOO_FEW_GPUS
        request = self._requests.on_one_node(row, least)
        if request.fitting(state.free[n]) < 1:
            return Unfit.TOO_LITTLE
        extra_mw = state.extra_mw(request, [(n, 1)])
        return Unfit.POWER_CAP if extra_mw > state.cap_mw - state.used_mw else None

    def could_start(self, row: int) -> bool:
        """Return True if some open node has all that the job in this row needs."""
        nodes = self.snapshot.node_by_id
        return any(self.unfit(row, nodes[n]) is None for n, gpus in self.gpus.items() if gpus)
