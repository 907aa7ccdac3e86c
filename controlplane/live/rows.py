"""The rows of a cluster that the loop looks at, each table read once, grouped by what they belong to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Q

from clusters.clockwork import is_silent
from clusters.lifecycle import LIVE
from clusters.models import Assignment, AssignmentSlot, Cluster, Device, GpuType, Node
from clusters.models.nodes import Role, State
from clusters.runtimes import runtimes_of
from controlplane.changes import PlacementKey
from controlplane.live.window import window
from jobs.lifecycle import JobState
from jobs.models import Job
from loadmaster.protocol import AssignmentState, ReasonClass
from policies.snapshot import Purpose, RankSeat, Running

SHOWN = (JobState.QUEUED, JobState.PROFILING, JobState.STARTING, JobState.RUNNING, JobState.STOPPING)
"""Jobs that a policy may be shown: those that run or want to."""

RUN = "run"

AVOIDED = timedelta(minutes=10)
"""How long a job keeps away from a node that failed it, as long as another one would do."""

THE_NODES_FAULT = (ReasonClass.IMAGE, ReasonClass.GPU, ReasonClass.NODE)


@dataclass(frozen=True, slots=True)
class Gang:
    """The live assignments of one placement, by rank, and the placement they make."""

    key: PlacementKey
    assignments: tuple[Assignment, ...]
    running: Running


def is_placement(assignment: Assignment) -> bool:
    """Whether a live assignment is meant to go on: neither asked to stop nor stopping by itself."""
    return assignment.desired == RUN and assignment.state != AssignmentState.STOPPING


def is_ready(node: Node, now: datetime) -> bool:
    """Whether the node takes new work: nobody says otherwise, and its agent is there to take it."""
    return node.state == State.READY and not is_silent(node.session_expires_at, now)


class Held:
    """What is held on a cluster's nodes: live assignments and the slots they hold."""

    def __init__(self, cluster: Cluster) -> None:
        live = Assignment.objects.filter(node__cluster=cluster, state__in=LIVE).select_related("job")
        self.assignments: Sequence[Assignment] = list(live.order_by("job_id", "purpose", "copy", "rank"))
        self.of_job: Mapping[object, list[Assignment]] = defaultdict(list)
        for assignment in self.assignments:
            self.of_job[assignment.job_id].append(assignment)
        self.slots: Mapping[object, list[AssignmentSlot]] = defaultdict(list)
        self.of_device: Mapping[int, list[AssignmentSlot]] = defaultdict(list)
        held = AssignmentSlot.objects.filter(live=True, device__node__cluster=cluster).select_related("device", "assignment")
        for slot in held.order_by("device_id", "slot"):
            self.slots[slot.assignment_id].append(slot)
            self.of_device[slot.device_id].append(slot)

    def gangs(self, job: object | None = None) -> list[Gang]:
        """The placements that are meant to go on, of one job (its primary key) or of all."""
        found: dict[PlacementKey, list[Assignment]] = defaultdict(list)
        for a in self.assignments if job is None else self.of_job[job]:
            if is_placement(a):
                found[str(a.job_id), Purpose(a.purpose), a.copy].append(a)
        return [Gang(key, tuple(ranks), self._running(ranks)) for key, ranks in found.items()]

    def _running(self, ranks: Sequence[Assignment]) -> Running:
        first = ranks[0]
        return Running(
            copy=first.copy,
            ranks=tuple(self._seat(a) for a in ranks),
            since_s=min((a.running_at or a.created_at).timestamp() for a in ranks),
            until_s=first.term_until.timestamp() if first.term_until else None,
            steps_quota=first.steps_quota,
            purpose=Purpose(first.purpose),
        )

    def _seat(self, a: Assignment) -> RankSeat:
        devices = tuple(sorted(slot.device.uuid for slot in self.slots[a.pk]))
        return RankSeat(str(a.node_id), devices, a.share, a.cpu_quota)


