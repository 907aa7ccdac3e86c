"""Recheck of a plan's placements against the newest state, jobs that are being stopped included.

A refusal is *deferred* if a stopping job is in the way: the end of its stop requests a new round.
It is *stale* if the state has changed since the snapshot.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeAlias

from clusters.models import Device, Node
from clusters.models.nodes import Role, State
from clusters.tariffs import power_cap_now_w
from controlplane.execution import gangs
from controlplane.loop.live.live_assignments import LiveAssignments, demand_of, is_placement
from controlplane.loop.live.rows import is_ready
from controlplane.loop.rounds import RejectCode, Rejected
from jobs.lifecycle import JobState
from jobs.models import Assignment, Job
from loadmaster.protocol import MOST_LAUNCHES
from policies.contract.plan import Placement, available
from policies.contract.snapshot import NodeView, Purpose, RankPlacement
from policies.contract.validation import TOLERANCE, power_w
from policies.placement.occupancy import Occupancy

LAUNCHABLE = {
    Purpose.TRAINING: (JobState.QUEUED,),
    Purpose.PROFILING: (JobState.PROFILING, JobState.QUEUED),
}
"""States of a job that allow a launch of a purpose: never a second one beside its real run."""

FOREIGN_ROLE = {Purpose.TRAINING: Role.PROFILING, Purpose.PROFILING: Role.PRODUCTION}
"""Role of the nodes that take no launches of a purpose."""

MOST_HELD = MOST_LAUNCHES // 2
"""Most live launches of a node: its agent also lists ended ones that it has not reported yet."""

AMOUNT_WORDS = {"memory_gb": "memory"}
"""Words of a refusal for amounts whose name is not one."""

Objection: TypeAlias = tuple[RejectCode, str]
"""One reason against a launch: its code and its words."""


class FreeCapacity:
    """Nodes and devices of a cluster with their holders; `take` records new launches.

    The occupancy is the planner's. Two things are known only here: the numbers of the slots, and
    which holders are being stopped.
    """

    def __init__(
        self,
        live: LiveAssignments,
        curves: Mapping[str, NodeView],
        now: datetime,
        nodes: Collection[str],
    ) -> None:
        """`curves`: snapshot nodes by id, for power. `nodes`: ids that accept launches."""
        self.cluster = live.cluster
        self.curves = curves
        self.now = now
        self.nodes: dict[str, Node] = {}
        for node in Node.objects.filter(cluster=live.cluster, pk__in=nodes):
            self.nodes[str(node.pk)] = node
        self.devices: dict[tuple[str, str], Device] = {}
        """By node id and device UUID."""
        for device in Device.objects.filter(node__in=list(self.nodes.values())):
            self.devices[str(device.node_id), device.uuid] = device
        self.teams = live.teams

        # 1. Live assignments: jobs that stop or are profiled, and the number of launches by node.
        self.stopping: set[str] = set()
        self.profiled: set[str] = set()
        self.launches: Counter[str] = Counter()
        for assignment in live.assignments:
            job = str(assignment.job_id)
            if not is_placement(assignment):
                self.stopping.add(job)
            if assignment.purpose == Purpose.PROFILING:
                self.profiled.add(job)
            self.launches[str(assignment.node_id)] += 1

        # 2. Occupied slot numbers by device key, to give each launch a free one.
        self.slots: dict[int, set[int]] = {}
        for device_id, occupied in live.of_device.items():
            self.slots[device_id] = {slot.slot for slot in occupied}

        # 3. The occupancy: devices by occupied slots, amounts of nodes by assignments.
        self.occupancy: Occupancy[str] = Occupancy(
            {key: device.slots for key, device in self.devices.items()},
            {node_id: _capacity(node) for node_id, node in self.nodes.items()},
        )
        for occupied in live.of_device.values():
            for slot in occupied:
                seat = RankPlacement(str(slot.node_id), (slot.device_uuid,), slot.share)
                job = str(slot.job_id)
                self.occupancy.take(job, job, [(seat, {})], alone=False)
        # Assignments come last: they say which jobs are to be alone on their nodes.
        for assignment in live.assignments:
            seat = RankPlacement(str(assignment.node_id), ())
            job = str(assignment.job_id)
            amounts = assignment.demand
            self.occupancy.take(job, job, [(seat, amounts)], alone=assignment.exclusive)

    def refusal(self, placement: Placement, job: Job) -> Rejected | None:
        """Return the refusal of a placement of `job`, as it is now; None if it can be launched."""
        # 1. The job's own state.
        allowed_states = LAUNCHABLE[placement.purpose]
        if job.state not in allowed_states:
            code = RejectCode.STALE
            if str(job.pk) in self.stopping:
                code = RejectCode.DEFERRED
            detail = f"the job is {job.state}, not {' or '.join(allowed_states)}"
            return Rejected(placement.key, code, detail)
        if placement.purpose is Purpose.TRAINING and placement.job in self.profiled:
            detail = "a profile run of the job has not ended yet"
            return Rejected(placement.key, RejectCode.DEFERRED, detail)
        if placement.purpose is Purpose.PROFILING and not job.repeatable:
            detail = "the job does not allow its command to run more than once"
            return Rejected(placement.key, RejectCode.STALE, detail)

        # 2. Its seats, their amounts together, and the power of the cluster.
        objections: list[Objection] = []
        for seat in placement.ranks:
            objections.extend(self._seat(placement, seat, job))
        objections.extend(self._resources(placement, job))
        objections.extend(self._power(placement))
        if not objections:
            return None

        # 3. The first stale one decides: waiting for a stop would not help.
        stale = [(code, detail) for code, detail in objections if code is RejectCode.STALE]
        code, detail = (stale or objections)[0]
        return Rejected(placement.key, code, detail)

    def take(self, assignment: Assignment, job: Job, devices: Sequence[tuple[Device, int]]) -> None:
        """Record that a launched assignment holds these (device, slot)."""
        for device, slot in devices:
            self.slots.setdefault(device.pk, set()).add(slot)
        node = str(assignment.node_id)
        uuids = tuple(device.uuid for device, _ in devices)
        seat = RankPlacement(node, uuids, assignment.share, assignment.cpu_quota, assignment.units)
        seats = [(seat, _demand(job, assignment))]
        self.occupancy.take(str(job.pk), str(job.pk), seats, alone=job.exclusive)
        self.launches[node] += 1

    def free_slot(self, device: Device) -> int | None:
        """Return the lowest free slot number of a device; None if it is full."""
        occupied = self.slots.get(device.pk, set())
        if len(occupied) >= device.slots:
            # A job may hold a number beyond the last slot, as the device had more of them before.
            return None
        return next(number for number in range(device.slots) if number not in occupied)

    def _seat(self, placement: Placement, seat: RankPlacement, job: Job) -> Iterator[Objection]:
        """Objections to one seat: its node's state, the other jobs there, its devices."""
        node = self.nodes.get(seat.node)
        if node is None:
            yield RejectCode.STALE, "its node is gone"
            return
        if node.state != State.READY or node.role == FOREIGN_ROLE[placement.purpose]:
            yield RejectCode.STALE, f"node {node.name} is {node.state} and for {node.role}"
        elif not is_ready(node):
            yield RejectCode.STALE, f"the agent of node {node.name} is silent"
        if len(placement.ranks) > 1 and not job.batch:
            no_gang = gangs.why_no_gang(node)
            if no_gang:
                yield RejectCode.STALE, no_gang
        yield from self._company(node, job)
        yield from self._device(node, seat)

    def _company(self, node: Node, job: Job) -> Iterator[Objection]:
        """Objections to the other jobs of a node: their team, their wish to be alone, number."""
        if node.serves_one_team and self._teams_of(node) - {job.team_id}:
            yield RejectCode.STALE, f"node {node.name} serves another team, and isolates no jobs"
        others = self.occupancy.others_in_the_way(str(job.pk), str(node.pk), alone=job.exclusive)
        if others:
            code = self._code_of_holders(others)
            yield code, f"node {node.name} is still held by {_jobs(others)}"
        if self.launches[str(node.pk)] >= MOST_HELD:
            yield self._in_the_way(), f"node {node.name} holds {MOST_HELD} launches, its limit"

    def _teams_of(self, node: Node) -> set[int]:
        """Teams with live jobs on a node, and the one that it is bound to."""
        teams = set(self.teams[node.pk])
        if node.team_id:
            teams.add(node.team_id)
        return teams

    def _device(self, node: Node, seat: RankPlacement) -> Iterator[Objection]:
        """Objections to the devices of a seat: missing, unhealthy, or held by other jobs."""
        name = f"a GPU of node {node.name}"
        usable = []
        for uuid in seat.devices:
            device = self.devices.get((str(node.pk), uuid))
            if device is None or not device.healthy:
                fault = "gone" if device is None else "unhealthy"
                yield RejectCode.STALE, f"{name} is {fault}"
            else:
                usable.append(uuid)
        for key in self.occupancy.full_devices([replace(seat, devices=tuple(usable))]):
            holders = set(self.occupancy.holders(key))
            code = self._code_of_holders(holders)
            yield code, f"{name} is still held by {_jobs(holders)}"

    def _resources(self, placement: Placement, job: Job) -> Iterator[Objection]:
        """Objections to nodes with too few cores, memory or other resources for all their seats."""
        seats = [(seat, _demand(job, seat)) for seat in placement.ranks if seat.node in self.nodes]
        for node_id, amount_name in self.occupancy.short_amounts(seats):
            node = self.nodes[node_id]
            words = AMOUNT_WORDS.get(amount_name, amount_name)
            yield self._in_the_way(), f"node {node.name} has not enough {words} free"

    def _power(self, placement: Placement) -> Iterator[Objection]:
        """Objection if the cluster with this launch would draw more than its power cap."""
        cap_w = power_cap_now_w(self.cluster, self.now.timestamp())
        if cap_w is None:
            return
        # A node that works without a GPU draws power, too.
        gpus_in_use = Counter({node: self.occupancy.in_use[node] for node in self.launches})
        for seat in placement.ranks:
            added = 0
            for uuid in seat.devices:
                key = (seat.node, uuid)
                if key in self.devices and key not in self.occupancy.holds:
                    added += 1
            gpus_in_use[seat.node] += added  # names the node even if no GPU is added
        needed_w = power_w(self.curves, gpus_in_use)
        if needed_w <= cap_w * (1 + TOLERANCE):
            return
        detail = f"the cluster would use {needed_w:g} W now, and its power cap is {cap_w:g} W"
        yield self._in_the_way(), detail

    def _code_of_holders(self, holders: Collection[object]) -> RejectCode:
        """Deferred if one of these holders is being stopped, else stale."""
        return RejectCode.STALE if self.stopping.isdisjoint(holders) else RejectCode.DEFERRED

    def _in_the_way(self) -> RejectCode:
        """Deferred if any job is being stopped, as its end may free what is missing; else stale."""
        return RejectCode.DEFERRED if self.stopping else RejectCode.STALE


def _capacity(node: Node) -> Mapping[str, int]:
    """Amounts of a node for jobs, in billionths: without those reserved for the system."""
    amounts = {
        **node.resources,
        "cores": node.cores - node.reserved_cores,
        "memory_gb": node.memory_gb - node.reserved_memory_gb,
    }
    return {name: available(amount) for name, amount in amounts.items()}


def _demand(job: Job, seat: RankPlacement | Assignment) -> Mapping[str, int]:
    """Amounts that a job needs at one seat, in billionths."""
    return demand_of(job.cores, job.memory_gb, job.resources, seat.cpu_quota, seat.units)


def _jobs(holders: Collection[object]) -> str:
    """Return the number of other jobs in words, without their names, which a reader may not see."""
    return "another job" if len(holders) == 1 else f"{len(holders)} other jobs"
