"""Rows of a cluster that a round reads, each table once, as columns.

Of a long queue a round sees LOADMASTER_ROUND_JOBS: half by turns of the teams, a quarter by due
date, a quarter that moves on with each round; jobs with open dependencies get the rest. It sees no
element beyond its array's limit, and no job that waits for an array.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from math import ceil, inf
from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings
from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet, Sum, Window
from django.db.models.functions import Coalesce, Least, RowNumber

from clusters.intervals import is_silent
from clusters.models import Cluster, Device, GpuType, Node
from clusters.models.nodes import Role, State, runtimes_of
from controlplane.loop.live.arrays import OverLimit
from controlplane.loop.live.live_assignments import LiveAssignments
from jobs.dependencies import unsatisfied
from jobs.lifecycle import PLACED, JobState
from jobs.models import UNFINISHED, Assignment, Condition, Dependency, Job
from jobs.submission.feasibility import Demand, NodeCapacity, hold_all
from loadmaster.features import serves_one_team
from loadmaster.protocol import OUT_OF_SHARED_MEMORY, ReasonClass
from loadmaster.slurm.options.constraints import ALTERNATIVE, satisfied
from policies.contract.snapshot import Purpose


def window(
    queued: QuerySet[Job], most: int, number: int, now: datetime | None = None
) -> list[Any] | None:
    """Return the primary keys of `most` of the `queued` jobs; None if there are no more than that.

    `number`: the round's, by which the last sections move on.
    """
    count = queued.count()
    if count <= most:
        return None

    # 1. Jobs with open dependencies get an eighth of the seats, or as many as there are of them.
    has_open_dependency = Exists(Dependency.objects.filter(unsatisfied(now), job=OuterRef("pk")))
    ready = queued.filter(~has_open_dependency)
    waiting = queued.filter(has_open_dependency)
    ready_count = ready.count()
    waiting_count = count - ready_count
    ready_seats = most - min(most // 8, waiting_count)

    # 2. Ready jobs: half of their seats by turns of the teams, a quarter by due date, and the rest
    # by sections of the queue. A job that two of these choose leaves its second seat to the next.
    quarter = ready_seats // 4
    chosen = dict.fromkeys(_by_turns_of_teams(ready, ready_seats - 2 * quarter))
    chosen.update(dict.fromkeys(_by_due_date(ready, quarter)))
    free_seats = ready_seats - len(chosen)
    chosen.update(dict.fromkeys(_section(ready, free_seats, number, ready_count)))

    # 3. Seats that are still free go to jobs with open dependencies, too.
    free_seats = most - len(chosen)
    chosen.update(dict.fromkeys(_section(waiting, free_seats, number, waiting_count)))
    return list(chosen)


def _by_turns_of_teams(queued: QuerySet[Job], most: int) -> Iterable[Any]:
    """Most urgent job of each team, then the second of each: by priority, then age."""
    turn = Window(
        RowNumber(),
        partition_by=[F("team_id")],
        order_by=[F("priority").desc(), F("submitted_at").asc(), F("pk").asc()],
    )
    ordered = queued.annotate(turn=turn).order_by("turn", "-priority", "submitted_at", "pk")
    return [pk for pk, _ in ordered.values_list("pk", "turn")[:most]]


def _by_due_date(queued: QuerySet[Job], most: int) -> Iterable[Any]:
    """Jobs with a due date or deadline, the earlier one of a job first."""
    due = Coalesce("due_at", "deadline_at")
    deadline = Coalesce("deadline_at", "due_at")
    with_date = queued.annotate(until=Least(due, deadline)).filter(until__isnull=False)
    return list(with_date.order_by("until", "pk").values_list("pk", flat=True)[:most])


def _section(queued: QuerySet[Job], most: int, number: int, count: int) -> Iterable[Any]:
    """Section of the `count` queued jobs by primary key; each round takes the next, cyclically."""
    sections = 1
    if most and count:
        sections = ceil(count / most)
    start = number % sections * most
    return queued.order_by("pk").values_list("pk", flat=True)[start : start + most]


SHOWN = (
    JobState.QUEUED, JobState.PROFILING, JobState.STARTING, JobState.RUNNING, JobState.STOPPING,
)  # fmt: skip  # one state a line would hide the list
"""States of jobs in a snapshot."""

OF_A_JOB = (
    "name", "cluster", "team", "user", "state", "runtime", "kind", "total_steps", "gpus_min",
    "gpus_max", "allowed_types", "labels", "cores", "memory_gb", "resources", "batch", "exclusive",
    "units", "units_per_node", "nodes", "script", "preemptible", "may_mix", "may_share",
    "profiling", "repeatable", "due_at", "deadline_at", "walltime_s", "on_walltime", "signal",
    "tardiness_weight", "weight", "priority", "checkpoint_steps", "received_s", "submitted_at",
)  # fmt: skip  # one column a line would take forty
"""Columns that a snapshot needs; commands, environments and reasons for waiting may be long."""

AVOIDED = timedelta(minutes=10)
"""Time for which a job avoids a node that failed it, if another one would do."""

THE_NODES_FAULT = (ReasonClass.IMAGE, ReasonClass.GPU, ReasonClass.NODE)


class NodeRow(NamedTuple):
    pk: UUID
    name: str
    gpu_type_id: int | None
    role: str
    state: str
    drain_until: datetime | None
    cores: float
    memory_gb: float
    reserved_cores: float
    reserved_memory_gb: float
    resources: Mapping[str, float]
    labels: Sequence[str]
    base_w: float
    rack: str
    link_gbps: float
    features: Sequence[str]
    team_id: int | None
    session_expires_at: datetime | None
    address: str


class DeviceRow(NamedTuple):
    node_id: UUID
    pk: int
    uuid: str
    memory_gb: float
    slots: int
    healthy: bool
    emulated: bool


def is_ready(node: NodeRow | Node) -> bool:
    """Return True if the node takes new jobs: it is ready and its agent is not silent."""
    return node.state == State.READY and not is_silent(node.session_expires_at)


class Rows:
    """Rows of a snapshot, but for kinds and prices."""

    def __init__(self, cluster: Cluster, now: datetime, number: int = 0) -> None:
        """`now`: omit jobs that back off. `number`: the round's, for the window of a long queue."""
        self.cluster = cluster
        self.now = now

        # 1. The nodes, their devices, and what lives on them.
        self.held = LiveAssignments.of(cluster)
        self.gpu_types: Mapping[int, GpuType] = {t.pk: t for t in GpuType.objects.order_by("name")}
        nodes = Node.objects.filter(cluster=cluster).order_by("name").values_list(*NodeRow._fields)
        self.nodes: Sequence[NodeRow] = [NodeRow._make(values) for values in nodes]
        self.type_of = {node.pk: self._type_name(node) for node in self.nodes}
        self.devices: Mapping[object, list[DeviceRow]] = defaultdict(list)
        devices = Device.objects.filter(node__cluster=cluster).order_by("node_id", "uuid")
        for values in devices.values_list(*DeviceRow._fields):
            device = DeviceRow._make(values)
            self.devices[device.node_id].append(device)

        # 2. Jobs that the round could place or that run: not held, in time, not backing off.
        shown = Job.objects.filter(UNFINISHED, cluster=cluster, state__in=SHOWN)
        shown = shown.exclude(state=JobState.STOPPING, hold_wanted=True)
        shown = shown.exclude(state=JobState.QUEUED, retry_at__gt=now)
        shown = shown.exclude(state=JobState.QUEUED, deadline_at__lte=now)

        # 3. Of these the elements within the limits of their arrays, and the window of the queue.
        limited = OverLimit.of(shown.filter(state=JobState.QUEUED), now)
        self.over_limit = limited.others
        if limited.full:
            shown = shown.filter(limited.shown())
        chosen = window(shown.filter(state=JobState.QUEUED), settings.ROUND_JOBS, number, now)
        self.cut = chosen is not None
        if chosen is not None:
            shown = shown.filter(~Q(state=JobState.QUEUED) | Q(pk__in=chosen))
        # `prefetch_related` reads the team of many jobs once.
        with_teams = shown.only(*OF_A_JOB).prefetch_related("team")
        jobs = list(with_teams.order_by("submitted_at", "id"))

        # 4. Without those that wait for a job that the policy does not see.
        self.undone = _undone_dependencies(cluster, now)
        self.blocked = _blocked(jobs, self.undone)
        self.jobs: Sequence[Job] = [job for job in jobs if job.pk not in self.blocked]

        # 5. Nodes that jobs avoid, and labels that these jobs ask for.
        self.avoided = self._avoided(now)
        self.avoided_nodes = frozenset(n for nodes in self.avoided.values() for n in nodes)
        self.alternatives = _alternatives(self.jobs)

    @cached_property
    def keeps_teams_apart(self) -> bool:
        """Return True if some node may serve one team alone."""
        return any(serves_one_team(node.features) for node in self.nodes)

    @cached_property
    def teams(self) -> set[int]:
        """Teams that have jobs here, where any node keeps them apart."""
        return {job.team_id for job in self.jobs} if self.keeps_teams_apart else set()

    def teams_of(self, node: NodeRow) -> set[int]:
        """Teams of jobs here that the node may serve, where any node keeps them apart."""
        if not serves_one_team(node.features):
            return self.teams
        bound_to = set(self.held.teams[node.pk])
        if node.team_id:
            bound_to.add(node.team_id)
        return bound_to or self.teams

    def _type_name(self, node: NodeRow) -> str:
        return "" if node.gpu_type_id is None else self.gpu_types[node.gpu_type_id].name

    def _avoided(self, now: datetime) -> Mapping[object, frozenset[object]]:
        """Nodes to avoid by waiting job: they failed it lately, and the others could hold it.

        The others shall hold it with as many GPUs a node as its failed launches had, at least.
        """
        # 1. The nodes and launches of lately failed runs.
        failed = Assignment.objects.filter(
            job__cluster=self.cluster,
            job__state=JobState.QUEUED,
            ended_at__gte=now - AVOIDED,
            ended_at__lte=now + AVOIDED,  # not of a time when the clock was ahead
            purpose=Purpose.TRAINING,
            reason_class__in=THE_NODES_FAULT,
        )
        failed = failed.exclude(reason__startswith=OUT_OF_SHARED_MEMORY)
        shown = {job.pk for job in self.jobs}
        failed_nodes: dict[object, set[object]] = defaultdict(set)
        launches: set[tuple[object, int]] = set()
        for job_id, node_id, fence in failed.values_list("job_id", "node_id", "fence").distinct():
            if job_id in shown:
                failed_nodes[job_id].add(node_id)
                launches.add((job_id, fence))
        if not launches:
            return {}

        # 2. Each such job avoids them if the other nodes that it may use have enough.
        spread = _gpus_a_node(launches)
        avoided: dict[object, frozenset[object]] = {}
        for job in self.jobs:
            if job.pk not in failed_nodes:
                continue
            failed_it = failed_nodes[job.pk]
            allowed = [node for node in self.nodes if self._would_do(node, job)]
            others = [self._capacity(node) for node in allowed if node.pk not in failed_it]
            enough = len(others) * spread.get(job.pk, inf) >= job.gpus_min
            if enough and hold_all(others, _demand(job)):
                avoided[job.pk] = frozenset(node.pk for node in allowed if node.pk in failed_it)
        return avoided

    def _capacity(self, node: NodeRow) -> NodeCapacity:
        return NodeCapacity(
            gpu_type=self.type_of[node.pk],
            gpus=sum(d.healthy for d in self.devices[node.pk]),
            cores=node.cores - node.reserved_cores,
            memory_gb=node.memory_gb - node.reserved_memory_gb,
            labels=frozenset(node.labels),
            features=frozenset(node.features),
        )

    def _would_do(self, node: NodeRow, job: Job) -> bool:
        return (
            is_ready(node)
            and node.role != Role.PROFILING
            and (not self.keeps_teams_apart or job.team_id in self.teams_of(node))
            and job.runtime in runtimes_of(node.features)
            and satisfied(job.labels, node.labels)
            and (not job.allowed_types or self.type_of[node.pk] in job.allowed_types)
        )


