"""Profile runs: measured beside production, before any policy decides.

`reserve_profiling` keeps the profile runs under way and places the requests of the snapshot on
nodes that take profiling, on several at once; the snapshot it returns shows their devices as held,
so that no policy gives them away. `merge` adds the placements to the policy's plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from policies.contract.plan import Placement, Plan
from policies.contract.snapshot import (
    DeviceView,
    JobColumns,
    Jobs,
    NodeRole,
    NodeState,
    NodeView,
    ProfileRequest,
    Purpose,
    RankPlacement,
    Running,
    SlotHold,
    Snapshot,
    profile_runs,
    rank_demand,
)
from policies.contract.validation import TOLERANCE, power_w


def reserve_profiling(snapshot: Snapshot) -> tuple[Snapshot, tuple[Placement, ...]]:
    """(the snapshot with the devices of all profile runs held, the placements of all profile runs).

    Requests are served in the order they were wanted, each on devices of one node that takes
    profiling, free ones first. Devices that training holds are taken at once on nodes for profiling
    alone; on nodes of both roles only for a request older than `round_s`, fewest first (the policy
    must then place those jobs anew), and on one such node at a time: while something is measured on
    one of them, the others keep theirs. A run under way goes on while its devices are healthy and
    have a slot for it, its node is not lost and the power cap allows it.

    Two requests that name each other are served together or not at all: half of one device each,
    which has slots for both.
    """
    if not snapshot.profiling and not any(True for _ in profile_runs(snapshot)):
        return snapshot, ()
    desk = _Desk(snapshot)
    kept = tuple(p for p in map(_kept, profile_runs(snapshot)) if desk.keep(p))
    under_way = {(p.job, p.copy) for p in kept}
    wanted = sorted(
        (r for r in snapshot.profiling if (r.job, r.copy) not in under_way),
        key=lambda r: (r.since_s, r.job, r.copy),
    )
    placements = kept + tuple(p for together in _together(wanted) for p in desk.place(together))
    return _holding(snapshot, placements), placements


def merge(plan: Plan, placements: Iterable[Placement]) -> Plan:
    """The plan with these profile placements; duplicates (job, purpose, copy) are dropped."""
    placements = tuple(placements)
    if not placements:
        return plan
    known = {p.key for p in plan.placements}
    return replace(
        plan, placements=plan.placements + tuple(p for p in placements if p.key not in known)
    )


def _together(wanted: Iterable[ProfileRequest]) -> Iterator[tuple[ProfileRequest, ...]]:
    """Single requests, and pairs that are to share a device, in order."""
    wanted = tuple(wanted)
    at = {(r.job, r.copy): r for r in wanted}
    for request in wanted:
        other = at.get((request.beside, request.beside_copy)) if request.beside else None
        if not request.beside:
            yield (request,)
        elif other is not None and (request.job, request.copy) < (other.job, other.copy):
            yield request, other


def _kept(run: tuple[str, Running]) -> Placement:
    job, running = run
    return Placement(
        job, running.ranks, running.copy, Purpose.PROFILING, running.steps_quota, running.until_s
    )


@dataclass(slots=True)
class _Seat:
    """Devices of a node that a request could have, and how many of them training would lose."""

    node: NodeView
    devices: tuple[str, ...]
    taken_from_training: int


class _Desk:
    """Free devices, resources and watts while profile runs are placed."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.taken: dict[tuple[str, str], float] = {}
        self.runs = {(job, run.copy) for job, run in profile_runs(snapshot)}
        self.used: Counter[str] = Counter()
        self.measuring: set[str] = set()
        self.left = {
            n.id: {"cores": n.cores, "memory_gb": n.memory_gb, **dict(n.resources)}
            for n in snapshot.nodes
        }

    def keep(self, placed: Placement) -> bool:
        """Let a profile run go on if it still can; take what it uses."""
        nodes = [self.snapshot.node_by_id.get(s.node) for s in placed.ranks]
        if not all(
            n is not None and self._goes_on(n) and self._has_labels(n, placed.job) for n in nodes
        ):
            return False
        wanted = {(s.node, d) for s in placed.ranks for d in s.devices}
        usable = {
            (n.id, d.id)
            for n in nodes
            if n is not None
            for d in n.devices
            if d.healthy and self._has_slot(d)
        }
        return wanted <= usable and self._take(placed)

    def place(self, together: tuple[ProfileRequest, ...]) -> tuple[Placement, ...]:
        """The best place for a request or pair: least taken from training, then fullest node."""
        seats = [s for n in self.snapshot.nodes if (s := self._seat(n, together)) is not None]
        for seat in sorted(
            seats, key=lambda s: (s.taken_from_training, len(s.node.devices), s.node.id)
        ):
            rank = RankPlacement(seat.node.id, seat.devices, 1.0 / len(together))
            placed = [
                Placement(r.job, (rank,), r.copy, Purpose.PROFILING, steps_quota=r.steps)
                for r in together
            ]
            if self._take(*placed):
                return tuple(placed)
        return ()

    def _goes_on(self, node: NodeView) -> bool:
        drained = (
            node.state is NodeState.DRAINING
            and node.drain_until_s is not None
            and node.drain_until_s <= self.snapshot.now_s
        )
        return node.state is not NodeState.LOST and not drained

    def _has_labels(self, node: NodeView, job: str) -> bool:
        row = self.snapshot.jobs.position[job]
        return set(self.snapshot.jobs.columns.others["labels"][row]) <= set(node.labels)

    def _seat(self, node: NodeView, together: tuple[ProfileRequest, ...]) -> _Seat | None:
        if not all(self._suits(node, request) for request in together):
            return None
        request, slots = together[0], len(together)
        free = [
            d for d in node.devices if d.healthy and d.slots >= slots and self._is_free(node, d)
        ]
        idle, busy = (
            [d.id for d in free if not self._is_held(d)],
            [d.id for d in free if self._is_held(d)],
        )
        may_take = node.role is NodeRole.PROFILING or (
            self._is_old(request) and self.measuring <= {node.id}
        )
        chosen = (idle + busy if may_take else idle)[: request.gpus]
        return (
            _Seat(node, tuple(chosen), len(set(chosen) & set(busy)))
            if len(chosen) == request.gpus
            else None
        )

    def _suits(self, node: NodeView, request: ProfileRequest) -> bool:
        known = request.job in self.snapshot.jobs.position
        return (
            known
            and node.takes_profiling
            and node.gpu_type == request.gpu_type
            and self._has_labels(node, request.job)
        )

    def _is_free(self, node: NodeView, device: DeviceView) -> bool:
        return (node.id, device.id) not in self.taken and not self._is_foreign(device)

    def _is_old(self, request: ProfileRequest) -> bool:
        return self.snapshot.now_s - request.since_s > self.snapshot.round_s

    def _is_held(self, device: DeviceView) -> bool:
        return any(h.purpose is Purpose.TRAINING for h in device.held)

    def _has_slot(self, device: DeviceView) -> bool:
        """Whether jobs that the snapshot does not know leave a slot of it."""
        return sum(h.job not in self.snapshot.jobs.position for h in device.held) < device.slots

    def _is_foreign(self, device: DeviceView) -> bool:
        """Held by an unknown job, or by a profile run that no job lists."""
        known = self.snapshot.jobs.position
        return any(
            h.job not in known
            or (h.purpose is Purpose.PROFILING and (h.job, h.copy) not in self.runs)
            for h in device.held
        )

    def _take(self, *together: Placement) -> bool:
        """Take what these need, all or none; whether it was there."""
        shares = dict(self.taken)
        held = [
            ((s.node, d), s.share) for placed in together for s in placed.ranks for d in s.devices
        ]
        for device, share in held:
            shares[device] = shares.get(device, 0.0) + share
        wanted = {device for device, _ in held}
        used = self.used + Counter(node for node, _ in wanted - self.taken.keys())
        left = self._left_after(together)
        if (
            any(shares[device] > 1.0 + TOLERANCE for device in wanted)
            or left is None
            or not self._has_watts(used)
        ):
            return False
        self.taken, self.used, self.left = shares, used, left
        self.measuring |= {
            n for n, _ in wanted if self.snapshot.node_by_id[n].role is NodeRole.BOTH
        }
        return True

    def _left_after(self, together: Iterable[Placement]) -> dict[str, dict[str, float]] | None:
        """The nodes' resources without what these need; None where that is more than there is."""
        left = dict(self.left)
        for placed in together:
            row = self.snapshot.jobs.position[placed.job]
            demand = rank_demand(self.snapshot.jobs.columns, row, len(placed.ranks))
            for seat in placed.ranks:
                less = {
                    name: left[seat.node].get(name, 0.0) - amount for name, amount in demand.items()
                }
                if any(rest < -TOLERANCE for rest in less.values()):
                    return None
                left[seat.node] = {**left[seat.node], **less}
        return left

    def _has_watts(self, used: Counter[str]) -> bool:
        cap = self.snapshot.cap_w
        return cap is None or power_w(self.snapshot.node_by_id, used) <= cap + TOLERANCE


