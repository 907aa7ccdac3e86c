"""A live cluster's ended jobs as records of an SWF log."""

from datetime import timedelta
from math import nan

from django.contrib.auth.models import User
from django.utils import timezone

from clusters.models import Cluster
from controlplane.simulation.report.swf_writer import CANCELLED, COMPLETED, FAILED, Record
from jobs.lifecycle import ENDED, JobState
from jobs.models import Job
from jobs.selectors import visible_jobs

MOST_JOBS = 200_000
"""Newest jobs of a history that are written out."""

STATUS = {JobState.COMPLETED: COMPLETED, JobState.CANCELLED: CANCELLED}
"""Status of a record by the job's state; FAILED for the others."""


def history_records(user: User, cluster: Cluster, days: float) -> list[Record]:
    """Records of the jobs that the user may see, submitted in the last days and over now.

    Times count from the first one's submission. Launches count from the first start to the end.
    """
    # The newest jobs, in the order of their submission.
    since = timezone.now() - timedelta(days=days)
    ended_states = [str(state) for state in ENDED]
    ended = visible_jobs(user).filter(
        cluster=cluster, submitted_at__gte=since, state__in=ended_states
    )
    newest_first = ended.select_related("team", "kind", "user").order_by("-submitted_at", "-id")
    jobs = list(reversed(newest_first[:MOST_JOBS]))
    if not jobs:
        return []
    first_s = jobs[0].submitted_at.timestamp()
    return [_record(job, first_s) for job in jobs]


def _record(job: Job, first_s: float) -> Record:
    """Record of a job; its times count from `first_s` (Unix), nan if there is none."""
    submit_s = job.submitted_at.timestamp()
    start_s = job.started_at.timestamp() if job.started_at else nan
    end_s = job.completed_at.timestamp() if job.completed_at else nan
    mics = dict(job.resources).get("mic", 0.0)
    return Record(
        submit_s=_ms(submit_s - first_s),
        wait_s=_ms(start_s - submit_s),
        run_s=_ms(end_s - start_s),
        walltime_s=nan if job.walltime_s is None else float(job.walltime_s),
        units=job.units,
        cores=float(job.cores),
        gpus=job.gpus_min // job.units,
        mics=float(mics),
        memory_gb=float(job.memory_gb),
        status=STATUS.get(JobState(job.state), FAILED),
        user=job.user.username,
        group=job.team.name,
        kind=job.kind.name,
    )


def _ms(seconds: float) -> float:
    """Round to milliseconds, as logs have no finer times."""
    return round(seconds, 3)
