"""Profile runs: measured beside production, before any policy decides.

`reserve_profiling` keeps current profile runs and places the snapshot's requests; the snapshot it
returns shows their devices as held. `merge` adds the placements to the policy's plan.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

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
    DeviceSet,
    Layout,
    Part,
    Request,
    allowed_mw,
    members,
)
from policies.placement.priced_options import JobRequests


def reserve_profiling(snapshot: Snapshot) -> tuple[Snapshot, tuple[Placement, ...]]:
    """Return the snapshot with the devices of all profile runs held, and their placements.

    Current runs go on if they may (`current_placements`). Then requests are placed, the oldest
    first, each on devices of one node that takes profile runs. Free devices are used before those
    of training jobs, which the policy must then place again. On a node for profiling alone such
    devices are taken at once. On a node of both roles they are taken only for a request older than
    `round_s`, as few as possible, and on one such node of the cluster at a time. Two requests that
    name each other get half of one device each, or neither is placed.
    """
    current = list(profile_runs(snapshot))
    if not snapshot.profiling and not current:
        return snapshot, ()
    reservation = _Reservation(snapshot)

    # 1. Current profile runs.
    placements = list(reservation.current_placements())

    # 2. Requests whose run is not among them.
    placed = {(placement.job, placement.copy) for placement in placements}
    open_requests = [r for r in snapshot.profiling if (r.job, r.copy) not in placed]
    open_requests.sort(key=lambda request: (request.since_s, request.job, request.copy))
    for group in _singles_and_pairs(open_requests):
        placements += reservation.place(group)
    return snapshot.without((), profile_runs=placements), tuple(placements)


def merge(plan: Plan, placements: Iterable[Placement]) -> Plan:
    """Return the plan with these profile placements added.

    Left out are those whose key (job, purpose, copy) the plan has, and those of jobs that the plan
    places, with the other half of a pair: a job's profile run never runs beside the job itself.
    """
    placements = tuple(placements)
    if not placements:
        return plan
    keys = {p.key for p in plan.placements}
    training = {p.job for p in plan.placements if p.purpose is TRAINING}
    # Both halves of a pair have the same ranks.
    dropped_ranks = {p.ranks for p in placements if p.job in training}
    added = [p for p in placements if p.key not in keys and p.ranks not in dropped_ranks]
    return replace(plan, placements=(*plan.placements, *added))


def _singles_and_pairs(
    requests: Sequence[ProfileRequest],
) -> Iterator[tuple[ProfileRequest, ...]]:
    """Yield each request alone, or with the one beside which it is to run, in order.

    A request whose partner is not among these is left out.
    """
    by_run = {(request.job, request.copy): request for request in requests}
    for request in requests:
        if not request.beside:
            yield (request,)
            continue
        partner = by_run.get((request.beside, request.beside_copy))
        if partner is None:
            continue
        # Both name each other: the pair is yielded once, at its lesser (job, copy).
        if (request.job, request.copy) < (partner.job, partner.copy):
            yield request, partner


class _Candidate(NamedTuple):
    """Devices of one node for a request or pair; the least candidate is tried first."""

    training_devices: int
    """Number of its devices that training jobs hold."""
    node_size: int
    node_id: str
    part: Part


class _Reservation:
    """Devices for profile runs on a cluster without its training jobs.

    Devices of jobs that the snapshot does not list stay held.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.nodes = snapshot.nodes
        self.row_of = snapshot.jobs.position
        self.labels = snapshot.jobs.columns.others["labels"]
        self.listed_runs = {(job, run.copy) for job, run in profile_runs(snapshot)}
        usable = [
            _device_set(node, lambda device: device.healthy and self._has_slot(device))
            for node in self.nodes
        ]
        layout = Layout(self.nodes, resources_of(snapshot), usable)
        cap_mw = inf if snapshot.cap_w is None else allowed_mw(snapshot.cap_w)
        self.state = ClusterState(layout, cap_mw)
        self.requests = JobRequests(snapshot.jobs.columns, layout)
        self.shared_role_nodes: set[str] = set()
        """Nodes of both roles with a profile run."""

    # ---- current runs

    def current_placements(self) -> Iterator[Placement]:
        """Yield the placements of the current runs that go on.

        A run goes on while its devices are healthy and have a slot, its nodes are present and the
        power cap allows it. Runs on the same devices are a pair, which is taken together; if both
        do not fit, the first goes on alone if it can.
        """
        by_devices: dict[tuple[tuple[str, tuple[str, ...]], ...], list[tuple[str, Running]]] = {}
        for job, run in profile_runs(self.snapshot):
            if self._nodes_suit(job, run):
                devices = tuple((rank.node, rank.devices) for rank in run.ranks)
                by_devices.setdefault(devices, []).append((job, run))
        for runs in by_devices.values():
            while runs and not self._try_take_runs(runs):
                runs.pop()
            for job, run in runs:
                yield Placement(job, run.ranks, run.copy, PROFILING, run.steps_quota, run.until_s)

    def _nodes_suit(self, job: str, run: Running) -> bool:
        """Return True if a run's nodes are present, have its labels, and may be in use now."""
        labels = set(self.labels[self.row_of[job]])
        for rank in run.ranks:
            node = self.snapshot.node_by_id.get(rank.node)
            if node is None or node.state is NodeState.LOST or not labels <= set(node.labels):
                return False
            empty_by_s = self.snapshot.drains.get(node.id)
            if empty_by_s is not None and empty_by_s <= self.snapshot.now_s:
                return False
        return True

    def _try_take_runs(self, runs: Sequence[tuple[str, Running]]) -> bool:
        """Take the devices of one run, or of two on the same devices; return if they were free."""
        rows = [self.row_of[job] for job, _ in runs]
        _, first_run = runs[0]
        allocation = self.requests.allocation_of(rows[0], first_run)
        if allocation is None:
            return False
        if len(runs) > 1:
            gpus = allocation.parts[0].devices.bit_count()
            allocation = Allocation(self._request_of(rows, gpus), allocation.parts)
        return self._try_take(allocation)

    # ---- requests

    def place(self, group: Sequence[ProfileRequest]) -> list[Placement]:
        """Place one request or a pair where training loses fewest GPUs, then on the smallest node.

        Return [] if no node can take it.
        """
        if any(request.job not in self.row_of for request in group):
            return []
        rows = [self.row_of[request.job] for request in group]
        engine_request = self._request_of(rows, group[0].gpus)
        for candidate in self._candidates(group):
            part = candidate.part
            if self._try_take(Allocation(engine_request, (part,))):
                devices = self.state.layout.ids(part.node, part.devices)
                rank = RankPlacement(candidate.node_id, devices, share=1.0 / len(group))
                return [
                    Placement(request.job, (rank,), request.copy, PROFILING, request.steps)
                    for request in group
                ]
        return []

    def _candidates(self, group: Sequence[ProfileRequest]) -> list[_Candidate]:
        """Return the nodes that could take a request or pair, the best first."""
        candidates = []
        for number in range(len(self.nodes)):
            candidate = self._candidate_on(number, group)
            if candidate is not None:
                candidates.append(candidate)
        return sorted(candidates)

    def _candidate_on(self, number: int, group: Sequence[ProfileRequest]) -> _Candidate | None:
        """Return the devices of a node, by its number, that a request or pair could have."""
        node = self.nodes[number]
        first = group[0]

        # 1. The node takes profile runs, and has the type and labels.
        if not node.takes_profiling:
            return None
        for request in group:
            needed_labels = set(self.labels[self.row_of[request.job]])
            if request.gpu_type != node.gpu_type or not needed_labels <= set(node.labels):
                return None

        # 2. Usable: devices without a profile run, with a slot for each request.
        usable = self.state.idle[number] & _device_set(
            node,
            lambda device: device.slots >= len(group) and not self._has_unlisted_holder(device),
        )
        training = usable & _device_set(
            node, lambda device: any(hold.purpose is TRAINING for hold in device.held)
        )

        # 3. Free devices first; those of training jobs only where the node's role allows it.
        is_old = self.snapshot.now_s - first.since_s > self.snapshot.round_s
        is_only_shared_node = self.shared_role_nodes <= {node.id}
        chosen = list(members(usable & ~training))
        if node.role is NodeRole.PROFILING or (is_old and is_only_shared_node):
            chosen += members(training)
        if len(chosen) < first.gpus:
            return None

        devices: DeviceSet = 0
        for device_number in chosen[: first.gpus]:
            devices |= 1 << device_number
        training_devices = (devices & training).bit_count()
        part = Part(node=number, units=1, devices=devices)
        return _Candidate(training_devices, len(node.devices), node.id, part)

    # ---- both

    def _request_of(self, rows: Sequence[int], gpus: int) -> Request:
        """Return what a job, or two jobs on the same devices, need on one node."""
        if len(rows) == 1:
            return self.requests.on_one_node(rows[0], gpus)
        return self.requests.together(rows, gpus)

    def _try_take(self, allocation: Allocation) -> bool:
        """Take an allocation if it is free and the power cap allows it; return if it was taken."""
        if not self.state.try_take(allocation):
            return False
        for part in allocation.parts:
            node = self.nodes[part.node]
            if node.role is NodeRole.BOTH:
                self.shared_role_nodes.add(node.id)
        return True

    def _has_slot(self, device: DeviceView) -> bool:
        """Return True if jobs that the snapshot does not list leave a slot of a device."""
        unlisted = [hold for hold in device.held if hold.job not in self.row_of]
        return len(unlisted) < device.slots

    def _has_unlisted_holder(self, device: DeviceView) -> bool:
        """Return True if a job or profile run holds a device that the snapshot does not list."""
        for hold in device.held:
            if hold.job not in self.row_of:
                return True
            if hold.purpose is PROFILING and (hold.job, hold.copy) not in self.listed_runs:
                return True
        return False


def _device_set(node: NodeView, suits: Callable[[DeviceView], bool]) -> DeviceSet:
    """Return the devices of a node for which `suits` is true."""
    devices: DeviceSet = 0
    for number, device in enumerate(node.devices):
        if suits(device):
            devices |= 1 << number
    return devices
