"""Profile runs: measured beside production, before any policy decides.

`reserve_profiling` keeps current profile runs and places the snapshot's requests; the snapshot it
returns shows their devices as held. `merge` adds the placements to the policy's plan.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf

from policies.contract.plan import Placement, Plan
from policies.contract.snapshot import (
    PROFILING,
    TRAINING,
    DeviceView,
    NodeRole,
    NodeState,
    NodeView,
    ProfileRequest,
    RankPlacement,
    Running,
    Snapshot,
    profile_runs,
)
from policies.placement.cluster_state import ClusterState
from policies.placement.from_snapshot import resources_of
from policies.placement.layout import (
    Allocation,
    Layout,
    Part,
    Request,
    allowed_mw,
    members,
)
from policies.placement.priced_options import JobRequests


def reserve_profiling(snapshot: Snapshot) -> tuple[Snapshot, tuple[Placement, ...]]:
    """Return the snapshot with all profile runs' devices held, and the profile runs' placements.

    Requests are served in order, each on devices of one node that takes profiling, free ones first.
    Devices of training are taken at once on nodes for profiling alone; on nodes of both roles only
    for a request older than `round_s`, fewest first (the policy must then place those jobs again),
    and on one such node at a time. A current run goes on while its devices are healthy and have a
    slot, its node is not lost and the power cap allows it. Two requests that name each other are
    served together or not at all: half of one device each.
    """
    if not snapshot.profiling and not any(True for _ in profile_runs(snapshot)):
        return snapshot, ()
    runs = _ProfileRuns(snapshot)
    placements = list(runs.kept())
    under_way = {(p.job, p.copy) for p in placements}
    wanted = sorted(
        (r for r in snapshot.profiling if (r.job, r.copy) not in under_way),
        key=lambda r: (r.since_s, r.job, r.copy),
    )
    for together in _together(wanted):
        placements += runs.place(together)
    return snapshot.without((), profile_runs=placements), tuple(placements)


def merge(plan: Plan, placements: Iterable[Placement]) -> Plan:
    """Plan with these profile placements; duplicates (job, purpose, copy) are dropped.

    So are those of jobs that the plan places, with the other half of a pair: a job's command never
    runs beside its real run.
    """
    placements = tuple(placements)
    if not placements:
        return plan
    known = {p.key for p in plan.placements}
    placed = {p.job for p in plan.placements if p.purpose is TRAINING}
    dropped = {p.ranks for p in placements if p.job in placed}
    added = tuple(p for p in placements if p.key not in known and p.ranks not in dropped)
    return replace(plan, placements=plan.placements + added)


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


class _ProfileRuns:
    """Profile runs on a state without training and without jobs unknown to the snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot, self.nodes = snapshot, snapshot.nodes
        self.position, self.labels = snapshot.jobs.position, snapshot.jobs.columns.others["labels"]
        self.under_way = {(job, run.copy) for job, run in profile_runs(snapshot)}
        present = [_devices(n, lambda d: d.healthy and self._has_slot(d)) for n in self.nodes]
        layout = Layout(self.nodes, resources_of(snapshot), present)
        cap_mw = inf if snapshot.cap_w is None else allowed_mw(snapshot.cap_w)
        self.state = ClusterState(layout, cap_mw)
        self.requests = JobRequests(snapshot.jobs.columns, layout)
        self.measuring: set[str] = set()

    def kept(self) -> Iterator[Placement]:
        """Yield the current runs that go on; two on one device take it together."""
        on: dict[tuple[tuple[str, tuple[str, ...]], ...], list[tuple[str, Running]]] = {}
        for job, run in profile_runs(self.snapshot):
            if self._may_go_on(job, run):
                on.setdefault(tuple((r.node, r.devices) for r in run.ranks), []).append((job, run))
        for runs in on.values():
            while runs and not self._keep(runs):
                runs.pop()
            for job, run in runs:
                yield Placement(job, run.ranks, run.copy, PROFILING, run.steps_quota, run.until_s)

    def place(self, together: Sequence[ProfileRequest]) -> list[Placement]:
        """Place a request or pair where training loses least, then on the smallest node."""
        found = []
        if all(r.job in self.position for r in together):
            found = [of for n in range(len(self.nodes)) if (of := self._on(n, together))]
        for _, part in sorted(found, key=lambda of: of[0]):
            node, rows = self.nodes[part.node], [self.position[r.job] for r in together]
            if self._take(Allocation(self._request(rows, together[0].gpus), (part,))):
                devices = self.state.layout.ids(part.node, part.devices)
                rank = RankPlacement(node.id, devices, 1.0 / len(together))
                return [
                    Placement(r.job, (rank,), r.copy, PROFILING, steps_quota=r.steps)
                    for r in together
                ]
        return []

    def _request(self, rows: Sequence[int], gpus: int) -> Request:
        if len(rows) == 1:
            return self.requests.on_one_node(rows[0], gpus)
        return self.requests.together(rows, gpus)

    def _on(
        self, n: int, together: Sequence[ProfileRequest]
    ) -> tuple[tuple[int, int, str], Part] | None:
        """Return the devices of a node that a request or pair could have, and their order."""
        node, first = self.nodes[n], together[0]
        wanted = {label for r in together for label in self.labels[self.position[r.job]]}
        if any(r.gpu_type != node.gpu_type for r in together) or not wanted <= set(node.labels):
            return None
        usable = self.state.idle[n] & _devices(
            node, lambda d: d.slots >= len(together) and not self._is_foreign(d)
        )
        is_old = self.snapshot.now_s - first.since_s > self.snapshot.round_s
        busy = usable & _devices(node, lambda d: any(h.purpose is TRAINING for h in d.held))
        may_take = node.role is NodeRole.PROFILING or (is_old and self.measuring <= {node.id})
        found = [*members(usable & ~busy), *members(busy if may_take else 0)][: first.gpus]
        if not node.takes_profiling or len(found) < first.gpus:
            return None
        part = Part(n, 1, sum(1 << i for i in found))
        return ((part.devices & busy).bit_count(), len(node.devices), node.id), part

    def _keep(self, runs: Sequence[tuple[str, Running]]) -> bool:
        rows = [self.position[job] for job, _ in runs]
        allocation = self.requests.allocation_of(rows[0], runs[0][1])
        if allocation is not None and len(runs) > 1:
            gpus = allocation.parts[0].devices.bit_count()
            allocation = Allocation(self._request(rows, gpus), allocation.parts)
        return allocation is not None and self._take(allocation)

    def _take(self, allocation: Allocation) -> bool:
        if not self.state.try_take(allocation):
            return False
        nodes = [self.nodes[part.node] for part in allocation.parts]
        self.measuring |= {node.id for node in nodes if node.role is NodeRole.BOTH}
        return True

    def _may_go_on(self, job: str, run: Running) -> bool:
        """Return True if a run's nodes are present, need not be empty by now, and suit its job."""
        labels = set(self.labels[self.position[job]])
        for rank in run.ranks:
            node = self.snapshot.node_by_id.get(rank.node)
            if node is None or node.state is NodeState.LOST or not labels <= set(node.labels):
                return False
            ends_s = node.drain_until_s if node.state is NodeState.DRAINING else None
            if ends_s is not None and ends_s <= self.snapshot.now_s:
                return False
        return True

    def _has_slot(self, device: DeviceView) -> bool:
        """Return True if jobs that the snapshot does not know leave a slot of a device."""
        return sum(h.job not in self.position for h in device.held) < device.slots

    def _is_foreign(self, device: DeviceView) -> bool:
        """Return True if an unknown job holds a device, or a profile run that no job lists."""
        return any(
            h.job not in self.position
            or (h.purpose is PROFILING and (h.job, h.copy) not in self.under_way)
            for h in device.held
        )


def _devices(node: NodeView, suits: Callable[[DeviceView], bool]) -> int:
    return sum(1 << i for i, device in enumerate(node.devices) if suits(device))
