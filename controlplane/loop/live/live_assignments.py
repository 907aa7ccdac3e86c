"""Live assignments of a cluster and the slots they hold, read as columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from django.db.models import QuerySet

from clusters.models import Cluster
from controlplane.loop.changes import PlacementKey
from jobs.assignment_lifecycle import LIVE
from jobs.models import Assignment, AssignmentSlot
from loadmaster.protocol import AssignmentState
from policies.contract.plan import seat_demanded
from policies.contract.snapshot import Purpose, RankPlacement, Running

RUN = "run"


def demand_of(
    cores: float,
    memory_gb: float,
    resources: Mapping[str, float],
    cpu_quota: float | None,
    units: int,
) -> Mapping[str, int]:
    """Return the demand of a seat of `units` in billionths; the other amounts are those of one."""
    of_unit = {**resources, "cores": cores, "memory_gb": memory_gb}
    return seat_demanded(of_unit, units, cpu_quota)


class LiveAssignment(NamedTuple):
    """Live assignment with some columns of its job.

    `job_cores`, `memory_gb` and `resources` are those of one unit of the job. `exclusive`: no other
    job may be on its node.
    """

    pk: UUID
    job_id: UUID
    node_id: UUID
    purpose: str
    copy: int
    rank: int
    gpus: int
    units: int
    share: float
    cpu_quota: float | None
    state: str
    desired: str
    created_at: datetime
    running_at: datetime | None
    term_until: datetime | None
    steps_quota: int | None
    start_steps: int
    steps_done: int
    checkpoint_steps: int
    predicted_steps_per_s: float | None
    predicted_run_s: float | None
    predicted_source: str
    job_cores: float
    memory_gb: float
    resources: Mapping[str, float]
    exclusive: bool
    team_id: int

    @property
    def demand(self) -> Mapping[str, int]:
        """Cores, memory and named resources that it uses of its node, in billionths."""
        of_unit = self.job_cores, self.memory_gb, self.resources
        return demand_of(*of_unit, self.cpu_quota, self.units)


class OccupiedSlot(NamedTuple):
    """Slot of a device and its holder."""

    device_id: int
    device_uuid: str
    node_id: UUID
    slot: int
    share: float
    assignment_id: UUID
    job_id: UUID
    copy: int
    purpose: str


_JOB_COLUMNS = {
    "job_cores": "job__cores",
    "memory_gb": "job__memory_gb",
    "resources": "job__resources",
    "exclusive": "job__exclusive",
    "team_id": "job__team_id",
}
"""Columns of the fields of a live assignment that its job has."""

_ASSIGNMENT_COLUMNS = tuple(_JOB_COLUMNS.get(name, name) for name in LiveAssignment._fields)
"""Columns of a live assignment in the order of its fields."""

_SLOT_COLUMNS = (
    "device_id",
    "device__uuid",
    "device__node_id",
    "slot",
    "share",
    "assignment_id",
    "assignment__job_id",
    "assignment__copy",
    "assignment__purpose",
)
"""Columns of an occupied slot in the order of its fields."""


@dataclass(frozen=True, slots=True)
class Gang:
    """Live assignments of one placement, by rank, and the placement they make."""

    key: PlacementKey
    assignments: tuple[LiveAssignment, ...]
    running: Running


def is_placement(assignment: LiveAssignment) -> bool:
    """Return True for a live assignment that is not stopping and shall not stop."""
    return _goes_on(assignment.state, assignment.desired)


def _goes_on(state: str, desired: str) -> bool:
    """Return True if an assignment in this state, with this wish of the server, shall run on."""
    return desired == RUN and state != AssignmentState.STOPPING


def _live(cluster: Cluster) -> QuerySet[Assignment]:
    return Assignment.objects.filter(node__cluster=cluster, state__in=LIVE)


class LiveAssignments:
    """Live assignments of a cluster and the slots they hold."""

    def __init__(
        self,
        cluster: Cluster,
        assignments: Sequence[LiveAssignment],
        slots: Iterable[OccupiedSlot],
    ) -> None:
        """`assignments` by job, purpose, copy and rank; `slots` by device and number."""
        self.cluster = cluster
        self.assignments = assignments
        self.of_job: Mapping[object, list[LiveAssignment]] = defaultdict(list)
        self.teams: Mapping[object, set[int]] = defaultdict(set)
        """Teams that have jobs on a node, by node."""
        for assignment in assignments:
            self.of_job[assignment.job_id].append(assignment)
            self.teams[assignment.node_id].add(assignment.team_id)
        self.slots: Mapping[object, list[OccupiedSlot]] = defaultdict(list)
        """Slots by assignment."""
        self.of_device: Mapping[int, list[OccupiedSlot]] = defaultdict(list)
        for slot in slots:
            self.slots[slot.assignment_id].append(slot)
            self.of_device[slot.device_id].append(slot)

    @classmethod
    def of(cls, cluster: Cluster) -> LiveAssignments:
        """Read the live assignments of a cluster, in two queries."""
        live = _live(cluster).order_by("job_id", "purpose", "copy", "rank")
        columns = live.values_list(*_ASSIGNMENT_COLUMNS)
        assignments = [LiveAssignment._make(values) for values in columns]
        occupied = AssignmentSlot.objects.filter(live=True, device__node__cluster=cluster)
        slots = occupied.order_by("device_id", "slot").values_list(*_SLOT_COLUMNS)
        return cls(cluster, assignments, map(OccupiedSlot._make, slots))

    def newest(self) -> LiveAssignments | None:
        """Return them as they are now; None if none has ended or been asked to stop since.

        Only states are read, as the rest stays while an assignment lives. Rounds alone make new
        ones; if there is one, all is read.
        """
        # 1. Compare which go on.
        states = {}
        for pk, state, desired in _live(self.cluster).values_list("pk", "state", "desired"):
            states[pk] = (state, desired)
        going_on = {pk: _goes_on(state, desired) for pk, (state, desired) in states.items()}
        went_on = {each.pk: is_placement(each) for each in self.assignments}
        if going_on == went_on:
            return None
        if going_on.keys() - went_on.keys():
            return LiveAssignments.of(self.cluster)

        # 2. Leave out those that have ended, and their slots; take over the states of the others.
        still_live = []
        for each in self.assignments:
            if each.pk in states:
                state, desired = states[each.pk]
                still_live.append(each._replace(state=state, desired=desired))
        still_occupied: list[OccupiedSlot] = []
        for slots in self.of_device.values():
            still_occupied.extend(slot for slot in slots if slot.assignment_id in states)
        return LiveAssignments(self.cluster, still_live, still_occupied)

    def gangs(self, job: object | None = None) -> list[Gang]:
        """Return the placements that are meant to go on, of one job (its primary key) or of all."""
        assignments = self.assignments
        if job is not None:
            assignments = self.of_job[job]
        ranks_of: dict[PlacementKey, list[LiveAssignment]] = defaultdict(list)
        for each in assignments:
            if is_placement(each):
                ranks_of[str(each.job_id), Purpose(each.purpose), each.copy].append(each)
        return [Gang(key, tuple(ranks), self._running(ranks)) for key, ranks in ranks_of.items()]

    def _running(self, ranks: Sequence[LiveAssignment]) -> Running:
        """Run of a placement in a snapshot; it began with its first rank."""
        first = ranks[0]
        return Running(
            copy=first.copy,
            ranks=tuple(self._seat(rank) for rank in ranks),
            since_s=min((rank.running_at or rank.created_at).timestamp() for rank in ranks),
            until_s=first.term_until.timestamp() if first.term_until else None,
            steps_quota=first.steps_quota,
            purpose=Purpose(first.purpose),
        )

    def _seat(self, rank: LiveAssignment) -> RankPlacement:
        """Seat of one rank, with its devices by UUID."""
        devices = tuple(sorted(slot.device_uuid for slot in self.slots[rank.pk]))
        node = str(rank.node_id)
        return RankPlacement(node, devices, rank.share, rank.cpu_quota, rank.units)
