"""Simulated nodes whose devices have as many holders as slots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from controlplane.simulation.cluster.fleet import Fleet
from controlplane.simulation.world.job_table import Launch
from policies.contract.snapshot import DeviceView, NodeView, RankPlacement, SlotHold
from policies.contract.validation import TOLERANCE
from policies.placement.speed import devices_of


class Hold(NamedTuple):
    """A launch on a device, and the share of it that it holds."""

    launch: Launch
    share: float


class SharedFleet(Fleet):
    """Nodes whose devices have slots: full when all slots or shares are; in use counts once."""

    shares = True

    def __init__(self, nodes: Iterable[NodeView]) -> None:
        super().__init__(nodes)
        self.holds: dict[tuple[str, str], tuple[Hold, ...]] = {}

    def taken(self, ranks: Iterable[RankPlacement]) -> list[tuple[str, str]]:
        """Devices of these seats that have no room for one more."""
        return sorted(
            {
                (seat.node, d)
                for seat in ranks
                for d in seat.devices
                if not self._has_room((seat.node, d), seat.share)
            }
        )

    def take(self, launch: Launch) -> None:
        """The launch holds its shares of its devices from now on."""
        for seat in launch.ranks:
            for device in seat.devices:
                key = seat.node, device
                self._set(key, (*self.holds.get(key, ()), Hold(launch, seat.share)))

    def release(self, launch: Launch) -> None:
        """It no longer does."""
        for key in devices_of(launch.ranks):
            self._set(key, tuple(hold for hold in self.holds[key] if hold.launch is not launch))

    def launches_on(self, node: str) -> list[Launch]:
        """Launches that hold devices of a node, once each."""
        return self._launches((node, d.id) for d in self.nodes[node].devices)

    def beside(self, ranks: Iterable[RankPlacement]) -> list[Launch]:
        """Launches on these devices, once each."""
        return self._launches(devices_of(ranks))

    def parts(self, node: str) -> Mapping[int, float]:
        """GPUs that each job (its row) holds on a node, a shared one by its share."""
        found: dict[int, float] = defaultdict(float)
        for device in self.nodes[node].devices:
            for hold in self.holds.get((node, device.id), ()):
                found[hold.launch.row] += hold.share
        return found

    def _launches(self, keys: Iterable[tuple[str, str]]) -> list[Launch]:
        return list(
            {
                hold.launch.number: hold.launch for key in keys for hold in self.holds.get(key, ())
            }.values()
        )

    def _has_room(self, key: tuple[str, str], share: float) -> bool:
        held = self.holds.get(key, ())
        return (
            len(held) < self._bare[key].slots
            and sum(hold.share for hold in held) + share <= 1.0 + TOLERANCE
        )

    def _set(self, key: tuple[str, str], holds: tuple[Hold, ...]) -> None:
        before, node = key in self.holds, key[0]
        if holds:
            d, of = (
                self._bare[key],
                tuple(SlotHold(hold.launch.job, share=hold.share) for hold in holds),
            )
            self.holds[key] = holds
            self._held[key] = DeviceView(d.id, d.memory_gb, d.slots, d.healthy, of, d.emulated)
        else:
            del self.holds[key], self._held[key]
        self._count(node, bool(holds) - before)


def fleet_of(nodes: Sequence[NodeView]) -> Fleet:
    """The fleet of these nodes; with slots only if any device has them, as that costs more."""
    return (
        SharedFleet(nodes) if any(d.slots > 1 for n in nodes for d in n.devices) else Fleet(nodes)
    )
