"""Whether any node of a cluster could ever serve a job, however full the cluster is now."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count

from clusters.models import Cluster, Node
from clusters.models.nodes import Role


@dataclass(frozen=True, slots=True)
class Demand:
    """What a job needs of the one node that hosts it."""

    gpus_min: int
    gpus_max: int
    allowed_types: tuple[str, ...]
    cores: float
    memory_gb: float
    labels: tuple[str, ...]
    runtime: str = "process"


@dataclass(frozen=True, slots=True)
class Seat:
    """Capacity of an empty node for jobs; `features`: what its agent supports."""

    gpu_type: str
    gpus: int
    cores: float
    memory_gb: float
    labels: frozenset[str]
    features: frozenset[str] = frozenset()


def check_feasible(
    cluster: Cluster, demand: Demand, seats: list[Seat]
) -> tuple[dict[str, str], list[str]]:
    """Problems by field and warnings against the cluster; without nodes nothing is refused."""
    if not seats:
        return {}, [
            f"cluster: {cluster} has no node that runs jobs yet; the job waits until one joins"
        ]
    return judge(seats, demand, cluster.name)


def judge(seats: list[Seat], demand: Demand, cluster: str) -> tuple[dict[str, str], list[str]]:
    """The first need that no node meets, as {field: message}, and warnings. Pure."""
    running = [s for s in seats if not s.features or demand.runtime in s.features]
    if not running:
        return {
            "runtime": (
                f"no node of {cluster} offers the runtime"
                f" {demand.runtime}{_REMEDIES.get(demand.runtime, '')}"
            )
        }, []
    typed = [s for s in running if not demand.allowed_types or s.gpu_type in demand.allowed_types]
    if not typed:
        here = ", ".join(sorted({s.gpu_type for s in running}))
        return {
            "allowed_types": (
                f"no node of {cluster} has {' or '.join(demand.allowed_types)}; its nodes have"
                f" {here}"
            )
        }, []
    for field, unit, wanted in (
        ("cores", "cores", demand.cores),
        ("memory_gb", "GB", demand.memory_gb),
    ):
        most = max(getattr(s, field) for s in typed)
        if wanted > most:
            return {
                field: (
                    f"no node of {cluster} that may run it has {wanted:g} {unit}; the largest has"
                    f" {most:g}"
                )
            }, []
    return _judge_gpus(typed, demand, cluster)


_REMEDIES = {
    "docker": "; give a command without an image, or have an agent with the docker runtime join",
    "process": (
        "; name an image for the command to run in, or have an agent with the process runtime join"
    ),
}


def _judge_gpus(
    typed: list[Seat], demand: Demand, cluster: str
) -> tuple[dict[str, str], list[str]]:
    fitting = [s for s in typed if s.cores >= demand.cores and s.memory_gb >= demand.memory_gb]
    largest = max(fitting, key=lambda s: s.gpus, default=None)
    if largest is None:
        return {
            "memory_gb": (
                f"no node of {cluster} has {demand.cores:g} cores and {demand.memory_gb:g} GB at"
                " once; ask for less"
            )
        }, []
    of = f"{largest.gpus} of type {largest.gpu_type}"
    if demand.gpus_min > largest.gpus:
        return {
            "gpus": (
                f"no node of {cluster} can serve {demand.gpus_min} GPUs; the largest that could"
                f" serve the job has {of}"
            )
        }, []
    warnings = []
    if demand.gpus_max > largest.gpus:
        warnings.append(
            f"gpus: at most {largest.gpus} of {demand.gpus_max} can be used; the largest node has"
            f" {of}"
        )
    if demand.labels and not any(set(demand.labels) <= s.labels for s in fitting):
        warnings.append(
            f"labels: no node that fits has {', '.join(demand.labels)} yet; the job waits until one"
            " does"
        )
    return {}, warnings


def seats_of(cluster: Cluster) -> list[Seat]:
    """Distinct seats of the cluster's production nodes: a thousand equal nodes are one seat."""
    nodes = (
        Node.objects.filter(cluster=cluster)
        .exclude(role=Role.PROFILING)
        .annotate(gpus=Count("devices"))
    )
    read = nodes.values_list(
        "gpu_type__name",
        "gpus",
        "cores",
        "reserved_cores",
        "memory_gb",
        "reserved_memory_gb",
        "labels",
        "features",
    )
    return list(dict.fromkeys(_seat(*row) for row in read))


def _seat(
    gpu_type: str,
    gpus: int,
    cores: float,
    kept_cores: float,
    memory_gb: float,
    kept_gb: float,
    labels: list[str],
    features: list[str],
) -> Seat:
    return Seat(
        gpu_type,
        gpus,
        cores - kept_cores,
        memory_gb - kept_gb,
        frozenset(labels),
        frozenset(features),
    )