def _alternatives(jobs: Iterable[Job]) -> frozenset[str]:
    """Return the labels of jobs that several labels of a node satisfy, such as a100|v100."""
    alternatives = set[str]()
    for job in jobs:
        alternatives.update(label for label in job.labels if ALTERNATIVE in label)
    return frozenset(alternatives)


def _gpus_a_node(failed: Collection[tuple[Any, int]]) -> dict[object, float]:
    """Fewest GPUs a node by job, of its launches (job, fence); jobs without GPUs are left out."""
    jobs = [job for job, _ in failed]
    fences = {fence for _, fence in failed}
    launches = Assignment.objects.filter(
        job__in=jobs, fence__in=fences, purpose=Purpose.TRAINING, gpus__gt=0
    ).order_by()
    counted = launches.values_list("job", "fence").annotate(
        Sum("gpus"), Count("node", distinct=True)
    )
    gpus_a_node: dict[object, float] = {}
    for job, fence, gpus, nodes in counted:
        if (job, fence) in failed:
            gpus_a_node[job] = min(gpus / nodes, gpus_a_node.get(job, inf))
    return gpus_a_node


def _demand(job: Job) -> Demand:
    return Demand(
        gpus_min=job.gpus_min,
        gpus_max=job.gpus_max,
        allowed_types=tuple(job.allowed_types),
        cores=job.cores,
        memory_gb=job.memory_gb,
        labels=tuple(job.labels),
        units=job.units,
        units_per_node=job.units_per_node,
        nodes=job.nodes,
        batch=job.batch,
        may_mix=job.may_mix,
    )


