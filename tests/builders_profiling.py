"""Builders of what the profiler meets: profiling nodes, jobs of unknown kinds, launches with their
progress and ends.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db.models import F
from django.utils import timezone

from clusters.models import Cluster, Node
from controlplane.execution.services.stops import stop_profiling
from jobs.models import Assignment, Job, Kind, ProgressPoint, UsagePoint
from loadmaster.protocol import AssignmentState
from policies.contract.snapshot import Purpose
from profiling import reconciler
from profiling.models import ProfileRun
from profiling.pages.rows import KindsTable, kinds_table, page_of_kinds
from profiling.services import profile_run_ended, profile_run_started, request_profiles
from tests.builders import a_job, a_kind, a_node
from tests.builders_agents import Attentive


def a_profiling_node(
    cluster: Cluster, gpu_type: str = "V100", gpus: int = 2, **values: Any
) -> Node:
    """A ready node of role profiling."""
    return a_node(cluster, gpu_type=gpu_type, gpus=gpus, **{"role": "profiling", **values})


def a_new_job(cluster: Cluster, kind: Kind | None = None, *, gpus: int = 1, **values: Any) -> Job:
    """A queued job of 1 to `gpus` GPUs that asks for dedicated runs, of a kind of which nothing is
    known unless one is given.
    """
    dedicated = {"profiling": "dedicated", "repeatable": True}
    return a_job(cluster, kind=kind or a_kind(), **{"gpus_max": gpus, **dedicated, **values})


def a_profiled_job(
    cluster: Cluster, kind: Kind | None = None, *, gpus: int = 1, **values: Any
) -> Job:
    """Such a job after its submission: PROFILING where anything can be measured."""
    job = a_new_job(cluster, kind, gpus=gpus, **values)
    request_profiles([job])
    return job


def a_launch(
    job: Job, node: Node, *, gpus: int = 1, steps_per_s: float = 2.0, steps: int = 20, **values: Any
) -> Assignment:
    """An assignment of the job with the job's next fence, its progress told after every step at
    that pace.
    """
    Job.objects.filter(pk=job.pk).update(fence=F("fence") + 1)
    job.refresh_from_db(fields=["fence"])
    began = timezone.now() - timedelta(seconds=steps / steps_per_s + 1)
    defaults = {
        "state": AssignmentState.RUNNING, "steps_done": steps, "setup_s": 1.0, "accepted_at": began,
        "running_at": began,
    }  # fmt: skip
    launch = Assignment.objects.create(
        job=job, node=node, gpus=gpus, fence=job.fence, **{**defaults, **values}
    )
    tell_progress(launch, [i / steps_per_s for i in range(1, steps + 1)])
    return launch


def tell_progress(launch: Assignment, elapsed_s: Sequence[float]) -> None:
    """Progress samples: step i of the launch ended at elapsed_s[i - 1] seconds."""
    points = [
        ProgressPoint(
            assignment=launch,
            at=timezone.now(),
            event="progress",
            step=i,
            launch_steps=i,
            elapsed_s=s,
        )
        for i, s in enumerate(elapsed_s, 1)
    ]
    ProgressPoint.objects.bulk_create(points)


def tell_usage(
    launch: Assignment, *, cores: float, memory_gb: float, watts: float, source: str = "measured"
) -> None:
    """One sample of usage."""
    UsagePoint.objects.create(
        assignment=launch, at=timezone.now(), cores=cores, memory_gb=memory_gb, gpu_fraction=0.5,
        gpu_power_w=watts,
        power_source=source,
    )  # fmt: skip


def run_of(job: Job, gpu_type: str = "V100", gpus: int = 1) -> ProfileRun:
    """The job's profile run of that configuration."""
    return ProfileRun.objects.get(job=job, gpu_type__name=gpu_type, gpus=gpus)


def place(run: ProfileRun, node: Node, **values: Any) -> Assignment:
    """Launch a profile run on a node, as applying a plan does."""
    job = Job.objects.get(pk=run.job_id)
    profile_run_started(job, run.copy)
    return a_launch(
        job, node, gpus=run.gpus, purpose=Purpose.PROFILING, copy=run.copy,
        steps_quota=run.steps, **values,
    )  # fmt: skip


def end(
    launch: Assignment, state: AssignmentState = AssignmentState.SUCCEEDED, **values: Any
) -> Assignment:
    """End a launch without telling the profiler."""
    for name, value in {"state": state, "ended_at": timezone.now(), **values}.items():
        setattr(launch, name, value)
    launch.save()
    return launch


def measure(run: ProfileRun, node: Node, steps_per_s: float = 2.0) -> None:
    """A profile run from its launch to its success."""
    profile_run_ended(end(place(run, node, steps_per_s=steps_per_s)))


def crash(
    run: ProfileRun,
    node: Node,
    *,
    reason: str = "no such file",
    reason_class: str = "user",
    code: int = 2,
) -> None:
    """A profile run from its launch to a failure before its first step."""
    launch = place(run, node, steps=0)
    profile_run_ended(
        end(
            launch, AssignmentState.FAILED, exit_code=code, reason=reason, reason_class=reason_class
        )
    )


def state_of(job: Job) -> str:
    """The job's state in the database."""
    return Job.objects.get(pk=job.pk).state


def reconcile_profiles(now: datetime) -> None:
    """A pass of the profiler that stops what has measured enough, as the clock's task does."""
    reconciler.reconcile_profiles(now, stop_profiling, Attentive(now=now))


def the_table(user: User) -> KindsTable:
    """The first page of the table of kinds."""
    return kinds_table(user, page_of_kinds(user, "", None).object_list)
