"""Run times of ended jobs in the database, and intervals from them for jobs of unknown run time.

Each group of comparable jobs has one row with its newest run times. An end writes the few groups of
its job in its own transaction, so that reading costs the same after a million ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from jobs.forecasts.intervals import Group, UnknownRunTime, unknown_run_time
from jobs.lifecycle import JobState
from jobs.models import Assignment, Job, RunTimeHistory

MOST_KEPT = 200
"""Newest run times of a group that are kept: their percentiles follow what people run now."""

FIRST_RUN = "until a first run"
WALLTIME = "without a walltime"
"""Event that would make an unknown run time known, in words."""

Key = tuple[int, str]
"""Cluster and key of a group of jobs."""


def groups_of(job: Job) -> Mapping[Group, str]:
    """Return the keys of the groups that a job is compared with, the most comparable first."""
    form = "batch" if job.batch else "training"
    alike = f"{form} {job.gpus_min}..{job.gpus_max}"
    return {
        Group.USER: f"user {job.user_id} {alike}",
        Group.TEAM: f"team {job.team_id} {alike}",
        Group.CLUSTER: "all",
    }


def remember_run_time(job: Job, run_s: float, now: datetime) -> None:
    """Add the run time of an ended job to its groups; called once for it, in a transaction.

    Of two jobs of a new group that end at once, the group may keep one: the next end adds to that.
    """
    keys = sorted(groups_of(job).values())
    rows = RunTimeHistory.objects.filter(cluster=job.cluster_id, key__in=keys)
    # All ends lock their groups in the order of the keys, so that no two wait for each other.
    locked = rows.select_for_update().order_by("key").values_list("key", "newest_s")
    before = dict(locked)
    rounded_s = round(run_s, 3)
    RunTimeHistory.objects.bulk_create(
        [
            RunTimeHistory(
                cluster_id=job.cluster_id,
                key=key,
                newest_s=[rounded_s, *before.get(key, ())][:MOST_KEPT],
                updated_at=now,
            )
            for key in keys
        ],
        update_conflicts=True,
        unique_fields=["cluster", "key"],
        update_fields=["newest_s", "updated_at"],
    )


def unknown_run_times(
    jobs: Iterable[Job], now: datetime, known: Collection[UUID] = ()
) -> dict[UUID, UnknownRunTime]:
    """Return intervals of those of these jobs whose run time is unknown; one query at most.

    `known`: jobs whose end a forecast tells. Of running jobs, `live_assignments` are loaded.
    """
    unknown = [job for job in jobs if job.pk not in known and _is_unknown(job)]
    if not unknown:
        return {}
    histories = _histories(unknown)
    return {job.pk: _run_time(job, histories, now) for job in unknown}


def _is_unknown(job: Job) -> bool:
    """Return True if neither a walltime, nor a run of its kind, nor its own launch tells it."""
    if job.is_over or job.state == JobState.CANCELLING or job.walltime_s is not None:
        return False
    for launch in _launches(job):
        if launch.predicted_run_s is not None or launch.steps_per_s:
            return False
    # Batch jobs with a history have an expected end, or a prediction at their launch: see `known`.
    return job.has_no_speed or job.kind.reports_steps is None


def _run_time(job: Job, histories: Mapping[Key, Sequence[float]], now: datetime) -> UnknownRunTime:
    began = [launch.running_at for launch in _launches(job) if launch.running_at is not None]
    ran_s = max(0.0, (now - min(began)).total_seconds()) if began else 0.0
    of_groups = [
        (group, histories.get((job.cluster_id, key), ())) for group, key in groups_of(job).items()
    ]
    until = WALLTIME if job.has_no_speed else FIRST_RUN
    return unknown_run_time(of_groups, until=until, ran_s=ran_s)


def _launches(job: Job) -> list[Assignment]:
    """Return the live training launches of a job, where they are loaded."""
    live: list[Assignment] = getattr(job, "live_assignments", [])
    return [launch for launch in live if launch.purpose == "training"]


def _histories(jobs: Sequence[Job]) -> dict[Key, Sequence[float]]:
    """Return the newest run times of the groups of these jobs, by cluster and key."""
    clusters = {job.cluster_id for job in jobs}
    keys = {key for job in jobs for key in groups_of(job).values()}
    rows = RunTimeHistory.objects.filter(cluster__in=clusters, key__in=keys)
    columns = rows.values_list("cluster", "key", "newest_s")
    return {(cluster, key): newest_s for cluster, key, newest_s in columns}
