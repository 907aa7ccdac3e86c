"""Residual of a snapshot: what is left of it beside jobs that are left out, or profile runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress

from policies.contract.job_columns import JobColumns, Jobs, frozen
from policies.contract.plan import PROFILING, TRAINING, Placement, Purpose, Running, seat_demand
from policies.contract.views import DeviceView, NodeView, SlotHold


@dataclass(frozen=True, slots=True)
class _Seat:
    """Seat of a job that is left out. `exclusive`: the job has the node to itself."""

    job: str
    purpose: Purpose
    devices: tuple[str, ...]
    share: float
    amounts: Mapping[str, float]
    exclusive: bool


class NodesBeside:
    """Nodes beside the seats of jobs that are left out."""

    def __init__(
        self,
        columns: JobColumns,
        position: Mapping[str, int],
        kept: Iterable[int],
        held: Iterable[Placement],
    ) -> None:
        """`kept`: rows of the jobs that are left in; `held`: placements of others."""
        self.columns = columns
        self.position = position
        self.kept = {columns.ids[row] for row in kept}
        self.seats: dict[str, list[_Seat]] = defaultdict(list)
        for placed in held:
            self._add(placed.job, placed)
        for row, runs in enumerate(columns.others["running"]):
            for run in runs:
                if run.purpose is PROFILING and columns.ids[row] not in self.kept:
                    self._add(columns.ids[row], run)

    def base_w(self, nodes: Mapping[str, NodeView]) -> float:
        """Return the power of the nodes on which these jobs use no GPU and nobody else does."""
        watts = 0.0
        for node, seats in self.seats.items():
            if node in nodes and not any(seat.devices for seat in seats):
                watts += nodes[node].draw_w(0, works=True)
        return watts

    def node(self, node: NodeView) -> NodeView:
        """Return what these jobs leave of a node."""
        seats = self.seats.get(node.id, ())
        devices = tuple([self._device(device, seats) for device in node.devices])
        if not seats:
            return node if devices == node.devices else replace(node, devices=devices)

        # The node has those amounts that the seats leave; none beside an exclusive job.
        used: dict[str, float] = defaultdict(float)
        if any(seat.exclusive for seat in seats):
            used.update({"cores": node.cores, "memory_gb": node.memory_gb, **dict(node.resources)})
        else:
            for seat in seats:
                for name, amount in seat.amounts.items():
                    used[name] += amount
        resources = [
            (name, max(0.0, amount - used.get(name, 0.0))) for name, amount in node.resources
        ]
        return replace(
            node,
            devices=devices,
            cores=max(0.0, node.cores - used.get("cores", 0.0)),
            memory_gb=max(0.0, node.memory_gb - used.get("memory_gb", 0.0)),
            resources=tuple(resources),
        )

    def _add(self, job: str, held: Placement | Running) -> None:
        """Count the seats that a job holds."""
        row = self.position[job]
        is_exclusive = bool(self.columns.others["exclusive"][row])
        for seat in held.ranks:
            amounts = seat_demand(self.columns, row, seat.units)
            if seat.cpu_quota is not None:
                amounts["cores"] = seat.cpu_quota
            self.seats[seat.node].append(
                _Seat(job, held.purpose, seat.devices, seat.share, amounts, is_exclusive)
            )

    def _device(self, device: DeviceView, seats: Iterable[_Seat]) -> DeviceView:
        """Return a device, held by these seats instead of by the jobs that are left out.

        Holds of jobs that are left in, or unknown to the snapshot, stay.
        """
        held = []
        for hold in device.held:
            if hold.job in self.kept or hold.job not in self.position:
                held.append(hold)
        for seat in seats:
            if seat.exclusive or device.id in seat.devices:
                held.append(SlotHold(seat.job, purpose=seat.purpose, share=seat.share))
        return _held_by(device, held)


def _held_by(device: DeviceView, held: Sequence[SlotHold]) -> DeviceView:
    """Return a device with these holds; the same object if it has them already."""
    if tuple(held) == device.held:
        return device
    return replace(device, held=tuple(held))


def only_rows(columns: JobColumns, rows: Sequence[int]) -> Jobs:
    """Return the jobs of these rows, which must be in rising order."""
    mask = [False] * len(columns.ids)
    for row in rows:
        mask[row] = True
    chosen = list(rows)
    return Jobs(
        JobColumns(
            tuple(compress(columns.ids, mask)),
            tuple(compress(columns.kinds, mask)),
            {name: frozen(column[chosen]) for name, column in columns.numbers.items()},
            {name: frozen(column[chosen]) for name, column in columns.counts.items()},
            {name: tuple(compress(values, mask)) for name, values in columns.others.items()},
        )
    )


def with_profile_runs(
    nodes: Iterable[NodeView],
    columns: JobColumns,
    position: Mapping[str, int],
    placements: Sequence[Placement],
    now_s: float,
) -> tuple[tuple[NodeView, ...], JobColumns]:
    """Return nodes and jobs as if exactly these profile runs were under way; others have ended.

    Those under way already keep the time since which they run.
    """
    since_s = {(columns.ids[row], run.copy): run.since_s for row, run in _profile_runs(columns)}
    holds: dict[tuple[str, str], list[SlotHold]] = defaultdict(list)
    for placed in placements:
        for seat in placed.ranks:
            hold = SlotHold(placed.job, placed.copy, PROFILING, seat.share)
            for device in seat.devices:
                holds[seat.node, device].append(hold)
    new_nodes = tuple([_node_with_runs(node, holds, since_s.keys()) for node in nodes])
    return new_nodes, _jobs_with_runs(columns, position, placements, since_s, now_s)


def _profile_runs(columns: JobColumns) -> Iterator[tuple[int, Running]]:
    """Yield (row, run) of every profile run under way."""
    for row, runs in enumerate(columns.others["running"]):
        for run in runs:
            if run.purpose is PROFILING:
                yield row, run


def _node_with_runs(
    node: NodeView,
    holds: Mapping[tuple[str, str], Sequence[SlotHold]],
    ended: Collection[tuple[str, int]],
) -> NodeView:
    """Return a node without the profile runs (job, copy) that ended, and with these holds."""
    devices = []
    for device in node.devices:
        held = []
        for hold in device.held:
            if hold.purpose is TRAINING or (hold.job, hold.copy) not in ended:
                held.append(hold)
        held += holds.get((node.id, device.id), ())
        devices.append(_held_by(device, held))
    if tuple(devices) == node.devices:
        return node
    return replace(node, devices=tuple(devices))


def _jobs_with_runs(
    columns: JobColumns,
    position: Mapping[str, int],
    placements: Iterable[Placement],
    since_s: Mapping[tuple[str, int], float],
    now_s: float,
) -> JobColumns:
    """Return columns with a new `running`; every other column is shared.

    `since_s`: starts of profile runs under way by (job, copy); the others start now.
    """
    running = list(columns.others["running"])
    for row, _ in _profile_runs(columns):
        running[row] = tuple([run for run in running[row] if run.purpose is not PROFILING])
    for placed in placements:
        run = Running(
            placed.copy,
            placed.ranks,
            since_s.get((placed.job, placed.copy), now_s),
            placed.until_s,
            placed.steps_quota,
            PROFILING,
        )
        row = position[placed.job]
        running[row] = (*running[row], run)
    others = {**columns.others, "running": tuple(running)}
    return JobColumns(columns.ids, columns.kinds, columns.numbers, columns.counts, others)
