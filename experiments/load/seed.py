"""A large cluster's rows, written in bulk: users with tokens, nodes, jobs in every state,
placements, a past.

What is made is what the pages and rounds of such a cluster would meet: jobs of several teams and
some dozen measured kinds, of which some run, most wait and the rest are over. Everything follows
from the seed of the random numbers, but for ids and tokens.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone
from knox.models import get_token_model

from clusters.models import Cluster, Device, GpuType, Node
from jobs.kinds import digest
from jobs.lifecycle import JobState
from jobs.models import Assignment, AssignmentSlot, Job, JobEvent, Kind, Membership, Team
from loadmaster.features import SHARED
from profiling.models import Profile

TEAMS, KINDS, GPUS_A_NODE, BATCH = 8, 24, 4, 1000
ROUNDS_BEFORE = 10_000_000
"""Rounds that a cluster has had; `history` writes some of them."""

TYPES = (("H100", 50.0, 350.0), ("V100", 40.0, 250.0), ("T4", 10.0, 70.0))
"""(name, watts at rest, watts at work)."""


@dataclass(frozen=True, slots=True)
class Seeded:
    """Names, a job to look at, and tokens of the teams' users and of an operator."""

    cluster: str
    teams: tuple[str, ...]
    tokens: tuple[str, ...]
    operator_token: str
    running_job: str
    waiting_job: str