class OpenDependency(NamedTuple):
    """Dependency for which a job still waits; `condition` as in a job file, such as after+5.

    `is_hidden`: no policy may see the job, for the end of the other job decides nothing.
    """

    condition: str
    alternative: bool
    is_hidden: bool


OpenDependencies = Mapping[object, Mapping[object, OpenDependency]]
"""By job, the jobs and arrays that it still waits for."""


def _undone_dependencies(cluster: Cluster, now: datetime) -> OpenDependencies:
    waits = Dependency.objects.filter(unsatisfied(now), job__cluster=cluster, job__state__in=SHOWN)
    undone: dict[object, dict[object, OpenDependency]] = defaultdict(dict)
    rows = waits.values_list("job", "on", "on_array", "condition", "delay", "alternative")
    for job, on_job, on_array, condition, delay, alternative in rows:
        is_hidden = alternative or condition == Condition.AFTER
        if delay:
            condition = f"{condition}+{delay // timedelta(minutes=1)}"
        undone[job][on_job or on_array] = OpenDependency(condition, alternative, is_hidden)
    return undone


def _blocked(jobs: Sequence[Job], undone: OpenDependencies) -> Mapping[object, set[object]]:
    """Return the jobs that no policy sees because of their dependencies, with what they wait for.

    A policy takes a dependency for satisfied when it no longer sees the other job. So it does not
    see jobs that wait for a job outside `jobs`, directly or not, for a start, or for one of
    several.
    """
    # 1. Jobs that wait for a start, or for one of several.
    shown: set[object] = {job.pk for job in jobs}
    blocked: dict[object, set[object]] = {}
    for job in jobs:
        open_ones = undone.get(job.pk, {})
        is_hidden = any(one.is_hidden for one in open_ones.values())
        if is_hidden and job.state not in PLACED:
            blocked[job.pk] = set(open_ones)
    shown -= blocked.keys()

    # 2. Jobs that wait for one that is not shown; until none is left, as each hides others.
    while True:
        newly_blocked: dict[object, set[object]] = {}
        for job_id, open_ones in undone.items():
            not_shown = open_ones.keys() - shown
            if job_id in shown and not_shown:
                newly_blocked[job_id] = not_shown
        if not newly_blocked:
            return blocked
        blocked.update(newly_blocked)
        shown -= newly_blocked.keys()
