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
    """Return the demand of a seat whose job's unit has these, in billionths."""
    of_unit = {**resources, "cores": cores, "memory_gb": memory_gb}
    return seat_demanded(of_unit, units, cpu_quota)


class LiveAssignment(NamedTuple):
    """Live assignment; `job_cores`, `memory_gb`, `resources`: the demand of its job's unit.

    `exclusive`: no other job may be on its node.
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
        """Cores, memory and named resources that it has of its node, in billionths."""
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


_OF_JOB = {
    "job_cores": "job__cores", "memory_gb": "job__memory_gb", "resources": "job__resources",
    "exclusive": "job__exclusive", "team_id": "job__team_id",
}  # fmt: skip
_ASSIGNMENT = tuple(_OF_JOB.get(name, name) for name in LiveAssignment._fields)
_SLOT = (
    "device_id", "device__uuid", "device__node_id", "slot", "share",
    "assignment_id", "assignment__job_id", "assignment__copy", "assignment__purpose",
)  # fmt: skip
"""Columns of both, in the order of their fields."""


@dataclass(frozen=True, slots=True)
class Gang:
    """Live assignments of one placement, by rank, and the placement they make."""

    key: PlacementKey
    assignments: tuple[LiveAssignment, ...]
    running: Running


def is_placement(assignment: LiveAssignment) -> bool:
    """Return True for a live assignment that is not stopping."""
    return _goes_on(assignment.state, assignment.desired)


def _goes_on(state: str, desired: str) -> bool:
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
        self.cluster, self.assignments = cluster, assignments
        self.of_job: Mapping[object, list[LiveAssignment]] = defaultdict(list)
        self.teams: Mapping[object, set[int]] = defaultdict(set)
        """Teams that have jobs on a node."""
        for assignment in assignments:
            self.of_job[assignment.job_id].append(assignment)
            self.teams[assignment.node_id].add(assignment.team_id)
        self.slots: Mapping[object, list[OccupiedSlot]] = defaultdict(list)
        self.of_device: Mapping[int, list[OccupiedSlot]] = defaultdict(list)
        for slot in slots:
            self.slots[slot.assignment_id].append(slot)
            self.of_device[slot.device_id].append(slot)

    @classmethod
    def of(cls, cluster: Cluster) -> LiveAssignments:
        live = _live(cluster).order_by("job_id", "purpose", "copy", "rank")
        assignments = [LiveAssignment._make(row) for row in live.values_list(*_ASSIGNMENT)]
        held = AssignmentSlot.objects.filter(live=True, device__node__cluster=cluster)
        slots = held.order_by("device_id", "slot").values_list(*_SLOT)
        return cls(cluster, assignments, map(OccupiedSlot._make, slots))

    def newest(self) -> LiveAssignments | None:
        """These without those that have ended and with stops requested since; None if the same.

        Only states are read, as the rest stays while an assignment lives. Rounds alone make new
        ones; if there is one, all is read.
        """
        live = _live(self.cluster).values_list("pk", "state", "desired")
        now = {pk: (state, desired) for pk, state, desired in live}
        before = {a.pk: is_placement(a) for a in self.assignments}
        if {pk: _goes_on(*found) for pk, found in now.items()} == before:
            return None
        if now.keys() - before.keys():
            return LiveAssignments.of(self.cluster)
        left = [
            a._replace(state=now[a.pk][0], desired=now[a.pk][1])
            for a in self.assignments
            if a.pk in now
        ]
        slots = (slot for held in self.of_device.values() for slot in held)
        return LiveAssignments(self.cluster, left, (s for s in slots if s.assignment_id in now))

    def gangs(self, job: object | None = None) -> list[Gang]:
        """Placements that are meant to go on, of one job (its primary key) or of all."""
        found: dict[PlacementKey, list[LiveAssignment]] = defaultdict(list)
        for a in self.assignments if job is None else self.of_job[job]:
            if is_placement(a):
                found[str(a.job_id), Purpose(a.purpose), a.copy].append(a)
        return [Gang(key, tuple(ranks), self._running(ranks)) for key, ranks in found.items()]

    def _running(self, ranks: Sequence[LiveAssignment]) -> Running:
        first = ranks[0]
        return Running(
            copy=first.copy,
            ranks=tuple(self._seat(a) for a in ranks),
            since_s=min((a.running_at or a.created_at).timestamp() for a in ranks),
            until_s=first.term_until.timestamp() if first.term_until else None,
            steps_quota=first.steps_quota,
            purpose=Purpose(first.purpose),
        )

    def _seat(self, a: LiveAssignment) -> RankPlacement:
        devices = tuple(sorted(slot.device_uuid for slot in self.slots[a.pk]))
        return RankPlacement(str(a.node_id), devices, a.share, a.cpu_quota, a.units)
