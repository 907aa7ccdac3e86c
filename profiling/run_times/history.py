"""Run times of ended jobs in the database, and predictions from them.

Each group of like jobs has one row with its newest run times, so that reading them costs the same
after a million ends. An end writes its job's few groups in its own transaction.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from math import inf
from uuid import UUID

from django.utils import timezone

from clusters.models import Cluster
from jobs.forecasts.run_times import remember_run_time
from jobs.models import Assignment, Job
from loadmaster.protocol import AssignmentState, ReasonClass
from profiling.measurements import is_training
from profiling.models import PredictedRun, RunTimeGroup
from profiling.run_times.predictors import (
    ASKED,
    PREDICTORS,
    WALLTIME,
    Features,
    Key,
    Prediction,
    predict,
    with_newest,
)

MOST_NAMED = 10_000
"""Most groups that one query names."""

AT_WALLTIME = 0.9
"""Least part of its walltime after which a job that a limit ended has run for its walltime."""


def features_of(job: Job) -> Features:
    """Return the facts by which a job's run time is predicted."""
    asked = {name: float(getattr(job, name)) for name in ASKED}
    return Features.of(
        user=str(job.user_id),
        name=job.name,
        kind=str(job.kind_id),
        amounts={**asked, **{name: float(of) for name, of in job.resources.items()}},
        steps=0.0 if job.batch else float(job.total_steps),
        walltime_s=inf if job.walltime_s is None else job.walltime_s,
    )


def expected(cluster: Cluster, jobs: Iterable[Job]) -> dict[UUID, Prediction]:
    """Predict the run times of those of these jobs that are predicted, by primary key.

    One query for MOST_NAMED groups, none where the walltime is the prediction.
    """
    predictor = next(name for name in PREDICTORS if name == cluster.predictor)
    features = {job.pk: features_of(job) for job in jobs if job.has_no_speed}
    alike = set(features.values())  # all elements of an array, say
    keys = {key for job in alike for key in job.groups()} if predictor != WALLTIME else set()
    newest = _newest(cluster, sorted(keys))
    predictions = {job: predict(predictor, job, newest.get) for job in alike}
    return {pk: predictions[job] for pk, job in features.items()}


def run_ended(assignment: Assignment) -> None:
    """Learn the run time of a launch that ended by itself or at its walltime. Called once for it.

    Of two jobs of a new group that end at once, the group may keep one: the next end adds to that.
    """
    job = assignment.job
    run_s = _run_s(assignment)
    if run_s is None:
        return
    now = assignment.ended_at or timezone.now()

    # 1. All jobs: intervals for jobs of unknown run time, which people read and no policy.
    remember_run_time(job, _earlier_s(assignment) + run_s, now)
    if not job.has_no_speed:
        return

    # 2. Jobs without a speed: the error of the prediction, and predictions of like jobs.
    if assignment.predicted_source and assignment.predicted_run_s is not None:
        PredictedRun.objects.create(
            job=job,
            team_id=job.team_id,
            user_id=job.user_id,
            source=assignment.predicted_source,
            predicted_s=assignment.predicted_run_s,
            run_s=run_s,
            ended_at=now,
        )
    if not job.preemptible or assignment.fence == 1:  # else an earlier launch did a part of it
        _learn(job, run_s, now)


def _learn(job: Job, run_s: float, now: datetime) -> None:
    keys = [digest(key) for key in features_of(job).groups()]
    rows = RunTimeGroup.objects.filter(cluster=job.cluster_id, key__in=keys)
    locked = rows.select_for_update().order_by("key").values_list("key", "newest_s")
    before = dict(locked)
    RunTimeGroup.objects.bulk_create(
        [
            RunTimeGroup(
                cluster_id=job.cluster_id,
                key=key,
                newest_s=with_newest(run_s, before.get(key, ())),
                updated_at=now,
            )
            for key in sorted(keys)
        ],
        update_conflicts=True,
        unique_fields=["cluster", "key"],
        update_fields=["newest_s", "updated_at"],
    )


def _run_s(assignment: Assignment) -> float | None:
    """Return how long a launch ran; None if its end says nothing of that."""
    began, ended = assignment.running_at or assignment.accepted_at, assignment.ended_at
    if began is None or ended is None or not is_training(assignment):
        return None
    run_s = max(0.0, (ended - began).total_seconds())
    if assignment.state == AssignmentState.SUCCEEDED and assignment.desired == "run":
        return run_s
    walltime_s, limited = assignment.job.walltime_s, assignment.reason_class == ReasonClass.LIMIT
    at_walltime = walltime_s is not None and run_s >= AT_WALLTIME * walltime_s
    return run_s if limited and at_walltime else None


def _earlier_s(assignment: Assignment) -> float:
    """Return how long earlier launches of a job ran that did a part of its work, in seconds."""
    job = assignment.job
    if not job.preemptible or assignment.fence == 1:
        return 0.0
    earlier = job.assignments.filter(purpose=assignment.purpose, rank=0, fence__lt=assignment.fence)
    ran_s = 0.0
    for began, ended in earlier.values_list("running_at", "ended_at"):
        if began is not None and ended is not None:
            ran_s += max(0.0, (ended - began).total_seconds())
    return ran_s


def _newest(cluster: Cluster, keys: Sequence[Key]) -> dict[Key, Sequence[float]]:
    """Return the newest run times of those of these groups that have any."""
    key_of = {digest(key): key for key in keys}
    names, found = list(key_of), dict[Key, Sequence[float]]()
    for first in range(0, len(names), MOST_NAMED):
        part = names[first : first + MOST_NAMED]
        rows = RunTimeGroup.objects.filter(cluster=cluster, key__in=part)
        found |= {key_of[key]: newest_s for key, newest_s in rows.values_list("key", "newest_s")}
    return found


def digest(key: Key) -> str:
    """Return the 32 hexadecimal digits by which a group is stored."""
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
