"""Offers of a cluster's profiling nodes: configurations that dedicated runs can measure.

A dedicated run executes the job's command once more, so only repeatable jobs have such runs: those
of mode dedicated on nodes of role profiling or both, those of mode first_run on nodes of role
profiling, which only an operator makes.
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
    """Offers of nodes that are ready `now`, and of nodes that may come `back`."""

    now: tuple[Offer, ...]
    back: tuple[Offer, ...]


_NODE_FIELDS = (
    "gpu_type__name",
    "state",
    "last_seen_at",
    "cores",
    "reserved_cores",
    "memory_gb",
    "reserved_memory_gb",
    "labels",
    "features",
    "role",
    "team",
)
"""Fields of nodes that `offers` reads."""


def offers(cluster: Cluster, now: datetime) -> Offers:
    """Return the offers of all nodes of role profiling or both; one query."""
    # 1. The nodes with their healthy GPUs, and the most slots of one of these.
    is_healthy = Q(devices__healthy=True)
    nodes = Node.objects.filter(cluster=cluster, gpu_type__isnull=False)
    nodes = nodes.exclude(role=Role.PRODUCTION).select_related("gpu_type").only(*_NODE_FIELDS)
    nodes = nodes.annotate(
        healthy=Count("devices", filter=is_healthy), slots=Max("devices__slots", filter=is_healthy)
    )

    # 2. A node that is lost for long is not expected back.
    ready = []
    back = []
    for node in nodes:
        offer = _offer(node, node.healthy, node.slots or 1)
        is_gone = node.state == State.LOST and (
            node.last_seen_at is None or now - node.last_seen_at > RETURN_PATIENCE
        )
        if node.state == State.READY:
            ready.append(offer)
        elif not is_gone:
            back.append(offer)
    return Offers(tuple(ready), tuple(back))


def reachable(job: Job, nodes: Iterable[Offer]) -> set[Configuration]:
    """Return the configurations of these nodes that a dedicated run of the job may measure."""
    configurations = set()
    for offer in nodes:
        if not fits(job, offer):
            continue
        most_gpus = min(job.gpus_max, offer.gpus)
        for gpus in range(max(1, job.gpus_min), most_gpus + 1):
            configurations.add((offer.type_id, gpus))
    return configurations


def uses(job: Job, type_name: str, gpus: int) -> bool:
    """Return True if the job may run on the configuration, on any node."""
    allows_type = not job.allowed_types or type_name in job.allowed_types
    return allows_type and job.gpus_min <= gpus <= job.gpus_max


def _offer(node: Node, gpus: int, slots: int) -> Offer:
    """Return the offer of a node with so many healthy GPUs."""
    return Offer(
        type_id=node.gpu_type_id or 0,
        type_name=node.type_name,
        gpus=gpus,
        cores=node.cores - node.reserved_cores,
        memory_gb=node.memory_gb - node.reserved_memory_gb,
        labels=frozenset(node.labels),
        runtimes=runtimes_of(node.features),
        role=node.role,
        slots=slots,
        team_id=node.team_id if node.serves_one_team else None,
    )


def lends(job: Job) -> bool:
    """Return True if the job's command may be run for a measurement."""
    return job.repeatable and job.profiling_mode is not Profiling.OFF


def fits(job: Job, offer: Offer) -> bool:
    """Return True if a dedicated run of the job may and can use the node of an offer."""
    # 1. The job and its team permit it.
    if not lends(job):
        return False
    if job.profiling_mode is Profiling.FIRST_RUN and offer.role != Role.PROFILING:
        return False
    if offer.team_id not in (None, job.team_id):
        return False

    # 2. The node is of a sort that the job needs, and large enough.
    allows_type = not job.allowed_types or offer.type_name in job.allowed_types
    suits = job.runtime in offer.runtimes and satisfied(job.labels, offer.labels)
    is_large_enough = job.cores <= offer.cores and job.memory_gb <= offer.memory_gb
    return allows_type and suits and is_large_enough
