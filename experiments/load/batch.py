"""Batch jobs of one core and no work, on two nodes of eight cores without GPUs."""

import time
from datetime import datetime
from typing import Any

import httpx
from django.conf import settings
from django.db import connection, connections
from django.utils import timezone

from clusters.models import Cluster, Node
from clusters.services.enrolment import issue_enrolment_token
from controlplane.operations.bootstrap import TEAM
from controlplane.operations.embedded.local import Local
from controlplane.operations.embedded.supervisor import Program, python
from experiments.load.agents import percentiles_ms
from experiments.load.scenarios import Figures, Stage
from jobs.lifecycle import ENDED
from jobs.models import Assignment, Job
from loadmaster import Client

HOUSE = "cpu"
NODES, CORES = 2, 8.0
PATIENCE_S = 600.0
STAGES = ("created_at", "accepted_at", "running_at", "ended_at")
TRUE = {
    "name": "true",
    "cluster": HOUSE,
    "team": TEAM,
    "command": ["true"],
    "cores": 1,
    "memory_gb": 0.01,
    "kind": "true",
}


def start_nodes(local: Local) -> None:
    """Start agents without GPUs in a cluster of their own, with the embedded system's intervals."""
    intervals = {"heartbeat_s": 2.0, "lease_s": 15.0, "grace_s": 8.0, "margin_s": 3.0}
    cluster = Cluster.objects.create(name=HOUSE, **intervals)
    for number in range(NODES):
        local.supervisor.start(_agent(local, cluster, f"cpu-{number}"))
    # Their machine has fewer cores; jobs that do nothing share them well.
    Node.objects.filter(cluster=cluster).update(cores=CORES, memory_gb=16.0)


def _agent(local: Local, cluster: Cluster, name: str) -> Program:
    folder = settings.LOADMASTER_HOME / "agents"
    token = folder / f"{name}.token"
    token.touch(mode=0o600)
    token.write_text(issue_enrolment_token(cluster, role="both"))
    argv = python("-m", "loadmaster.agent", "--server", local.url, "--name", name)
    argv += ["--state-dir", str(folder / name), "--token-file", str(token), "--stop-jobs-on-exit"]
    argv += ["--isolation", "none", "--checkpoints", str(settings.LOADMASTER_HOME / "checkpoints")]
    return Program(f"agent-{name}", argv, lambda: _is_in(name), stop_s=30)


def _is_in(name: str) -> bool:
    connections.close_all()
    return Node.objects.filter(name=name, epoch__gt=0).exists()


def single_jobs(stage: Stage, token: str, *, count: int) -> Figures:
    """Seconds until so many jobs, submitted in bulk, are done."""
    with Client(f"http://{stage.host}", token) as client:
        began = timezone.now()
        client.submit_many([{**TRUE, "name": f"single-{i}"} for i in range(count)])
    return _until_done(stage, "single-", began)


def an_array(stage: Stage, token: str, *, size: int) -> Figures:
    """Seconds until an array of that size is done."""
    with Client(f"http://{stage.host}", token) as client:
        began = timezone.now()
        client.submit({**TRUE, "name": f"array-{size}", "array": f"0-{size - 1}"})
    return _until_done(stage, f"array-{size}", began)


def one_after_another(stage: Stage, token: str, *, count: int) -> Figures:
    """Milliseconds of a submission by REST over one connection, each after the answer before."""
    took_s = []
    with httpx.Client(headers={"Authorization": f"Bearer {token}"}) as client:
        for number in range(count):
            began_s = time.perf_counter()
            body = {**TRUE, "name": f"next-{number}"}
            client.post(f"http://{stage.host}/api/v1/jobs/", json=body).raise_for_status()
            took_s.append(time.perf_counter() - began_s)
    return {"mean_ms": round(1000 * sum(took_s) / count, 1), **percentiles_ms(took_s)}


def fill_nodes(stage: Stage, token: str) -> None:
    """Hold all cores with sleeping jobs, so that later jobs wait."""
    with Client(f"http://{stage.host}", token) as client:
        for number in range(NODES):
            sleeps = {"name": f"sleep-{number}", "command": ["sleep", "600"], "cores": CORES}
            client.submit({**TRUE, **sleeps})
    running = Job.objects.filter(name__startswith="sleep-", state="running")
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s and running.count() < NODES:
        connection.close()
        stage.pause(0.25)


def first_starts(stage: Stage, token: str, *, count: int) -> Figures:
    """Milliseconds from a submission to a running process, of one job at a time."""
    took_s = []
    with Client(f"http://{stage.host}", token) as client:
        for number in range(count):
            stage.pause(1.0)
            client.submit({**TRUE, "name": f"alone-{number}"})
            (job,) = _ended(stage, f"alone-{number}")
            run = job.assignments.get()
            took_s.append(_s(run.running_at) - _s(job.submitted_at))
    return {**percentiles_ms(took_s), "count": count}


def _until_done(stage: Stage, prefix: str, began: datetime) -> Figures:
    jobs = _ended(stage, prefix)
    ended = [job.completed_at for job in jobs if job.completed_at is not None]
    return {
        "seconds": round((max(ended) - began).total_seconds(), 1),
        "completed": sum(job.state == "completed" for job in jobs),
        "jobs": len(jobs),
        **stages(prefix),
    }


def stages(prefix: str) -> Figures:
    """Mean seconds of a launch from one moment of its life to the next, and how many never ran.

    An offer that was taken back or rejected ends without having run; its job is launched again.
    """
    rows = list(Assignment.objects.filter(job__name__startswith=prefix).values_list(*STAGES))
    spans: Figures = {"never_ran": sum(row[STAGES.index("running_at")] is None for row in rows)}
    for place, name in enumerate(STAGES[1:], 1):
        pairs = [(row[place - 1], row[place]) for row in rows]
        found = [_s(after) - _s(before) for before, after in pairs if before and after]
        mean_s = sum(found) / max(1, len(found))
        spans[f"to_{name.removesuffix('_at')}_s"] = round(mean_s, 3)
    return spans


def _ended(stage: Stage, prefix: str) -> list[Job]:
    """Jobs of such names once all have ended; those of PATIENCE_S ago as they are."""
    rows, until_s = Job.objects.filter(name__startswith=prefix), time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s and rows.exclude(state__in=ENDED).exists():
        connection.close()
        stage.pause(0.25)
    return list(rows.order_by("pk"))


def _s(moment: Any) -> float:
    return float(moment.timestamp())
