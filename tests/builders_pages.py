"""Builders of what pages show: a small cluster at work, with a past."""

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from math import exp
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone

from clusters.models import Cluster, Device, GpuType, Node
from controlplane.loop.models import Round
from jobs.models import (
    Assignment,
    AssignmentSlot,
    Attempt,
    Forecast,
    Job,
    JobEvent,
    LogChunk,
    ProgressPoint,
    Team,
)
from tests.builders import a_cluster, a_gpu_type, a_job, a_kind, a_node, a_team, a_user, at


def an_assignment(
    job: Job, node: Node, *, gpus: int = 1, first: int = 0, live: bool = True, **values: Any
) -> Assignment:
    """A placement of the job on GPUs `first`.. of the node; running for a minute unless told
    otherwise.
    """
    started = values.pop("started", timezone.now() - timedelta(seconds=60))
    fence = values.pop("fence", job.fence + 1)
    defaults: dict[str, Any] = {
        "gpus": gpus, "fence": fence, "state": "running" if live else "preempted",
        "accepted_at": started, "running_at": started,
        "steps_per_s": 2.0, "predicted_steps_per_s": 2.1, "predicted_run_s": 600.0,
        "predicted_energy_cost": Decimal("0.0042"),
    }  # fmt: skip
    assignment = Assignment.objects.create(job=job, node=node, **{**defaults, **values})
    Assignment.objects.filter(pk=assignment.pk).update(created_at=started)
    for device in list(node.devices.order_by("uuid"))[first : first + gpus]:
        AssignmentSlot.objects.create(assignment=assignment, device=device, live=live)
    Job.objects.filter(pk=job.pk).update(fence=max(job.fence, fence))
    job.refresh_from_db()
    return assignment


def a_forecast(job: Job, start_s: float = 400.0, **values: Any) -> Forecast:
    """The start that is expected of a waiting job, so many seconds from now."""
    node = values.pop("node", "")
    given: dict[str, Any] = {
        "fence": job.fence, "first": not job.forecasts.exists(), "round": 1, "made_at": at(0),
        "planned_at": at(start_s), "low_at": at(0.5 * start_s), "start_at": at(start_s),
        "high_at": at(2 * start_s), "end_at": at(start_s + 600),
        "nodes": [node] if node else [], "gpus": 1,
    }  # fmt: skip
    return Forecast.objects.create(job=job, **{**given, **values})


def a_log(
    assignment: Assignment, text: str, *, stream: str = "stdout", offset: int = 0
) -> LogChunk:
    """A piece of its output."""
    data = text.encode()
    return LogChunk.objects.create(
        assignment=assignment, stream=stream, offset=offset, size=len(data), data=data
    )


def losses(
    assignment: Assignment, *, count: int = 60, every: int = 10, first_step: int = 0
) -> None:
    """A falling loss, sampled `count` times."""
    start = timezone.now() - timedelta(seconds=count)
    ProgressPoint.objects.bulk_create(
        ProgressPoint(
            assignment=assignment,
            at=start + timedelta(seconds=i),
            event="progress",
            step=first_step + i * every,
            launch_steps=i * every,
            elapsed_s=float(i),
            steps_per_s=2.0,
            loss=0.15 + 2.1 * exp(-(first_step / every + i) / 18) + 0.04 * ((i * 7) % 5 - 2) / 2,
        )
        for i in range(count)
    )


@dataclass(frozen=True, slots=True)
class Demo:
    """What `a_busy_cluster` has made."""

    cluster: Cluster
    team: Team
    user: User
    operator: User
    running: Job
    waiting: Job
    nodes: tuple[Node, ...]
    round: Round


def a_busy_cluster() -> Demo:
    """Three nodes of three emulated GPU types, jobs in most states, a migration, a log, and some
    rounds.
    """
    cluster = a_cluster(name="demo")
    team = a_team("vision")
    user, operator = a_user("ada", team=team), a_user("grace", operator=True)
    GpuType.objects.filter(name="V100").delete()
    for name, tflops, watts in (("A100", 19.5, 400.0), ("P100", 9.3, 250.0), ("V100", 15.7, 300.0)):
        a_gpu_type(name, tflops=tflops, memory_gb=16.0, idle_w=40.0, peak_w=watts, emulated=True)
    nodes = (
        a_node(cluster, gpu_type="A100", gpus=2, name="alpha", emulated=True),
        a_node(cluster, gpu_type="V100", gpus=4, name="bravo", emulated=True),
        a_node(cluster, gpu_type="P100", gpus=2, name="charlie", emulated=True, role="profiling"),
    )
    speeds = {("A100", 1): 5.2, ("A100", 2): 9.7, ("V100", 1): 3.1, ("V100", 2): 5.6}
    convnet, dense = (
        a_kind("convnet digits", steps_per_s=speeds),
        a_kind("dense diabetes", steps_per_s={("V100", 1): 11.0}),
    )
    common: dict[str, Any] = {"team": team, "user": user, "tardiness_weight": 0.002}
    running = _a_running_job(cluster, nodes, kind=convnet, **common)
    other = a_job(
        cluster,
        name="dense-diabetes",
        kind=dense,
        state="running",
        total_steps=5000,
        steps_done=3900,
        due_at=at(-130),
        **common,
    )
    an_assignment(other, nodes[1], gpus=2, started=at(-500))
    secret = a_job(
        cluster, name="not-for-ada", kind=dense, state="running", total_steps=900, steps_done=200
    )
    an_assignment(secret, nodes[1], first=2, started=at(-200))
    detail = {
        "nodes": [str(nodes[0].pk)],
        "jobs": [str(running.pk)],
    }
    waiting = a_job(
        cluster, name="recurrent-sequences", kind=convnet, total_steps=4000, due_at=at(3000),
        waiting_code="no_capacity",
        waiting_detail=detail, **common,
    )  # fmt: skip
    a_forecast(waiting, node="bravo", gpus=2)
    a_job(
        cluster,
        name="wide-convnet",
        kind=a_kind("wide"),
        state="profiling",
        total_steps=800,
        **common,
    )
    a_job(cluster, name="night-run", kind=dense, state="held", total_steps=90_000, **common)
    a_job(
        cluster,
        name="baseline",
        kind=dense,
        state="completed",
        total_steps=500,
        steps_done=500,
        completed_at=at(-900),
        due_at=at(-600),
        **common,
    )
    a_job(
        cluster,
        name="broken-paths",
        kind=dense,
        state="failed",
        failure_reason="exit code 1: FileNotFoundError: data/train.npz",
        **common,
    )
    _devices_at_work(nodes)
    return Demo(
        cluster,
        team,
        user,
        operator,
        running,
        waiting,
        nodes,
        _rounds(cluster, running, waiting, nodes),
    )


