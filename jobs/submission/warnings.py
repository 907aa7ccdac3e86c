"""Warnings about a valid job: what it asks for and does not get."""

from collections.abc import Iterator
from math import inf

from clusters.models.clusters import Profiling
from jobs.models import Job
from loadmaster.slurm.options.values import end_signal


def warnings_of(job: Job) -> Iterator[str]:
    """Yield sentences that name a field."""
    wanted = job.profiling or job.cluster.profiling
    if wanted == Profiling.DEDICATED and not job.repeatable:
        yield (
            "profiling: its first run measures its speed, as dedicated runs would run its"
            " command again; set repeatable to true where that does no harm"
        )
    walltime_s, grace_s = job.killed_after_s or inf, job.cluster.grace_s
    if walltime_s < grace_s:
        yield (
            f"walltime: is below the grace of {grace_s:g} s after SIGTERM, so the job may run for"
            f" {walltime_s + grace_s:g} s"
        )
    if job.signal and not job.needs_limits:
        yield "signal: is never sent, as nothing ends the job; give a walltime or a deadline"
    elif job.signal and end_signal(job.signal).before_s >= walltime_s:
        yield (
            f"signal: is sent at the start, as the walltime is only {walltime_s:g} s;"
            " raise the walltime, or give fewer seconds"
        )
