"""Replay of reservations node by node, apart from the engine."""

from typing import Any

from policies.contract.plan import seat_demand
from policies.contract.snapshot import NodeView, Snapshot


def end_s(snapshot: Snapshot, job: str) -> float:
    """Return when a job ends by the run time that is told, if it starts now or runs."""
    view = snapshot.jobs.by_id(job)
    if not view.running:
        return snapshot.now_s + view.walltime_s
    return max(snapshot.now_s + 1.0, view.running[0].since_s + view.walltime_s)


def fits_beside(snapshot: Snapshot, job: str, placements: Any) -> bool:
    """Return True if all units of a job fit, node by node, beside these placements."""
    columns, position = snapshot.jobs.columns, snapshot.jobs.position
    unit, units = seat_demand(columns, position[job]), int(columns.counts["units"][position[job]])
    room = 0
    for node in snapshot.nodes:
        left = _has(node)
        for placed in placements:
            for seat in placed.ranks:
                if seat.node == node.id:
                    of_seat = seat_demand(columns, position[placed.job], seat.units)
                    for name, amount in of_seat.items():
                        left[name] = left.get(name, 0.0) - amount
        fits = [left.get(n, 0.0) // amount for n, amount in unit.items() if amount > 0.0]
        room += int(min(fits))
    return room >= units


def _has(node: NodeView) -> dict[str, float]:
    return {"cores": node.cores, "memory_gb": node.memory_gb, **dict(node.resources)}
