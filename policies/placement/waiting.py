"""Power of placements, counted from the nodes' views."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from policies.contract.plan import Placement
from policies.contract.snapshot import Purpose, Snapshot
from policies.contract.validation import power_w
from policies.placement.eligibility import busy_devices
from policies.placement.reasons import cap_rises_s

__all__ = ["cap_rises_s", "watts_of"]


def watts_of(snapshot: Snapshot, placements: Iterable[Placement]) -> float:
    """Return the IT power of these placements and of what runs outside of any decision."""
    known = snapshot.jobs.position
    used: dict[str, int] = defaultdict(int, {n.id: busy_devices(n, known) for n in snapshot.nodes})
    for placed in placements:
        for seat in placed.ranks:
            used[seat.node] += len(seat.devices) if placed.purpose is Purpose.TRAINING else 0
    return power_w(snapshot.node_by_id, used)
