"""Occupancy of nodes by name: what fits, take, release, and what is in the way. Pure.

Launches are checked with it, live (`controlplane.loop.live.recheck`) and simulated
(`controlplane.simulation.cluster.fleet`). A plan is made on a `ClusterState`, which knows how much
is free and searches that fast; both count amounts in the same integers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from policies.contract.placement_rules import TOLERANCE
from policies.contract.plan import RankPlacement

Holder = TypeVar("Holder")

DeviceKey: TypeAlias = tuple[str, str]
"""(node, device)."""

SeatAmounts: TypeAlias = Sequence[tuple[RankPlacement, Mapping[str, int]]]
"""Seats of a placement, each with its cores, memory and named resources in billionths."""


class Hold(NamedTuple, Generic[Holder]):
    """Holder of a device, and its share of it."""

    holder: Holder
    share: float


class Occupancy(Generic[Holder]):
    """Holders of devices, amounts and nodes.

    `slots`: by device, how many may hold it at once; `amounts`: by node, what it has, in
    billionths. Both may be exceeded by what is taken: nodes may have shrunk.
    """

    def __init__(
        self, slots: Mapping[DeviceKey, int], amounts: Mapping[str, Mapping[str, int]]
    ) -> None:
        self.slots = slots
        self.amounts = amounts
        self.holds: dict[DeviceKey, tuple[Hold[Holder], ...]] = {}
        self.used: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self.in_use: dict[str, int] = defaultdict(int)
        """Devices in use by node; one that several hold counts once."""
        self.tenants: dict[str, dict[Hashable, bool]] = defaultdict(dict)
        """Jobs by node, and whether each is to be alone there."""

    # ---- why not

    def full_devices(self, seats: Iterable[RankPlacement]) -> list[DeviceKey]:
        """Return the devices of these seats without a free slot or share."""
        full = []
        for seat in seats:
            for device in seat.devices:
                key = seat.node, device
                if not self._has_slot(key, seat.share):
                    full.append(key)
        return full

    def short_amounts(self, seats: SeatAmounts) -> list[tuple[str, str]]:
        """Return (node, name) of the amounts of which a node has too little free for its seats."""
        wanted: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for seat, amounts in seats:
            for name, amount in amounts.items():
                wanted[seat.node][name] += amount
        short = []
        for node, amounts in wanted.items():
            has = self.amounts.get(node, {})
            for name, amount in amounts.items():
                if self.used[node][name] + amount > has.get(name, 0):
                    short.append((node, name))
        return short

    def others_in_the_way(self, job: Hashable, node: str, *, alone: bool) -> set[Hashable]:
        """Return the other jobs on a node, if this job or one of them is to be alone there."""
        others = {other: is_alone for other, is_alone in self.tenants[node].items() if other != job}
        return set(others) if alone or any(others.values()) else set()

    def holders(self, key: DeviceKey) -> list[Holder]:
        """Return who holds a device."""
        return [hold.holder for hold in self.holds.get(key, ())]

    # ---- take and release

    def take(self, holder: Holder, job: Hashable, seats: SeatAmounts, *, alone: bool) -> None:
        """Let a holder, a launch of `job`, have these seats, whether they fit or not."""
        for seat, amounts in seats:
            self.tenants[seat.node][job] = alone
            self._count(seat.node, amounts, 1)
            own = Hold(holder, seat.share)
            for device in seat.devices:
                key = seat.node, device
                if key not in self.holds:
                    self.in_use[seat.node] += 1
                self.holds[key] = (*self.holds.get(key, ()), own)

    def release(self, holder: Holder, job: Hashable, seats: SeatAmounts) -> None:
        """Undo `take`."""
        for seat, amounts in seats:
            self.tenants[seat.node].pop(job, None)
            self._count(seat.node, amounts, -1)
            for device in seat.devices:
                key = seat.node, device
                left = tuple([hold for hold in self.holds[key] if hold.holder is not holder])
                if left:
                    self.holds[key] = left
                else:
                    del self.holds[key]
                    self.in_use[seat.node] -= 1

    def _has_slot(self, key: DeviceKey, share: float) -> bool:
        """Return True if a device has a free slot and so much of it is free."""
        held = self.holds.get(key, ())
        if not held:
            return True
        total = sum(hold.share for hold in held) + share
        return len(held) < self.slots[key] and total <= 1.0 + TOLERANCE

    def _count(self, node: str, amounts: Mapping[str, int], sign: int) -> None:
        """Count amounts as used (sign 1), or as used no more (-1)."""
        used = self.used[node]
        for name, amount in amounts.items():
            used[name] += sign * amount
