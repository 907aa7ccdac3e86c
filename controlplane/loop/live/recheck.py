"""Recheck of a plan's placements against the newest state, current stops included.

A refusal is *deferred* if a current stop is in the way, whose end requests a new round; *stale* if
the state has changed since the snapshot.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

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
"""States of a job that allow a launch: never beside its real run."""

FOREIGN_ROLE = {Purpose.TRAINING: Role.PROFILING, Purpose.PROFILING: Role.PRODUCTION}


MOST_HELD = MOST_LAUNCHES // 2
"""Launches that a node may hold: its agent also lists those whose end it has not told yet."""

NAMES = {"memory_gb": "memory"}
"""Amounts in words, where these differ from their names."""


def _capacity(node: Node) -> Mapping[str, int]:
    """Amounts of a node without what is kept for the system, in billionths."""
    amounts = {
        **node.resources,
        "cores": node.cores - node.reserved_cores,
        "memory_gb": node.memory_gb - node.reserved_memory_gb,
    }
    return {name: available(amount) for name, amount in amounts.items()}


def _demand(job: Job, seat: RankPlacement | Assignment) -> Mapping[str, int]:
    return demand_of(job.cores, job.memory_gb, job.resources, seat.cpu_quota, seat.units)


class FreeCapacity:
    """Nodes and devices of the cluster with their holders; `take` records new launches.

    Here slots are numbered, and a refusal names its cause and whether a stop ends it.
    """

    def __init__(
        self,
        held: LiveAssignments,
        curves: Mapping[str, NodeView],
        now: datetime,
        nodes: Collection[str],
    ) -> None:
        """`curves`: snapshot nodes by id, for power. `nodes`: ids that accept launches."""
        self.cluster, self.curves, self.now = held.cluster, curves, now
        self.nodes: Mapping[str, Node] = {
            str(n.pk): n for n in Node.objects.filter(cluster=held.cluster, pk__in=nodes)
        }
        devices = Device.objects.filter(node__in=list(self.nodes.values()))
        self.devices: Mapping[tuple[str, str], Device] = {
            (str(d.node_id), d.uuid): d for d in devices
        }
        self.stopping = {str(a.job_id) for a in held.assignments if not is_placement(a)}
        profiled = (a for a in held.assignments if a.purpose == Purpose.PROFILING)
        self.profiled = {str(a.job_id) for a in profiled}
        # Slots have numbers in the database; all else is what the planner knows, too.
        self.slots = {pk: {s.slot for s in slots} for pk, slots in held.of_device.items()}
        self.occupancy: Occupancy[str] = Occupancy(
            {key: device.slots for key, device in self.devices.items()},
            {pk: _capacity(node) for pk, node in self.nodes.items()},
        )
        for slots in held.of_device.values():
            for slot in slots:
                seat = RankPlacement(str(slot.node_id), (slot.device_uuid,), slot.share)
                job = str(slot.job_id)
                self.occupancy.take(job, job, [(seat, {})], alone=False)
        for a in held.assignments:
            seat = RankPlacement(str(a.node_id), ())
            job = str(a.job_id)
            self.occupancy.take(job, job, [(seat, a.demand)], alone=a.exclusive)
        self.launches = Counter(str(a.node_id) for a in held.assignments)
        self.teams = held.teams

    def refusal(self, placement: Placement, job: Job) -> Rejected | None:
        """Refusal of this placement of `job` (as it is now); None if it can be launched."""
        wanted = LAUNCHABLE[placement.purpose]
        if job.state not in wanted:
            code = RejectCode.DEFERRED if str(job.pk) in self.stopping else RejectCode.STALE
            detail = f"the job is {job.state}, not {' or '.join(wanted)}"
            return Rejected(placement.key, code, detail)
        if placement.purpose is Purpose.TRAINING and placement.job in self.profiled:
            detail = "a profile run of the job has not ended yet"
            return Rejected(placement.key, RejectCode.DEFERRED, detail)
        if placement.purpose is Purpose.PROFILING and not job.repeatable:
            detail = "the job does not allow its command to run more than once"
            return Rejected(placement.key, RejectCode.STALE, detail)
        reasons = [r for seat in placement.ranks for r in self._seat(placement, seat, job)]
        reasons += [*self._resources(placement, job), *self._power(placement)]
        stale = [reason for reason in reasons if reason[0] is RejectCode.STALE]
        return Rejected(placement.key, *(stale or reasons)[0]) if reasons else None

    def take(self, assignment: Assignment, job: Job, devices: Sequence[tuple[Device, int]]) -> None:
        """Record that a launched assignment holds these (device, slot)."""
        for device, slot in devices:
            self.slots.setdefault(device.pk, set()).add(slot)
        node, held = str(assignment.node_id), tuple(device.uuid for device, _ in devices)
        seat = RankPlacement(node, held, assignment.share, assignment.cpu_quota, assignment.units)
        seats = [(seat, _demand(job, assignment))]
        self.occupancy.take(str(job.pk), str(job.pk), seats, alone=job.exclusive)
        self.launches[node] += 1

    def free_slot(self, device: Device) -> int | None:
        held = self.slots.get(device.pk, set())
        if len(held) >= device.slots:  # perhaps by a job left in a higher slot
            return None
        return next(s for s in range(device.slots) if s not in held)

    def _seat(
        self, placement: Placement, seat: RankPlacement, job: Job
    ) -> Iterator[tuple[RejectCode, str]]:
        node = self.nodes.get(seat.node)
        if node is None:
            yield RejectCode.STALE, "its node is gone"
            return
        if node.state != State.READY or node.role == FOREIGN_ROLE[placement.purpose]:
            yield RejectCode.STALE, f"node {node.name} is {node.state} and for {node.role}"
        elif not is_ready(node):
            yield RejectCode.STALE, f"the agent of node {node.name} is silent"
        if len(placement.ranks) > 1 and not job.batch and (why := gangs.why_no_gang(node)):
            yield RejectCode.STALE, why
        yield from self._company(node, job)
        yield from self._device(node, seat)

    def _company(self, node: Node, job: Job) -> Iterator[tuple[RejectCode, str]]:
        others = self.occupancy.others_in_the_way(str(job.pk), str(node.pk), alone=job.exclusive)
        if node.serves_one_team and self._teams_of(node) - {job.team_id}:
            yield RejectCode.STALE, f"node {node.name} serves another team, and isolates no jobs"
        if others:
            code = RejectCode.DEFERRED if others & self.stopping else RejectCode.STALE
            yield code, f"node {node.name} is still held by {_jobs(others)}"
        if self.launches[str(node.pk)] >= MOST_HELD:
            yield self._in_the_way(), f"node {node.name} holds {MOST_HELD} launches, its limit"

    def _teams_of(self, node: Node) -> set[int]:
        return self.teams[node.pk] | ({node.team_id} if node.team_id else set())

    def _resources(self, placement: Placement, job: Job) -> Iterator[tuple[RejectCode, str]]:
        seats = [(seat, _demand(job, seat)) for seat in placement.ranks if seat.node in self.nodes]
        for pk, name in self.occupancy.short_amounts(seats):
            what = NAMES.get(name, name)
            yield self._in_the_way(), f"node {self.nodes[pk].name} has not enough {what} free"

    def _device(self, node: Node, seat: RankPlacement) -> Iterator[tuple[RejectCode, str]]:
        name = f"a GPU of node {node.name}"
        there = []
        for uuid in seat.devices:
            device = self.devices.get((str(node.pk), uuid))
            if device is None or not device.healthy:
                words = "gone" if device is None else "unhealthy"
                yield RejectCode.STALE, f"{name} is {words}"
            else:
                there.append(uuid)
        for key in self.occupancy.full_devices([replace(seat, devices=tuple(there))]):
            holders = set(self.occupancy.holders(key))
            code = RejectCode.DEFERRED if holders & self.stopping else RejectCode.STALE
            yield code, f"{name} is still held by {_jobs(holders)}"

    def _power(self, placement: Placement) -> list[tuple[RejectCode, str]]:
        cap = power_cap_now_w(self.cluster, self.now.timestamp())
        if cap is None:
            return []
        # A node that works without a GPU draws power, too.
        used = Counter({node: self.occupancy.in_use[node] for node in self.launches})
        for seat in placement.ranks:
            keys = [(seat.node, uuid) for uuid in seat.devices]
            free = [key for key in keys if key in self.devices and key not in self.occupancy.holds]
            used[seat.node] += len(free)
        needed = power_w(self.curves, used)
        if needed <= cap * (1 + TOLERANCE):
            return []
        detail = f"the cluster would use {needed:g} W now, and its power cap is {cap:g} W"
        return [(self._in_the_way(), detail)]

    def _in_the_way(self) -> RejectCode:
        return RejectCode.DEFERRED if self.stopping else RejectCode.STALE


def _jobs(holders: Collection[object]) -> str:
    """Return the number of other jobs in words, without their names, which a reader may not see."""
    return "another job" if len(holders) == 1 else f"{len(holders)} other jobs"
