"""Recheck of a plan's placements against the newest state.

The plan was made of a snapshot, and the cluster has gone on since. A placement that cannot be
launched any more is refused: *deferred* if a job that is being stopped is in the way, as the end of
its stop requests a new round; else *stale*.
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

MOST_LIVE_LAUNCHES = MOST_LAUNCHES // 2
"""Most live launches of a node: its agent also lists ended ones that it has not reported yet."""

AMOUNT_WORDS = {"memory_gb": "memory"}
"""Words in refusals for amounts, if other than their names."""

Objection: TypeAlias = tuple[RejectCode, str]
"""Reason against a launch: its code and its words."""


class FreeCapacity:
    """Nodes and devices of a cluster with the jobs that hold them; `take` records new launches.

    The planner's occupancy says what is held, with jobs as holders. Two things are known only
    here: the numbers of occupied slots, and which jobs are being stopped.
    """

    def __init__(
        self,
        live: LiveAssignments,
        node_views: Mapping[str, NodeView],
        now: datetime,
        placed_nodes: Collection[str],
    ) -> None:
        """Read nodes and devices from the database, and count what the live assignments hold.

        `node_views`: nodes of the snapshot by id, which tell their power by the GPUs in use.
        `placed_nodes`: ids of the nodes that the placements name.
        """
        self.cluster = live.cluster
        self.node_views = node_views
        self.now = now

        # 1. Nodes of the placements by id, and their devices by node id and device UUID.
        self.nodes: dict[str, Node] = {}
        for node in Node.objects.filter(cluster=live.cluster, pk__in=placed_nodes):
            self.nodes[str(node.pk)] = node
        self.devices: dict[tuple[str, str], Device] = {}
        for device in Device.objects.filter(node__in=list(self.nodes.values())):
            self.devices[str(device.node_id), device.uuid] = device

        # 2. Live assignments: teams by node, jobs that stop or are profiled, launches by node.
        self.teams = live.teams
        self.stopping_jobs: set[str] = set()
        self.profiled_jobs: set[str] = set()
        self.launches: Counter[str] = Counter()
        for assignment in live.assignments:
            job = str(assignment.job_id)
            if not is_placement(assignment):
                self.stopping_jobs.add(job)
            if assignment.purpose == Purpose.PROFILING:
                self.profiled_jobs.add(job)
            self.launches[str(assignment.node_id)] += 1

        # 3. Occupied slot numbers by the device's primary key, to give each launch a free one.
        self.occupied_slots: dict[int, set[int]] = {}
        for device_id, slots in live.of_device.items():
            self.occupied_slots[device_id] = {slot.slot for slot in slots}

        # 4. The occupancy: devices by occupied slots, amounts of nodes by assignments.
        self.occupancy: Occupancy[str] = Occupancy(
            {key: device.slots for key, device in self.devices.items()},
            {node_id: _capacity(node) for node_id, node in self.nodes.items()},
        )
        for slots in live.of_device.values():
            for slot in slots:
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
            if str(job.pk) in self.stopping_jobs:
                code = RejectCode.DEFERRED
            detail = f"the job is {job.state}, not {' or '.join(allowed_states)}"
            return Rejected(placement.key, code, detail)
        if placement.purpose is Purpose.TRAINING and placement.job in self.profiled_jobs:
            detail = "a profile run of the job has not ended yet"
            return Rejected(placement.key, RejectCode.DEFERRED, detail)
        if placement.purpose is Purpose.PROFILING and not job.repeatable:
            detail = "the job does not allow its command to run more than once"
            return Rejected(placement.key, RejectCode.STALE, detail)

        # 2. Its seats, their amounts together, and the power of the cluster.
        objections: list[Objection] = []
        for seat in placement.ranks:
            objections.extend(self._objections_to_seat(placement, seat, job))
        objections.extend(self._objections_to_amounts(placement, job))
        objections.extend(self._objections_to_power(placement))
        if not objections:
            return None

        # 3. The first stale one decides: waiting for a stop would not help.
        stale = [(code, detail) for code, detail in objections if code is RejectCode.STALE]
        code, detail = (stale or objections)[0]
        return Rejected(placement.key, code, detail)

    def take(self, assignment: Assignment, job: Job, devices: Sequence[tuple[Device, int]]) -> None:
        """Record a launch: its assignment holds these (device, slot number), and amounts."""
        for device, slot in devices:
            self.occupied_slots.setdefault(device.pk, set()).add(slot)
        node = str(assignment.node_id)
        uuids = tuple(device.uuid for device, _ in devices)
        seat = RankPlacement(node, uuids, assignment.share, assignment.cpu_quota, assignment.units)
        seats = [(seat, _demand(job, assignment))]
        self.occupancy.take(str(job.pk), str(job.pk), seats, alone=job.exclusive)
        self.launches[node] += 1

    def free_slot(self, device: Device) -> int | None:
        """Return the lowest free slot number of a device; None if it is full."""
        occupied = self.occupied_slots.get(device.pk, set())
        if len(occupied) >= device.slots:
            # A job may hold a number beyond the last slot, as the device had more of them before.
            return None
        return next(number for number in range(device.slots) if number not in occupied)

    def _objections_to_seat(
        self, placement: Placement, seat: RankPlacement, job: Job
    ) -> Iterator[Objection]:
        """Yield the objections to one seat: its node's state, the other jobs there, its devices."""
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
        yield from self._objections_to_other_jobs(node, job)
        yield from self._objections_to_devices(node, seat)

    def _objections_to_other_jobs(self, node: Node, job: Job) -> Iterator[Objection]:
        """Yield the objections to a node's other jobs: their teams, or their number.

        An exclusive job shares its node with no other one.
        """
        other_teams = self._teams_of(node) - {job.team_id}
        if node.serves_one_team and other_teams:
            yield RejectCode.STALE, f"node {node.name} serves another team, and isolates no jobs"
        others = self.occupancy.others_in_the_way(str(job.pk), str(node.pk), alone=job.exclusive)
        if others:
            code = self._code_of_holders(others)
            yield code, f"node {node.name} is still held by {_number_in_words(others)}"
        if self.launches[str(node.pk)] >= MOST_LIVE_LAUNCHES:
            detail = f"node {node.name} holds {MOST_LIVE_LAUNCHES} launches, its limit"
            yield self._code_of_shortage(), detail

    def _teams_of(self, node: Node) -> set[int]:
        """Return the teams with live jobs on a node, and the one that it is bound to."""
        teams = set(self.teams[node.pk])
        if node.team_id:
            teams.add(node.team_id)
        return teams

    def _objections_to_devices(self, node: Node, seat: RankPlacement) -> Iterator[Objection]:
        """Yield the objections to a seat's devices: missing, unhealthy, or held by other jobs."""
        name = f"a GPU of node {node.name}"
        usable = []
        for uuid in seat.devices:
            device = self.devices.get((str(node.pk), uuid))
            if device is None:
                yield RejectCode.STALE, f"{name} is gone"
            elif not device.healthy:
                yield RejectCode.STALE, f"{name} is unhealthy"
            else:
                usable.append(uuid)
        for key in self.occupancy.full_devices([replace(seat, devices=tuple(usable))]):
            others = set(self.occupancy.holders(key))
            code = self._code_of_holders(others)
            yield code, f"{name} is still held by {_number_in_words(others)}"

    def _objections_to_amounts(self, placement: Placement, job: Job) -> Iterator[Objection]:
        """Yield an objection for each amount of which a node has too little for all its seats."""
        seats = [(seat, _demand(job, seat)) for seat in placement.ranks if seat.node in self.nodes]
        for node_id, amount_name in self.occupancy.short_amounts(seats):
            node = self.nodes[node_id]
            words = AMOUNT_WORDS.get(amount_name, amount_name)
            yield self._code_of_shortage(), f"node {node.name} has not enough {words} free"

    def _objections_to_power(self, placement: Placement) -> Iterator[Objection]:
        """Yield an objection if the cluster would draw more than its cap with this launch."""
        cap_w = power_cap_now_w(self.cluster, self.now.timestamp())
        if cap_w is None:
            return

        # 1. GPUs in use by node. A node that works without a GPU draws power, too.
        gpus_in_use = Counter({node: self.occupancy.in_use[node] for node in self.launches})
        for seat in placement.ranks:
            added = 0
            for uuid in seat.devices:
                key = (seat.node, uuid)
                if key in self.devices and key not in self.occupancy.holds:
                    added += 1
            gpus_in_use[seat.node] += added  # names the node even if no GPU is added

        # 2. Their power.
        needed_w = power_w(self.node_views, gpus_in_use)
        if needed_w > cap_w * (1 + TOLERANCE):
            detail = f"the cluster would use {needed_w:g} W now, and its power cap is {cap_w:g} W"
            yield self._code_of_shortage(), detail

    def _code_of_holders(self, jobs: Collection[object]) -> RejectCode:
        """Return the code for what these jobs hold: deferred if one of them is being stopped."""
        return RejectCode.STALE if self.stopping_jobs.isdisjoint(jobs) else RejectCode.DEFERRED

    def _code_of_shortage(self) -> RejectCode:
        """Return the code for a shortage of the cluster or of a node, whoever causes it.

        Deferred if any job is being stopped, as its end may free what is missing.
        """
        return RejectCode.DEFERRED if self.stopping_jobs else RejectCode.STALE


def _capacity(node: Node) -> Mapping[str, int]:
    """Return a node's amounts for jobs, in billionths: without those reserved for the system."""
    amounts = {
        **node.resources,
        "cores": node.cores - node.reserved_cores,
        "memory_gb": node.memory_gb - node.reserved_memory_gb,
    }
    return {name: available(amount) for name, amount in amounts.items()}


def _demand(job: Job, seat: RankPlacement | Assignment) -> Mapping[str, int]:
    """Return the amounts that a job needs at one seat, in billionths."""
    return demand_of(job.cores, job.memory_gb, job.resources, seat.cpu_quota, seat.units)


def _number_in_words(others: Collection[object]) -> str:
    """Return how many other jobs there are, without names, which the reader may not see."""
    return "another job" if len(others) == 1 else f"{len(others)} other jobs"
