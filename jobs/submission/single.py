"""A job by itself: submitted, begun, and described as one would submit it anew."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from django.contrib.auth.models import User

from clusters.models import Reason
from jobs import kinds
from jobs.models import Job, Kind
from jobs.submission.submit import (
    Asked,
    IdempotencyConflict,
    JobConflict,
    Submission,
    begin_all,
    submit_all,
)

__all__ = ["IdempotencyConflict", "JobConflict", "Submission", "begin", "job_data", "job_submit"]


def job_submit(
    user: User, data: object, idempotency_key: str | None = None, *, cloned_from: Job | None = None
) -> Submission:
    """Take a job. Raises JobInvalid with messages by field, IdempotencyConflict for a key used with
    another body.

    The same user with the same key and the same body gets the same job again, however many send it
    at once.
    """
    answer = submit_all([Asked(user, data, idempotency_key, cloned_from)])[0]
    if isinstance(answer, Submission):
        return answer
    raise answer


def begin(job: Job, reason: Reason) -> Job:
    """Effects of a job's entering the queue: a measurement for an unknown kind, and a round."""
    begin_all([job], reason)
    job.refresh_from_db(fields=["state"])
    return job


def job_data(job: Job, dependencies: Iterable[Job] | None = None) -> dict[str, Any]:
    """The job as one would submit it again, without ids, states and progress."""
    others = job.dependencies.all() if dependencies is None else dependencies
    times = {"due": job.due_at, "deadline": job.deadline_at}
    data: dict[str, Any] = {
        "name": job.name, "cluster": job.cluster.name, "team": job.team.name,
        "runtime": job.runtime, "image": job.image,
        "command": job.command, "environment": job.environment, "mounts": job.mounts,
        "epochs": job.epochs,
        "steps_per_epoch": job.steps_per_epoch, "gpus_min": job.gpus_min, "gpus_max": job.gpus_max,
        "allowed_types": job.allowed_types, "cores": job.cores, "memory_gb": job.memory_gb,
        "walltime": job.walltime_s,
        "tardiness_weight": job.tardiness_weight, "priority": job.priority, "weight": job.weight,
        "max_retries": job.max_retries,
        "checkpoint_place": job.checkpoint_place, "kind": _given_kind(job.kind),
        "may_mix": job.may_mix, "may_share": job.may_share,
        "labels": job.labels, "on_disconnect": job.on_disconnect,
        "dependencies": [str(d.pk) for d in others],
        **{name: moment.isoformat() for name, moment in times.items() if moment},
    }  # fmt: skip
    return {name: value for name, value in data.items() if value not in (None, "", [], {})}


def _given_kind(kind: Kind) -> str:
    """The kind's name if the user gave it; a generated name does not go into a clone."""
    return kind.name if kind.name and _named(kind.name) == kind.digest else ""


@lru_cache(maxsize=1000)
def _named(name: str) -> str:
    """The digest of the kind that a user gave this name."""
    return kinds.digest(name=name, runtime="", image="", image_digest="", command=(), declared={})