def _holding(snapshot: Snapshot, placements: tuple[Placement, ...]) -> Snapshot:
    """The snapshot as if exactly these profile runs were under way."""
    ended = {(job, run.copy) for job, run in profile_runs(snapshot)}
    holds: dict[tuple[str, str], tuple[SlotHold, ...]] = {}
    for placed in placements:
        for seat in placed.ranks:
            for device in seat.devices:
                hold = SlotHold(placed.job, placed.copy, Purpose.PROFILING, seat.share)
                holds[seat.node, device] = (*holds.get((seat.node, device), ()), hold)
    nodes = tuple(_node_holding(n, holds, ended) for n in snapshot.nodes)
    return replace(snapshot, nodes=nodes, jobs=_jobs_running(snapshot, placements))


def _node_holding(
    node: NodeView,
    holds: Mapping[tuple[str, str], tuple[SlotHold, ...]],
    ended: set[tuple[str, int]],
) -> NodeView:
    devices = tuple(_device_holding(d, holds.get((node.id, d.id), ()), ended) for d in node.devices)
    return node if devices == node.devices else replace(node, devices=devices)


def _device_holding(
    device: DeviceView, holds: tuple[SlotHold, ...], ended: set[tuple[str, int]]
) -> DeviceView:
    """The device held by `holds`, and no longer by profile runs that were under way before."""
    others = tuple(
        h for h in device.held if h.purpose is Purpose.TRAINING or (h.job, h.copy) not in ended
    )
    held = (*others, *holds)
    return device if held == device.held else replace(device, held=held)


def _jobs_running(snapshot: Snapshot, placements: tuple[Placement, ...]) -> Jobs:
    """Columns with a new `running`; every other column is shared with the snapshot's."""
    columns = snapshot.jobs.columns
    running = list(columns.others["running"])
    for row, runs in enumerate(running):
        if any(r.purpose is Purpose.PROFILING for r in runs):
            running[row] = tuple(r for r in runs if r.purpose is not Purpose.PROFILING)
    since = {(job, run.copy): run.since_s for job, run in profile_runs(snapshot)}
    for placed in placements:
        row = snapshot.jobs.position[placed.job]
        since_s = since.get((placed.job, placed.copy), snapshot.now_s)
        new = Running(
            placed.copy,
            placed.ranks,
            since_s,
            placed.until_s,
            placed.steps_quota,
            Purpose.PROFILING,
        )
        running[row] = (*running[row], new)
    others = {**columns.others, "running": tuple(running)}
    return Jobs(JobColumns(columns.ids, columns.kinds, columns.numbers, columns.counts, others))