def _a_running_job(cluster: Cluster, nodes: tuple[Node, ...], **values: Any) -> Job:
    job = a_job(
        cluster, name="convnet-digits-large", state="running", total_steps=2400, steps_done=1180,
        checkpoint_steps=1150, gpus_max=2,
        due_at=at(760), first_loss=2.24, last_loss=0.31, started_at=at(-1300), **values,
    )  # fmt: skip
    attempt = Attempt.objects.create(job=job, number=1)
    first = an_assignment(
        job, nodes[1], live=False, started=at(-1300), ended_at=at(-520), attempt=attempt,
        steps_done=600,
        reason="a job that is due sooner", energy_cost=Decimal("0.00312"), power_source="modelled",
    )  # fmt: skip
    second = an_assignment(
        job,
        nodes[0],
        gpus=2,
        started=at(-480),
        attempt=attempt,
        start_steps=600,
        steps_done=1180,
        predicted_run_s=1000.0,
    )
    losses(first, count=60)
    losses(second, count=58, first_step=600)
    a_log(first, "epoch 1 of 12\n")
    a_log(
        second,
        "".join(f"step {s} loss {2.1 * exp(-s / 300) + 0.15:.4f}\n" for s in range(600, 1180, 20)),
    )
    a_log(second, "warning: the learning rate fell below 1e-5\n", stream="stderr")
    events: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("submitted", "ada", {}),
        ("place", "", {"round": 11}),
        ("run", "", {}),
        ("preempt", "", {"why": "a job that is due sooner"}),
        ("stopped", "", {"steps": 600}),
        ("place", "", {"round": 12}),
        ("run", "", {}),
    )
    for event, actor, data in events:
        JobEvent.objects.create(job=job, event=event, actor=actor, data=data)
    return job


def _devices_at_work(nodes: tuple[Node, ...]) -> None:
    for node in nodes:
        for index, device in enumerate(node.devices.order_by("uuid")):
            busy = device.slots_held.filter(live=True).exists()
            Device.objects.filter(pk=device.pk).update(
                emulated=True,
                gpu_fraction=0.83 - 0.06 * index if busy else 0.0,
                power_w=260.0 if busy else 41.0,
                power_source="modelled",
            )


def _rounds(cluster: Cluster, running: Job, waiting: Job, nodes: tuple[Node, ...]) -> Round:
    def seat(node: Node, count: int) -> list[dict[str, Any]]:
        return [
            {
                "node": str(node.pk),
                "devices": list(
                    node.devices.order_by("uuid").values_list("uuid", flat=True)[:count]
                ),
            }
        ]

    changes = [
        {
            "change": "migrate",
            "job": str(running.pk),
            "from": seat(nodes[1], 1),
            "to": seat(nodes[0], 2),
        },
        {"change": "start", "job": str(waiting.pk), "to": seat(nodes[1], 2)},
    ]
    rejected = [
        {
            "job": str(waiting.pk),
            "purpose": "training",
            "copy": 0,
            "code": "deferred",
            "detail": "its GPUs are being given up",
        }
    ]
    plan = {
        "placements": [{"job": str(running.pk), "predicted_run_s": 420.0}],
        "waiting": [{"job": str(waiting.pk), "code": "no_capacity"}],
    }
    runs_expected = [[str(running.pk), "training", 0, 420.0]]
    common: dict[str, Any] = {
        "cluster": cluster,
        "policy": "randomized_greedy",
        "parameters": {"iterations": 1000, "mode": "paper"},
        "seed": 1,
    }
    done: dict[str, Any] = {
        "ended_at": timezone.now(),
        "snapshot_s": 0.008,
        "solve_s": 0.021,
        "apply_s": 0.014,
    }
    Round.objects.create(
        number=11, reasons=["submission"], status="applied", objective=0.0131, **done, **common
    )
    Round.objects.create(
        number=12,
        reasons=["periodic"],
        status="kept",
        message="the solver ran out of time (60 s)",
        **common,
    )
    return Round.objects.create(
        number=13, reasons=["completion", "submission"], status="partial", objective=0.01184,
        cost_rate_per_h=0.21, changes=changes,
        rejected=rejected, plan=plan, runs_expected=runs_expected, plan_status="heuristic",
        snapshot_sha256="5b" * 32,
        plan_sha256="c4" * 32,
        tariff=cluster.tariffs.first(), pue=cluster.pues.first(), **done, **common,
    )  # fmt: skip