def seed(
    *, jobs: int, nodes: int, queued: float = 0.6, busy: float = 0.9, cluster: str = "load"
) -> Seeded:
    """Write nodes and jobs: a share `busy` of GPUs is held, `queued` of other jobs waits."""
    rng, now = random.Random(1), timezone.now()  # noqa: S311  # made-up jobs, no secrets
    with transaction.atomic():
        house = Cluster.objects.create(
            name=cluster,
            policy="fifo",
            period_s=300.0,
            profiling_steps=10,
            round_number=ROUNDS_BEFORE,
        )
        users, teams, operator = _people()
        machines = _nodes(house, nodes, now)
        rows = list(_jobs(house, teams, users, _kinds(teams), jobs, rng, now))
        running = rows[: min(len(rows) // 2, int(busy * nodes * GPUS_A_NODE))]
        _give_states(rows, len(running), queued, rng, now)
        _in_batches(Job, rows)
        _in_batches(
            JobEvent,
            (
                JobEvent(job=j, event="submitted", from_state="queued", to_state="queued")
                for j in rows
            ),
        )
        _place(running, machines, now)
        tokens = [get_token_model().objects.create(user)[1] for user in users]
        operator_token = get_token_model().objects.create(operator)[1]
    shown = [str(j.pk) for j in rows] or [""]
    waits = (
        -(-len(running) // TEAMS) * TEAMS % len(shown)
    )  # the first team's, as is the first that runs
    return Seeded(
        house.name,
        tuple(t.name for t in teams),
        tuple(tokens),
        operator_token,
        shown[0],
        shown[waits],
    )


def _people() -> tuple[list[User], list[Team], User]:
    teams = Team.objects.bulk_create(Team(name=f"team-{i}") for i in range(TEAMS))
    users = [User(username=f"load-{i}", password="!") for i in range(TEAMS)]  # noqa: S106  # no one
    users = User.objects.bulk_create(users)
    Membership.objects.bulk_create(
        Membership(team=t, user=u) for t, u in zip(teams, users, strict=True)
    )
    operator = User(username="load-operator", is_staff=True)
    operator.set_unusable_password()
    operator.save()
    return users, teams, operator


def _nodes(cluster: Cluster, count: int, now: datetime) -> list[tuple[Node, list[Device]]]:
    types = [
        GpuType.objects.get_or_create(
            name=name, defaults={"idle_w": idle, "peak_w": peak, "memory_gb": 32.0, "tflops": peak}
        )[0]
        for name, idle, peak in TYPES
    ]
    nodes = [
        Node(
            cluster=cluster,
            name=f"node-{i:04}",
            gpu_type=types[i % len(types)],
            cores=64.0,
            memory_gb=512.0,
            machine_id=f"load-{i}",
            token_sha256=f"{i:064x}",
            last_seen_at=now + timedelta(days=1),
            epoch=1,
            session_expires_at=now + timedelta(days=1),
            features=["process", SHARED],
        )
        for i in range(count)
    ]
    devices = [
        [Device(node=n, uuid=f"GPU-{n.name}-{g}", memory_gb=32.0) for g in range(GPUS_A_NODE)]
        for n in nodes
    ]
    _in_batches(Node, nodes)
    _in_batches(Device, (d for of_node in devices for d in of_node))
    return list(zip(nodes, devices, strict=True))


def know_kind(name: str, team: Team, types: Iterable[GpuType], gpus: int = GPUS_A_NODE) -> Kind:
    """A team's kind measured everywhere, so that nothing waits for a profile."""
    kind = Kind.objects.create(name=name, team=team, digest=digest(name))
    Profile.objects.bulk_create(
        Profile(
            kind=kind,
            gpu_type=t,
            gpus=g,
            steps_per_s=(1 + i) * g**0.9,
            source="measured",
            samples=3,
        )
        for i, t in enumerate(types)
        for g in range(1, gpus + 1)
    )
    return kind


def _kinds(teams: Sequence[Team]) -> list[Kind]:
    """As many kinds of each team, in the order of its jobs."""
    types = list(GpuType.objects.filter(name__in=[t for t, _, _ in TYPES]))
    return [know_kind(f"kind-{i}", teams[i % len(teams)], types) for i in range(KINDS)]


def _jobs(
    cluster: Cluster,
    teams: Sequence[Team],
    users: Sequence[User],
    kinds: Sequence[Kind],
    count: int,
    rng: random.Random,
    now: datetime,
) -> Iterator[Job]:
    for i in range(count):
        who = i % len(teams)
        steps = rng.randrange(1_000, 1_000_000)
        yield Job(
            name=f"train-{i}",
            cluster=cluster,
            team=teams[who],
            user=users[who],
            kind=kinds[i % len(kinds)],
            command=["python", "train.py", "--width", str(i % 64)],
            steps_per_epoch=steps,
            total_steps=steps,
            gpus_min=1,
            gpus_max=rng.choice((1, 1, 2, 4)),
            priority=rng.choice((0, 0, 0, 1)),
            due_at=now + timedelta(hours=rng.uniform(1, 200)) if i % 3 else None,
        )


def _give_states(
    rows: Sequence[Job], running: int, queued: float, rng: random.Random, now: datetime
) -> None:
    waiting = running + int(queued * (len(rows) - running))
    for i, job in enumerate(rows):
        if i < running:
            job.state, job.fence, job.started_at, job.steps_done = (
                JobState.RUNNING,
                1,
                now - timedelta(hours=1),
                job.total_steps // 3,
            )
        elif i < waiting:
            job.state, job.waiting_code = JobState.QUEUED, "no_capacity"
        else:
            job.state = JobState.FAILED if i % 10 == 0 else JobState.COMPLETED
            job.completed_at = now - timedelta(hours=rng.uniform(0, 24 * 30))
            job.steps_done = job.total_steps


def _place(
    jobs: Sequence[Job], machines: Sequence[tuple[Node, Sequence[Device]]], now: datetime
) -> None:
    """Place running jobs on a GPU each, node by node, with a past placement on each."""
    seats = ((node, device) for node, devices in machines for device in devices)
    taken = list(zip(jobs, seats, strict=False))
    leased = {
        "epoch": 1,
        "lease_expires_at": now + timedelta(days=1),
        "accepted_at": now,
        "running_at": now,
    }
    live = [
        Assignment(
            job=j,
            node=n,
            fence=1,
            state="running",
            steps_per_s=2.0,
            predicted_run_s=3600.0,
            **leased,
        )
        for j, (n, _) in taken
    ]
    past = [
        Assignment(
            job=j,
            node=n,
            fence=0,
            state="preempted",
            running_at=now - timedelta(hours=2),
            ended_at=now - timedelta(hours=1),
        )
        for j, (n, _) in taken
    ]
    _in_batches(Assignment, [*live, *past])
    slots = [
        AssignmentSlot(assignment=a, device=d, live=True)
        for a, (_, (_, d)) in zip(live, taken, strict=True)
    ]
    slots += [
        AssignmentSlot(assignment=a, device=d, live=False)
        for a, (_, (_, d)) in zip(past, taken, strict=True)
    ]
    _in_batches(AssignmentSlot, slots)


def _in_batches(model: Any, rows: Any) -> None:
    """Bulk-create, some at a time: one statement for all would hold every row twice."""
    left = iter(rows)
    while batch := list(islice(left, BATCH)):
        model.objects.bulk_create(batch)