class Rows:
    """All that a snapshot is made of, but for kinds and prices."""

    def __init__(self, cluster: Cluster, now: datetime, number: int = 0) -> None:
        """`now`: jobs that rest until later are left out. `number`: the round's, for which a long queue is cut to a window."""
        self.cluster, self.now = cluster, now
        self.held = Held(cluster)
        self.gpu_types: Mapping[int, GpuType] = {t.pk: t for t in GpuType.objects.order_by("name")}
        self.nodes: Sequence[Node] = list(Node.objects.filter(cluster=cluster).order_by("name"))
        self.type_of = {node.pk: self.gpu_types[node.gpu_type_id].name for node in self.nodes}
        self.devices: Mapping[object, list[Device]] = defaultdict(list)
        for device in Device.objects.filter(node__cluster=cluster).order_by("node_id", "uuid"):
            self.devices[device.node_id].append(device)
        shown = Job.objects.filter(cluster=cluster, state__in=SHOWN).exclude(state=JobState.STOPPING, hold_wanted=True)
        shown = shown.exclude(state=JobState.QUEUED, retry_at__gt=now)
        chosen = window(shown.filter(state=JobState.QUEUED), settings.ROUND_JOBS, number)
        self.cut = chosen is not None
        if chosen is not None:
            shown = shown.filter(~Q(state=JobState.QUEUED) | Q(pk__in=chosen))
        jobs = list(shown.select_related("team").order_by("submitted_at", "id"))
        self.undone = _undone_dependencies(cluster)
        self.blocked = _blocked(jobs, self.undone)
        self.jobs: Sequence[Job] = [job for job in jobs if job.pk not in self.blocked]
        self.avoided = self._avoided(now)

    def _avoided(self, now: datetime) -> Mapping[object, frozenset[object]]:
        """By waiting job the nodes that failed it lately and of whose kind there are others for it: it tries those first."""
        failed = Assignment.objects.filter(
            job__cluster=self.cluster, job__state=JobState.QUEUED, ended_at__gte=now - AVOIDED,
            purpose=Purpose.TRAINING, reason_class__in=THE_NODES_FAULT,
        )  # fmt: skip
        nodes_of: dict[object, set[object]] = defaultdict(set)
        for job_id, node_id in failed.values_list("job_id", "node_id").distinct():
            nodes_of[job_id].add(node_id)
        avoided: dict[object, frozenset[object]] = {}
        for job in self.jobs if nodes_of else ():
            able = {n.pk for n in self.nodes if self._would_do(n, job)} if job.pk in nodes_of else set()
            if able - nodes_of[job.pk]:
                avoided[job.pk] = frozenset(able & nodes_of[job.pk])
        return avoided

    def _would_do(self, node: Node, job: Job) -> bool:
        return (
            is_ready(node, self.now)
            and node.role != Role.PROFILING
            and job.runtime in runtimes_of(node)
            and set(job.labels) <= set(node.labels)
            and (not job.allowed_types or self.type_of[node.pk] in job.allowed_types)
            and sum(d.healthy for d in self.devices[node.pk]) >= job.gpus_min
        )


def _undone_dependencies(cluster: Cluster) -> Mapping[object, set[object]]:
    """By job the jobs it depends on that are not completed."""
    dependent = Job.objects.filter(cluster=cluster, state__in=SHOWN, dependencies__isnull=False)
    undone: dict[object, set[object]] = defaultdict(set)
    for job, dependency, state in dependent.values_list("pk", "dependencies", "dependencies__state"):
        if state != JobState.COMPLETED:
            undone[job].add(dependency)
    return undone


def _blocked(jobs: Sequence[Job], undone: Mapping[object, set[object]]) -> Mapping[object, set[object]]:
    """Jobs that depend, directly or over others, on one that is neither completed nor among `jobs`; with those in the way."""
    shown = {job.pk for job in jobs}
    blocked: dict[object, set[object]] = {}
    while new := {j: gone for j, of in undone.items() if j in shown and (gone := of - shown)}:
        blocked |= new
        shown -= new.keys()
    return blocked
