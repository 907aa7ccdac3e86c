"""Profile runs: measured beside production, before any policy decides.

`reserve_profiling` keeps the profile runs under way and places the requests of the snapshot on nodes that take profiling, on
several at once; the snapshot it returns shows their devices as held, so that no policy gives them away. `merge` adds the
placements to the policy's plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from policies.judge import TOLERANCE, power_w, profile_runs, rank_demand
from policies.plan import Placement, Plan
from policies.snapshot import (
    DeviceView,
    JobColumns,
    Jobs,
    NodeRole,
    NodeState,
    NodeView,
    ProfileRequest,
    Purpose,
    RankSeat,
    Running,
    SlotHold,
    Snapshot,
)


def reserve_profiling(snapshot: Snapshot) -> tuple[Snapshot, tuple[Placement, ...]]:
    """(the snapshot with the devices of all profile runs held, the placements of all profile runs).

    Requests are served in the order they were wanted, each on devices of one node that takes profiling, free ones first. Devices
    that training holds are taken at once on nodes for profiling alone; on nodes of both roles only for a request older than
    `round_s`, fewest first (the policy must then place those jobs anew), and on one such node at a time: while something is
    measured on one of them, the others keep theirs. A run under way goes on while its devices are healthy and have a slot for
    it, its node is not lost and the power cap allows it.
    """
    if not snapshot.profiling and not any(True for _ in profile_runs(snapshot)):
        return snapshot, ()
    desk = _Desk(snapshot)
    kept = tuple(p for p in map(_kept, profile_runs(snapshot)) if desk.keep(p))
    under_way = {(p.job, p.copy) for p in kept}
    wanted = sorted((r for r in snapshot.profiling if (r.job, r.copy) not in under_way), key=lambda r: (r.since_s, r.job, r.copy))
    placed = (desk.place(r) for r in wanted)
    placements = kept + tuple(p for p in placed if p is not None)
    return _holding(snapshot, placements), placements


def merge(plan: Plan, placements: Iterable[Placement]) -> Plan:
    """The plan with these profile placements beside its own; one that it has already (same job, purpose, copy) is not doubled."""
    placements = tuple(placements)
    if not placements:
        return plan
    known = {p.key for p in plan.placements}
    return replace(plan, placements=plan.placements + tuple(p for p in placements if p.key not in known))


def _kept(run: tuple[str, Running]) -> Placement:
    job, running = run
    return Placement(job, running.ranks, running.copy, Purpose.PROFILING, running.steps_quota, running.until_s)


@dataclass(slots=True)
class _Seat:
    """Devices of a node that a request could have, and how many of them training would lose."""

    node: NodeView
    devices: tuple[str, ...]
    taken_from_training: int


class _Desk:
    """What is left for profile runs while they are given out: devices, the nodes' resources, watts."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.taken: set[tuple[str, str]] = set()
        self.runs = {(job, run.copy) for job, run in profile_runs(snapshot)}
        self.used: Counter[str] = Counter()
        self.measuring: set[str] = set()
        self.left = {n.id: {"cores": n.cores, "memory_gb": n.memory_gb, **dict(n.resources)} for n in snapshot.nodes}

    def keep(self, placed: Placement) -> bool:
        """Let a profile run go on if it still can; take what it uses."""
        nodes = [self.snapshot.node_by_id.get(s.node) for s in placed.ranks]
        if not all(n is not None and self._goes_on(n) and self._has_labels(n, placed.job) for n in nodes):
            return False
        wanted = {(s.node, d) for s in placed.ranks for d in s.devices}
        usable = {(n.id, d.id) for n in nodes if n is not None for d in n.devices if d.healthy and self._has_slot(d)}
        return wanted <= usable and self._take(placed, wanted)

    def place(self, request: ProfileRequest) -> Placement | None:
        """The best seat for a request, or None: the fewest devices taken from training, then the fullest node."""
        seats = [s for n in self.snapshot.nodes if (s := self._seat(n, request)) is not None]
        for seat in sorted(seats, key=lambda s: (s.taken_from_training, len(s.node.devices), s.node.id)):
            rank = RankSeat(seat.node.id, seat.devices)
            placed = Placement(request.job, (rank,), request.copy, Purpose.PROFILING, steps_quota=request.steps)
            if self._take(placed, {(seat.node.id, d) for d in seat.devices}):
                return placed
        return None

    def _goes_on(self, node: NodeView) -> bool:
        drained = node.state is NodeState.DRAINING and node.drain_until_s is not None and node.drain_until_s <= self.snapshot.now_s
        return node.state is not NodeState.LOST and not drained

    def _has_labels(self, node: NodeView, job: str) -> bool:
        row = self.snapshot.jobs.position[job]
        return set(self.snapshot.jobs.columns.others["labels"][row]) <= set(node.labels)

    def _seat(self, node: NodeView, request: ProfileRequest) -> _Seat | None:
        if request.job not in self.snapshot.jobs.position or not node.takes_profiling or node.gpu_type != request.gpu_type:
            return None
        if not self._has_labels(node, request.job):
            return None
        free = [d for d in node.devices if d.healthy and (node.id, d.id) not in self.taken and not self._is_foreign(d)]
        idle, busy = [d.id for d in free if not self._is_held(d)], [d.id for d in free if self._is_held(d)]
        may_take = node.role is NodeRole.PROFILING or (self._is_old(request) and self.measuring <= {node.id})
        chosen = (idle + busy if may_take else idle)[: request.gpus]
        return _Seat(node, tuple(chosen), len(set(chosen) & set(busy))) if len(chosen) == request.gpus else None

    def _is_old(self, request: ProfileRequest) -> bool:
        return self.snapshot.now_s - request.since_s > self.snapshot.round_s

    def _is_held(self, device: DeviceView) -> bool:
        return any(h.purpose is Purpose.TRAINING for h in device.held)

    def _has_slot(self, device: DeviceView) -> bool:
        """Whether jobs that the snapshot does not know leave a slot of it."""
        return sum(h.job not in self.snapshot.jobs.position for h in device.held) < device.slots

    def _is_foreign(self, device: DeviceView) -> bool:
        """Held by what cannot be moved: a job that the snapshot does not know, or a profile run that no job lists any more."""
        known = self.snapshot.jobs.position
        return any(h.job not in known or (h.purpose is Purpose.PROFILING and (h.job, h.copy) not in self.runs) for h in device.held)

    def _take(self, placed: Placement, wanted: set[tuple[str, str]]) -> bool:
        row = self.snapshot.jobs.position[placed.job]
        demand = rank_demand(self.snapshot.jobs.columns, row, len(placed.ranks))
        used = self.used + Counter(node for node, _ in wanted)
        if self.taken & wanted or not self._has(placed, demand) or not self._has_watts(used):
            return False
        self.taken |= wanted
        self.used = used
        self.measuring |= {n for n, _ in wanted if self.snapshot.node_by_id[n].role is NodeRole.BOTH}
        for seat in placed.ranks:
            for name, amount in demand.items():
                self.left[seat.node][name] = self.left[seat.node].get(name, 0.0) - amount
        return True

    def _has(self, placed: Placement, demand: Mapping[str, float]) -> bool:
        times = Counter(s.node for s in placed.ranks)
        return all(
            amount * t <= self.left[n].get(name, 0.0) + TOLERANCE for n, t in times.items() for name, amount in demand.items()
        )

    def _has_watts(self, used: Counter[str]) -> bool:
        cap = self.snapshot.cap_w
        return cap is None or power_w(self.snapshot.node_by_id, used) <= cap + TOLERANCE


