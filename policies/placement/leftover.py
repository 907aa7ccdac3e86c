"""Free GPUs and amounts of nodes once a plan is carried out, and what a waiting job lacks there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from policies.contract.plan import Placement, seat_demand
from policies.contract.snapshot import PROFILING, DeviceView, NodeView, Snapshot
from policies.contract.validation import power_w
from policies.placement.reasons import has, needs_of


class Unfit(StrEnum):
    """Reason why a job cannot start on a node's free GPUs, the nearest to a start first."""

    POWER_CAP = "power_cap"
    TOO_FEW_GPUS = "too_few_gpus"
    TOO_LITTLE = "too_little"
    UNSUITABLE = "unsuitable"


@dataclass(frozen=True, slots=True)
class Leftover:
    """Free GPUs and amounts by open node, and watts left under the power cap."""

    snapshot: Snapshot
    gpus: dict[str, int]
    used: dict[str, dict[str, float]]
    watts: float | None

    @classmethod
    def of(cls, snapshot: Snapshot, placements: Iterable[Placement]) -> Leftover:
        """Return what these placements leave of the snapshot's nodes."""
        taken, used = set[tuple[str, str]](), dict[str, dict[str, float]]()
        for placed in placements:
            row = snapshot.jobs.position.get(placed.job)
            for seat in placed.ranks:
                taken |= {(seat.node, device) for device in seat.devices}
                of_node, columns = used.setdefault(seat.node, {}), snapshot.jobs.columns
                demand = {} if row is None else seat_demand(columns, row, seat.units)
                for name, amount in demand.items():
                    of_node[name] = of_node.get(name, 0.0) + amount
        gpus = {n.id: _free(snapshot, n, taken) for n in snapshot.nodes if n.takes_training}
        return cls(snapshot, gpus, used, _watts_left(snapshot, set(used), taken))

    def unfit(self, row: int, node: NodeView) -> Unfit | None:
        """Return why the job in this row could not start on a node now; None if it could."""
        snapshot = self.snapshot
        free, least = self.gpus.get(node.id, 0), int(snapshot.jobs.columns.counts["gpus_min"][row])
        if not all(need.suits(node) for need in needs_of(snapshot, row)):
            return Unfit.UNSUITABLE
        if free < least:
            return Unfit.TOO_FEW_GPUS
        used = self.used.get(node.id, {})
        for name, amount in seat_demand(snapshot.jobs.columns, row).items():
            if amount > 0.0 and has(node, name) - used.get(name, 0.0) < amount:
                return Unfit.TOO_LITTLE
        busy = len(node.devices) - free
        extra_w = node.draw_w(busy + least) - node.draw_w(busy)
        return Unfit.POWER_CAP if self.watts is not None and extra_w > self.watts else None

    def could_start(self, row: int) -> bool:
        """Return True if some open node has all that the job in this row needs."""
        nodes = self.snapshot.node_by_id
        return any(self.unfit(row, nodes[n]) is None for n, gpus in self.gpus.items() if gpus)


def _free(snapshot: Snapshot, node: NodeView, taken: set[tuple[str, str]]) -> int:
    return sum((node.id, d.id) not in taken and _is_free(snapshot, d) for d in node.devices)


def _is_free(snapshot: Snapshot, device: DeviceView) -> bool:
    """Return True unless it is ill, or held by a profile run or a job not in the snapshot."""
    known = snapshot.jobs.position
    return device.healthy and all(
        h.job in known and h.purpose is not PROFILING for h in device.held
    )


def _watts_left(snapshot: Snapshot, working: set[str], taken: set[tuple[str, str]]) -> float | None:
    if snapshot.cap_w is None:
        return None
    busy = dict.fromkeys(working, 0)
    for node, _ in taken:
        busy[node] += 1
    return snapshot.cap_w - power_w(snapshot.node_by_id, busy)
