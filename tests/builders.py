"""Builders of database rows: every argument has a sensible default, so that a test names only what
it is about.
"""

from datetime import datetime, timedelta
from decimal import Decimal
from itertools import count
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone

from clusters.models import Cluster, Device, EnergyTariff, GpuType, Node, PueRecord
from jobs.models import Job, Kind, Membership, Team, TeamRole
from profiling.models import Profile

_numbers = count(1)
_job_numbers = count(60_000_000)
"""Numbers far from those that submissions count."""


def a_cluster(**values: Any) -> Cluster:
    """A cluster with a flat tariff of 0.172 EUR/kWh and a PUE of 1.33 (ANDREAS' figures)."""
    cluster = Cluster.objects.create(**{"name": f"cluster-{next(_numbers)}", **values})
    long_ago = timezone.now() - timedelta(days=365)
    EnergyTariff.objects.create(
        cluster=cluster, effective_from=long_ago, default_price_per_kwh=Decimal("0.172")
    )
    PueRecord.objects.create(cluster=cluster, effective_from=long_ago, pue=1.33)
    return cluster


def a_gpu_type(name: str = "V100", **values: Any) -> GpuType:
    """The GPU type of that name; V100's figures unless given."""
    defaults = {"tflops": 15.7, "memory_gb": 16.0, "idle_w": 30.0, "peak_w": 200.0, **values}
    return GpuType.objects.get_or_create(name=name, defaults=defaults)[0]


def a_node(
    cluster: Cluster, *, gpu_type: str | GpuType = "V100", gpus: int = 2, **values: Any
) -> Node:
    """A ready production node with that many healthy devices (of no type if none), whose agent has
    a session that outlasts any test.
    """
    kind = a_gpu_type(gpu_type) if isinstance(gpu_type, str) else gpu_type
    name = f"node-{next(_numbers)}"
    defaults = {
        "name": name,
        "cores": 32.0,
        "memory_gb": 128.0,
        "machine_id": name,
        "token_sha256": f"{next(_numbers):064d}",
    }
    heard = {
        "last_seen_at": timezone.now(),
        "session_expires_at": timezone.now() + timedelta(days=3650),
    }
    of_type = kind if gpus else None
    node = Node.objects.create(cluster=cluster, gpu_type=of_type, **{**defaults, **heard, **values})
    for index in range(gpus):
        Device.objects.create(node=node, uuid=f"GPU-{node.name}-{index}", memory_gb=kind.memory_gb)
    return node


def type_of(node: Node) -> GpuType:
    """The type of a node's GPUs."""
    assert node.gpu_type is not None
    return node.gpu_type


def a_user(
    name: str = "",
    *,
    operator: bool = False,
    team: Team | None = None,
    role: TeamRole = TeamRole.MEMBER,
    password: str = "a long password",
) -> User:
    """A person, in a team with this role if one is given; operators are staff."""
    user = User.objects.create_user(
        name or f"user-{next(_numbers)}", password=password, is_staff=operator
    )
    if team is not None:
        Membership.objects.create(team=team, user=user, role=role)
    return user


def a_team(name: str = "", **values: Any) -> Team:
    """A team."""
    return Team.objects.create(name=name or f"team-{next(_numbers)}", **values)


def a_kind(
    name: str = "",
    *,
    steps_per_s: dict[tuple[str, int], float] | None = None,
    source: str = "measured",
    **values: Any,
) -> Kind:
    """A kind whose throughput is known on the given (GPU type, GPUs). Its first job's team gets it,
    unless it has a team.
    """
    number = next(_numbers)
    defaults = {
        "digest": f"{number:064x}",
        "name": name or f"kind-{number}",
        "reports_steps": True if steps_per_s and source == "measured" else None,
    }
    kind = Kind.objects.create(**{**defaults, **values})
    for (gpu_type, gpus), speed in (steps_per_s or {}).items():
        Profile.objects.create(
            kind=kind, gpu_type=a_gpu_type(gpu_type), gpus=gpus, steps_per_s=speed, source=source
        )
    return kind


def a_job(
    cluster: Cluster,
    *,
    team: Team | None = None,
    user: User | None = None,
    kind: Kind | None = None,
    **values: Any,
) -> Job:
    """A queued job of 100 steps on one GPU, whose kind runs 1 step/s on a V100 unless a kind is
    given.
    """
    team = team or a_team()
    kind = kind or a_kind(steps_per_s={("V100", 1): 1.0, ("V100", 2): 1.8})
    if kind.team_id is None:
        kind.team = team
        kind.save(update_fields=["team"])
    defaults: dict[str, Any] = {
        "name": f"job-{next(_numbers)}",
        "number": next(_job_numbers),
        "team": team,
        "user": user or a_user(team=team),
        "kind": kind,
        "command": ["python", "-c", "pass"],
        "total_steps": 100,
    }
    return Job.objects.create(cluster=cluster, **{**defaults, **values})


def at(seconds: float) -> datetime:
    """So many seconds from now."""
    return timezone.now() + timedelta(seconds=seconds)
