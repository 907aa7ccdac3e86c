"""Configurations that a cluster's profiling nodes can measure now and a job can use.

A dedicated run executes the job's command once more, so only repeatable jobs have any: those of
mode dedicated on nodes of role profiling or both, those of mode first_run on nodes for profiling
alone, which only an operator makes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Max, Q

from clusters.models import Cluster, Node
from clusters.models.clusters import Profiling
from clusters.models.nodes import Role, State, runtimes_of
from jobs.models import Job
from loadmaster.slurm.options.constraints import satisfied

RETURN_PATIENCE = timedelta(minutes=10)
"""Time for which unknown kinds wait for a lost profiling node."""

Configuration = tuple[int, int]
"""(primary key of a GPU type, GPUs)."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Offer of a profiling node: up to `gpus` GPUs of a type; `slots`: jobs that may share one.

    `team_id`: the team that it serves alone; None: any.
    """

    type_id: int
    type_name: str
    gpus: int
    cores: float
    memory_gb: float
    labels: frozenset[str]
    runtimes: tuple[str, ...]
    role: str
    slots: int = 1
    team_id: int | None = None


@dataclass(frozen=True, slots=True)
class Offers:
    """Configurations measurable `now`, and those of nodes that may come `back`."""

    now: tuple[Offer, ...]
    back: tuple[Offer, ...]


_READ = (
    "gpu_type__name", "state", "last_seen_at", "cores", "reserved_cores", "memory_gb",
    "reserved_memory_gb", "labels", "features", "role", "team",
)  # fmt: skip


def offers(cluster: Cluster, now: datetime) -> Offers:
    """Offers of all nodes of role profiling or both; one query."""
    working = Q(devices__healthy=True)
    there = (
        Node.objects.filter(cluster=cluster, gpu_type__isnull=False)
        .exclude(role=Role.PRODUCTION)
        .select_related("gpu_type")
        .only(*_READ)
    )
    nodes = there.annotate(
        healthy=Count("devices", filter=working), slots=Max("devices__slots", filter=working)
    )
    ready, back = [], []
    for node in nodes:
        gone = node.state == State.LOST and (
            node.last_seen_at is None or now - node.last_seen_at > RETURN_PATIENCE
        )
        if node.state == State.READY:
            ready.append(_offer(node, node.healthy, node.slots or 1))
        elif not gone:
            back.append(_offer(node, node.healthy, node.slots or 1))
    return Offers(tuple(ready), tuple(back))


def reachable(job: Job, nodes: Iterable[Offer]) -> set[Configuration]:
    """Configurations of these nodes on which the job may be measured by a run of its own."""
    return {
        (o.type_id, g)
        for o in nodes
        if fits(job, o)
        for g in range(max(1, job.gpus_min), min(job.gpus_max, o.gpus) + 1)
    }


def uses(job: Job, type_name: str, gpus: int) -> bool:
    """Return True if the job may run on the configuration, on any node."""
    return job.gpus_min <= gpus <= job.gpus_max and (
        not job.allowed_types or type_name in job.allowed_types
    )


def _offer(node: Node, gpus: int, slots: int) -> Offer:
    cores, memory_gb = node.cores - node.reserved_cores, node.memory_gb - node.reserved_memory_gb
    labels, runtimes = frozenset(node.labels), runtimes_of(node.features)
    type_id, role = node.gpu_type_id, node.role
    team = node.team_id if node.serves_one_team else None
    return Offer(
        type_id or 0, node.type_name, gpus, cores, memory_gb, labels, runtimes, role, slots, team
    )


def lends(job: Job) -> bool:
    """Return True if the job's command may be run for a measurement."""
    return job.repeatable and job.profiling_mode is not Profiling.OFF


def fits(job: Job, offer: Offer) -> bool:
    """Return True if a dedicated run of the job is allowed there and fits."""
    if not lends(job):
        return False
    if job.profiling_mode is Profiling.FIRST_RUN and offer.role != Role.PROFILING:
        return False
    allowed = not job.allowed_types or offer.type_name in job.allowed_types
    able = job.runtime in offer.runtimes and satisfied(job.labels, offer.labels)
    able = able and offer.team_id in (None, job.team_id)
    return allowed and able and job.cores <= offer.cores and job.memory_gb <= offer.memory_gb