def _holding(snapshot: Snapshot, placements: tuple[Placement, ...]) -> Snapshot:
    """The snapshot as if exactly these profile runs were under way."""
    ended = {(job, run.copy) for job, run in profile_runs(snapshot)}
    holds: dict[tuple[str, str], SlotHold] = {}
    for placed in placements:
        for seat in placed.ranks:
            for device in seat.devices:
                holds[seat.node, device] = SlotHold(placed.job, placed.copy, Purpose.PROFILING, seat.share)
    nodes = tuple(_node_holding(n, holds, ended) for n in snapshot.nodes)
    return replace(snapshot, nodes=nodes, jobs=_jobs_running(snapshot, placements))


def _node_holding(node: NodeView, holds: Mapping[tuple[str, str], SlotHold], ended: set[tuple[str, int]]) -> NodeView:
    devices = tuple(_device_holding(d, holds.get((node.id, d.id)), ended) for d in node.devices)
    return node if devices == node.devices else replace(node, devices=devices)


def _device_holding(device: DeviceView, hold: SlotHold | None, ended: set[tuple[str, int]]) -> DeviceView:
    """The device held by `hold`, and no longer by profile runs that were under way before."""
    others = tuple(h for h in device.held if h.purpose is Purpose.TRAINING or (h.job, h.copy) not in ended)
    held = others if hold is None else (*others, hold)
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
        new = Running(placed.copy, placed.ranks, since_s, placed.until_s, placed.steps_quota, Purpose.PROFILING)
        running[row] = (*running[row], new)
    others = {**columns.others, "running": tuple(running)}
    return Jobs(JobColumns(columns.ids, columns.kinds, columns.numbers, columns.counts, others))
