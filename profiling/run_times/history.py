"""Run times of ended jobs in the database, and predictions from them.

Each group of similar jobs has one row with its newest run times, so that reading costs the same
after a million ends. The end of a job writes the job's few groups, in its own transaction.
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

GROUPS_A_QUERY = 10_000
"""Most groups that one query names."""

AT_WALLTIME = 0.9
"""Least part of its walltime after which a job that a limit ended has run for its walltime."""


def features_of(job: Job) -> Features:
    """Return the facts by which a job's run time is predicted."""
    amounts = {name: float(getattr(job, name)) for name in ASKED}
    for resource, amount in job.resources.items():
        amounts[resource] = float(amount)
    return Features.of(
        user=str(job.user_id),
        name=job.name,
        kind=str(job.kind_id),
        amounts=amounts,
        steps=0.0 if job.batch else float(job.total_steps),
        walltime_s=inf if job.walltime_s is None else job.walltime_s,
    )


def expected(cluster: Cluster, jobs: Iterable[Job]) -> dict[UUID, Prediction]:
    """Return by primary key the predicted run times of those of the jobs that have no speed.

    There is one query for GROUPS_A_QUERY groups, none if the walltime is the prediction.
    """
    # 1. The features of the jobs: all elements of an array have the same.
    predictor = next(name for name in PREDICTORS if name == cluster.predictor)
    features = {job.pk: features_of(job) for job in jobs if job.has_no_speed}
    distinct = set(features.values())

    # 2. The run times of all their groups.
    groups: set[Key] = set()
    if predictor != WALLTIME:
        for job_features in distinct:
            groups.update(job_features.groups())
    newest = _newest(cluster, sorted(groups))

    # 3. A prediction for each.
    predictions = {}
    for job_features in distinct:
        predictions[job_features] = predict(predictor, job_features, newest.get)
    return {pk: predictions[job_features] for pk, job_features in features.items()}


def run_ended(assignment: Assignment) -> None:
    """Learn the run time of a launch that ended by itself or at its walltime. Call it once.

    If two jobs of a new group end at the same time, the group may keep one of the run times.
    """
    job = assignment.job
    run_s = _run_s(assignment)
    if run_s is None:
        return
    now = assignment.ended_at or timezone.now()

    # 1. All jobs: for the intervals of expected run times, which people read and no policy.
    remember_run_time(job, _earlier_s(assignment) + run_s, now)
    if not job.has_no_speed:
        return

    # 2. Jobs without a speed: the error of the prediction, and predictions of similar jobs.
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
        _add_to_groups(job, run_s, now)


def _add_to_groups(job: Job, run_s: float, now: datetime) -> None:
    """Add a run time to the groups of its job, with their rows locked in order."""
    keys = sorted(digest(key) for key in features_of(job).groups())
    known_groups = RunTimeGroup.objects.filter(cluster=job.cluster_id, key__in=keys)
    locked = known_groups.select_for_update().order_by("key").values_list("key", "newest_s")
    newest_s = dict(locked)
    groups = []
    for key in keys:
        group = RunTimeGroup(
            cluster_id=job.cluster_id,
            key=key,
            newest_s=with_newest(run_s, newest_s.get(key, ())),
            updated_at=now,
        )
        groups.append(group)
    RunTimeGroup.objects.bulk_create(
        groups,
        update_conflicts=True,
        unique_fields=["cluster", "key"],
        update_fields=["newest_s", "updated_at"],
    )


def _run_s(assignment: Assignment) -> float | None:
    """Return the run time of a launch in seconds; None unless its job ended or hit its walltime."""
    began = assignment.running_at or assignment.accepted_at
    ended = assignment.ended_at
    if began is None or ended is None or not is_training(assignment):
        return None
    run_s = max(0.0, (ended - began).total_seconds())
    if assignment.state == AssignmentState.SUCCEEDED and assignment.desired == "run":
        return run_s
    walltime_s = assignment.job.walltime_s
    hit_limit = assignment.reason_class == ReasonClass.LIMIT
    if hit_limit and walltime_s is not None and run_s >= AT_WALLTIME * walltime_s:
        return run_s
    return None


def _earlier_s(assignment: Assignment) -> float:
    """Return the run time in seconds of the job's earlier launches that did a part of its work."""
    job = assignment.job
    if not job.preemptible or assignment.fence == 1:
        return 0.0
    earlier = job.assignments.filter(purpose=assignment.purpose, rank=0, fence__lt=assignment.fence)
    ran_s = 0.0
    for began, ended in earlier.values_list("running_at", "ended_at"):
        if began is not None and ended is not None:
            ran_s += max(0.0, (ended - began).total_seconds())
    return ran_s


def _newest(cluster: Cluster, groups: Sequence[Key]) -> dict[Key, Sequence[float]]:
    """Return the newest run times of those of these groups that have any."""
    group_of = {digest(group): group for group in groups}
    digests = list(group_of)
    newest: dict[Key, Sequence[float]] = {}
    for first in range(0, len(digests), GROUPS_A_QUERY):
        named = digests[first : first + GROUPS_A_QUERY]
        rows = RunTimeGroup.objects.filter(cluster=cluster, key__in=named)
        for key, newest_s in rows.values_list("key", "newest_s"):
            newest[group_of[key]] = newest_s
    return newest


def digest(key: Key) -> str:
    """Return the 32 hexadecimal digits by which a group is stored."""
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
