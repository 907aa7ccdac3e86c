"""First tries of a new user: one job of a new kind, then a sweep of very short jobs."""

import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from itertools import pairwise

from django.db import connection
from django.utils import timezone

from clusters.models import GpuType
from controlplane.loop.models import Round
from controlplane.operations.bootstrap import CLUSTER, EMULATED_NODES, TEAM
from experiments.load.agents import percentiles_ms
from experiments.load.scenarios import Figures, Stage
from experiments.load.seed import know_kind
from jobs.lifecycle import ENDED
from jobs.models import Job, Team
from jobs.models.assignments import ProgressPoint
from loadmaster import Client

SEVEN_GPUS = (*EMULATED_NODES, replace(EMULATED_NODES[1], name="pascal-2"))
"""Nodes of the embedded system and one more of two GPUs."""

STEPPING = (
    "import loadmaster.training as t; [*t.steps(range(99), save=lambda p: p.touch(), load=str)]"
)
PATIENCE_S = 600.0


def first_steps(stage: Stage, token: str, *, count: int) -> Figures:
    """Seconds from submission to the first step of jobs of new kinds on an idle cluster."""
    took_s = []
    for number in range(count):
        command = ["python", "-c", STEPPING]
        _submit(stage, token, [_job(f"first-{number}", f"new-{number}", command, steps=99)])
        (job,) = _ended(stage, f"first-{number}")
        first = ProgressPoint.objects.filter(assignment__job=job, step__gte=1).order_by("at")[0]
        took_s.append((first.at - job.submitted_at).total_seconds())
        stage.pause(2.0)
    return {
        **percentiles_ms(took_s),
        "count": count,
    }


def burst(stage: Stage, token: str, *, count: int, kind: str, known: bool = False) -> Figures:
    """Seconds until `count` jobs of `true`, of one step each, are done on seven idle GPUs."""
    if known:
        know_kind(kind, Team.objects.get(name=TEAM), GpuType.objects.all(), gpus=2)
    stage.pause(2.0)
    since = timezone.now()
    _submit(stage, token, [_job(f"{kind}-{i}", kind, ["true"], steps=1) for i in range(count)])
    jobs = _ended(stage, kind)
    rounds = Round.objects.filter(cluster__name=CLUSTER, started_at__gte=since)
    ended = [job.completed_at for job in jobs if job.completed_at is not None]
    return {
        "seconds": round((max(ended) - since).total_seconds(), 1),
        "completed": sum(job.state == "completed" for job in jobs),
        "rounds": rounds.count(),
        "round_s": _mean_s(rounds.values_list("snapshot_s", "solve_s", "apply_s")),
        **_stages(jobs),
    }


def _job(name: str, kind: str, command: list[str], *, steps: int) -> dict[str, object]:
    return {
        "name": name,
        "cluster": CLUSTER,
        "team": TEAM,
        "kind": kind,
        "command": command,
        "steps": steps,
        "gpus": 1,
        "cores": 0.1,
        "memory_gb": 0.1,
    }


def _submit(stage: Stage, token: str, jobs: list[dict[str, object]]) -> None:
    with Client(f"http://{stage.host}", token) as client:
        client.submit_many(jobs)


def _ended(stage: Stage, prefix: str) -> list[Job]:
    """Jobs of that kind or name once all have ended; those of PATIENCE_S ago as they are."""
    rows, until_s = Job.objects.filter(name__startswith=prefix), time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s and rows.exclude(state__in=ENDED).exists():
        connection.close()
        stage.pause(0.25)
    return list(rows.order_by("pk"))


def _stages(jobs: list[Job]) -> dict[str, float]:
    """Mean seconds of a launch from one moment of its life to the next."""
    launches = [a for job in jobs for a in job.assignments.all()]
    moments = ("created_at", "accepted_at", "running_at", "ended_at")
    means = {}
    for before, after in pairwise(moments):
        pairs = [(getattr(a, before), getattr(a, after)) for a in launches]
        spans = [_s(later) - _s(earlier) for earlier, later in pairs if earlier and later]
        means[f"to_{after.removesuffix('_at')}_s"] = round(sum(spans) / max(1, len(spans)), 3)
    return {"launches": len(launches), **means}


def _mean_s(rounds: Iterable[tuple[float | None, ...]]) -> float:
    """Mean of the rounds' seconds: snapshot, decision and application."""
    sums = [sum(part or 0.0 for part in parts) for parts in rounds]
    return round(sum(sums) / max(1, len(sums)), 3)


def _s(moment: datetime) -> float:
    return moment.timestamp()
