"""Views of a snapshot for those who decide about a part of its jobs only.

In such a view the other jobs are unknown: the GPUs of their placements are held, and their nodes
have less of everything else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import compress

from policies.contract.plan import Placement, Purpose, seat_demand
from policies.contract.snapshot import (
    DeviceView,
    JobColumns,
    Jobs,
    NodeView,
    Running,
    SlotHold,
    Snapshot,
    frozen,
    profile_runs,
)


def view_of(snapshot: Snapshot, rows: Collection[int], placements: Iterable[Placement]) -> Snapshot:
    """Return the snapshot of these jobs alone, beside `placements` of others.

    Profile runs of other jobs hold what they have. Jobs of these placements that leave no GPU in
    use on a node keep it switched on: its power is no longer under the cap.
    """
    others = _Others(snapshot, frozenset(rows), tuple(placements))
    nodes = tuple([others.node(node) for node in snapshot.nodes])
    base_w, caps = others.base_w, snapshot.power_caps
    return replace(
        snapshot,
        nodes=nodes,
        jobs=_only(snapshot.jobs.columns, rows),
        power_cap_w=_less(snapshot.power_cap_w, base_w),
        power_caps=tuple([replace(s, power_cap_w=max(0.0, s.power_cap_w - base_w)) for s in caps]),
        profiling=tuple([r for r in snapshot.profiling if snapshot.jobs.position[r.job] in rows])
        if snapshot.profiling
        else (),
    )


@dataclass(frozen=True, slots=True)
class _Seat:
    """Seat of another job: its devices, share, amounts, and whether nobody else may be there."""

    job: str
    purpose: Purpose
    devices: tuple[str, ...]
    share: float
    amounts: Mapping[str, float]
    exclusive: bool


class _Others:
    """Seats of the jobs that a view leaves out, by node."""

    def __init__(
        self, snapshot: Snapshot, rows: frozenset[int], placements: tuple[Placement, ...]
    ) -> None:
        self.snapshot, self.position = snapshot, snapshot.jobs.position
        self.shown = {snapshot.jobs.columns.ids[row] for row in rows}
        self.on: dict[str, list[_Seat]] = defaultdict(list)
        for placed in placements:
            self._add(placed.job, placed)
        for job, run in profile_runs(snapshot):
            if job not in self.shown:
                self._add(job, run)

    @property
    def base_w(self) -> float:
        """Power of the nodes on which these jobs use no GPU and nobody else does."""
        views = ((self.snapshot.node_by_id.get(n), seats) for n, seats in self.on.items())
        return sum(
            view.draw_w(0, works=True)
            for view, seats in views
            if view is not None and not any(seat.devices for seat in seats)
        )

    def node(self, node: NodeView) -> NodeView:
        """Return what these jobs leave of a node."""
        seats = self.on.get(node.id, ())
        devices = tuple([self._device(device, seats) for device in node.devices])
        if not seats:
            return node if devices == node.devices else replace(node, devices=devices)
        used: Mapping[str, float]
        if any(seat.exclusive for seat in seats):
            used = {"cores": node.cores, "memory_gb": node.memory_gb, **dict(node.resources)}
        else:
            used = _sum(seat.amounts for seat in seats)
        return replace(
            node,
            devices=devices,
            cores=_left(node.cores, used.get("cores", 0.0)),
            memory_gb=_left(node.memory_gb, used.get("memory_gb", 0.0)),
            resources=tuple(
                [(name, _left(of, used.get(name, 0.0))) for name, of in node.resources]
            ),
        )

    def _add(self, job: str, at: Placement | Running) -> None:
        row, columns = self.position[job], self.snapshot.jobs.columns
        exclusive = bool(columns.others["exclusive"][row])
        for seat in at.ranks:
            amounts = seat_demand(columns, row, seat.units)
            if seat.cpu_quota is not None:
                amounts["cores"] = seat.cpu_quota
            self.on[seat.node].append(
                _Seat(job, at.purpose, seat.devices, seat.share, amounts, exclusive)
            )

    def _device(self, device: DeviceView, seats: Iterable[_Seat]) -> DeviceView:
        """Return a device held by the shown jobs that hold it now, by strangers, and by others."""
        kept = [h for h in device.held if h.job in self.shown or h.job not in self.position]
        there = [seat for seat in seats if seat.exclusive or device.id in seat.devices]
        held = (
            *kept,
            *[SlotHold(seat.job, purpose=seat.purpose, share=seat.share) for seat in there],
        )
        return device if held == device.held else replace(device, held=held)


def _sum(amounts: Iterable[Mapping[str, float]]) -> Mapping[str, float]:
    total: dict[str, float] = defaultdict(float)
    for of in amounts:
        for name, amount in of.items():
            total[name] += amount
    return total


def _left(capacity: float, used: float) -> float:
    return max(0.0, capacity - used)


def _less(cap_w: float | None, base_w: float) -> float | None:
    return None if cap_w is None else max(0.0, cap_w - base_w)


def _only(columns: JobColumns, rows: Collection[int]) -> Jobs:
    """Return these jobs, in the order of the snapshot."""
    chosen = sorted(rows)
    mask = [False] * len(columns.ids)
    for row in chosen:
        mask[row] = True

    def of(values: tuple[object, ...]) -> Iterator[object]:
        return compress(values, mask)

    return Jobs(
        JobColumns(
            tuple(compress(columns.ids, mask)),
            tuple(compress(columns.kinds, mask)),
            {name: frozen(column[chosen]) for name, column in columns.numbers.items()},
            {name: frozen(column[chosen]) for name, column in columns.counts.items()},
            {name: tuple(of(values)) for name, values in columns.others.items()},
        )
    )
