"""A fleet in the database: enrolled nodes with sessions, a part of them at work."""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from clusters.models import Cluster, Device, GpuType, Node
from jobs.lifecycle import JobState
from jobs.models import Assignment, AssignmentSlot, Attempt, Job, Kind, Team
from loadmaster.protocol import AssignmentState

AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class SimulatedAgent:
    """An agent's node, token, epoch, devices, and (assignment, fence) of what it runs."""

    node: str
    token: str
    epoch: int
    devices: tuple[str, ...]
    held: tuple[tuple[str, int], ...] = ()


def make_fleet(
    cluster: Cluster, count: int, *, gpus: int = 4, busy: float = 0.1, prefix: str = "load"
) -> list[SimulatedAgent]:
    """`count` nodes of `gpus` GPUs in `cluster`, their sessions open (epoch 1); the fraction `busy`
    runs a job with a lease.

    Rows are written in bulk, past the services: this is what the services would have left behind.
    Names begin with `prefix`.
    """
    now = timezone.now()
    gpu_type, _ = GpuType.objects.get_or_create(
        name="V100", defaults={"tflops": 14.0, "memory_gb": 16.0, "idle_w": 30.0, "peak_w": 200.0}
    )
    tokens = [f"{prefix}-token-{number}-{uuid.uuid4().hex}" for number in range(count)]
    with transaction.atomic():
        nodes = [
            _node(cluster, gpu_type, f"{prefix}-{n:05d}", token, now)
            for n, token in enumerate(tokens)
        ]
        Node.objects.bulk_create(nodes, AT_ONCE)
        rows = [
            Device(node=node, uuid=f"GPU-{node.name}-{g}", memory_gb=16.0)
            for node in nodes
            for g in range(gpus)
        ]
        Device.objects.bulk_create(rows, AT_ONCE)
        running = (
            _run_jobs(cluster, nodes[: round(count * busy)], rows[:: max(gpus, 1)], now, prefix)
            if gpus
            else {}
        )
    return [
        SimulatedAgent(
            str(node.pk),
            token,
            node.epoch,
            tuple(f"GPU-{node.name}-{g}" for g in range(gpus)),
            ((str(running[node.pk].pk), running[node.pk].fence),) if node.pk in running else (),
        )
        for node, token in zip(nodes, tokens, strict=True)
    ]


def _node(cluster: Cluster, gpu_type: GpuType, name: str, token: str, now: datetime) -> Node:
    return Node(
        cluster=cluster,
        gpu_type=gpu_type,
        name=name,
        machine_id=name,
        boot_id="boot",
        cores=32.0,
        memory_gb=128.0,
        token_sha256=sha256(token.encode()).hexdigest(),
        epoch=1,
        session_secret_sha256=sha256(name.encode()).hexdigest(),
        session_expires_at=now + timedelta(seconds=cluster.lease_s),
        last_seen_at=now,
    )


def _run_jobs(
    cluster: Cluster, nodes: Sequence[Node], devices: Sequence[Device], now: datetime, prefix: str
) -> dict[uuid.UUID, Assignment]:
    """A running job on each of the nodes, on its first device; the assignments by node."""
    jobs = list(_jobs(cluster, len(nodes), prefix))
    Job.objects.bulk_create(jobs, AT_ONCE)
    attempts = Attempt.objects.bulk_create([Attempt(job=job, number=1) for job in jobs], AT_ONCE)
    lease = now + timedelta(seconds=cluster.lease_s)
    made = [
        Assignment(
            job=job,
            attempt=attempt,
            node=node,
            fence=1,
            state=AssignmentState.RUNNING,
            epoch=1,
            accepted_at=now,
            running_at=now,
            lease_expires_at=lease,
        )
        for job, attempt, node in zip(jobs, attempts, nodes, strict=True)
    ]
    Assignment.objects.bulk_create(made, AT_ONCE)
    slots = [
        AssignmentSlot(assignment=a, device=device)
        for a, device in zip(made, devices, strict=False)
    ]
    AssignmentSlot.objects.bulk_create(slots, AT_ONCE)
    return {assignment.node_id: assignment for assignment in made}


def _jobs(cluster: Cluster, count: int, prefix: str) -> Iterator[Job]:
    team, _ = Team.objects.get_or_create(name=f"{prefix}-team")
    user, _ = User.objects.get_or_create(username=f"{prefix}-user")
    kind, _ = Kind.objects.get_or_create(
        team=team, digest=sha256(prefix.encode()).hexdigest(), defaults={"name": prefix}
    )
    for number in range(count):
        yield Job(
            name=f"{prefix}-running-{number}",
            cluster=cluster,
            team=team,
            user=user,
            kind=kind,
            state=JobState.RUNNING,
            command=["python", "-c", "pass"],
            total_steps=10**9,
            fence=1,
        )
