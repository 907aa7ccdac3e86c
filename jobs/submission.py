"""How a job comes into being: validated, once per idempotency key, with its kind and first state."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from controlplane.events import request_reschedule
from controlplane.models import Reason
from jobs.lifecycle import JobState
from jobs.models import IdempotencyKey, Job
from jobs.moves import note_job
from jobs.validation import JobInvalid, JobRequest, validate_job
from profiling import kinds
from profiling.models import Kind
from profiling.services import kind_for, request_profile

MAX_KEY = 200


class JobConflict(Exception):
    """The job's present state does not allow it; the message says so in words."""


class IdempotencyConflict(JobConflict):
    """The key was used before for another body."""


@dataclass(frozen=True, slots=True)
class Submission:
    """What came of a submission. `created` is False where the key was known and the job is the earlier one."""

    job: Job
    warnings: tuple[str, ...] = ()
    created: bool = True


def job_submit(user: User, data: object, idempotency_key: str | None = None, *, cloned_from: Job | None = None) -> Submission:
    """Take a job. Raises JobInvalid with messages by field, IdempotencyConflict for a key used with another body.

    The same user with the same key and the same body gets the same job again, however many send it at once.
    """
    key, digest = _checked_key(idempotency_key), _digest(data, cloned_from)
    known = _earlier(user, key, digest)
    if known:
        return known
    request = validate_job(user, data)
    try:
        with transaction.atomic():
            job = _create(user, request, cloned_from)
            if key:
                IdempotencyKey.objects.create(user=user, key=key, body_sha256=digest, job=job)
    except IntegrityError:
        # Only the key can be taken already: another request with it was faster, and its job is the answer.
        known = _earlier(user, key, digest)
        if known is None:
            raise
        return known
    return Submission(job, request.warnings)


def begin(job: Job, reason: Reason) -> Job:
    """What follows when a job enters the queue: a measurement where its kind is unknown, and a round."""
    request_profile(job)
    request_reschedule(job.cluster, reason, job=job)
    job.refresh_from_db(fields=["state"])
    return job


def job_data(job: Job) -> dict[str, Any]:
    """The job as one would submit it anew (without its dependencies' states, ids or progress)."""
    times = {"due": job.due_at, "deadline": job.deadline_at}
    data: dict[str, Any] = {
        "name": job.name, "cluster": job.cluster.name, "team": job.team.name, "runtime": job.runtime, "image": job.image,
        "command": job.command, "environment": job.environment, "mounts": job.mounts, "epochs": job.epochs,
        "steps_per_epoch": job.steps_per_epoch, "gpus_min": job.gpus_min, "gpus_max": job.gpus_max,
        "allowed_types": job.allowed_types, "cores": job.cores, "memory_gb": job.memory_gb, "walltime": job.walltime_s,
        "tardiness_weight": job.tardiness_weight, "priority": job.priority, "weight": job.weight, "max_retries": job.max_retries,
        "checkpoint_place": job.checkpoint_place, "kind": _given_kind(job.kind), "may_mix": job.may_mix, "may_share": job.may_share,
        "labels": job.labels, "on_disconnect": job.on_disconnect, "dependencies": [str(d.pk) for d in job.dependencies.all()],
        **{name: moment.isoformat() for name, moment in times.items() if moment},
    }  # fmt: skip
    return {name: value for name, value in data.items() if value not in (None, "", [], {})}


def _create(user: User, request: JobRequest, cloned_from: Job | None) -> Job:
    job = Job(user=user, kind=_kind(request), total_steps=request.total_steps, cloned_from=cloned_from)
    for name in _COPIED:
        value = getattr(request, name)
        setattr(job, name, list(value) if isinstance(value, tuple) else value)
    job.state = JobState.HELD if request.hold else JobState.QUEUED
    job.save(force_insert=True)
    job.dependencies.set(request.dependencies)
    note_job(job, "submitted", actor=user.get_username(), data={"warnings": list(request.warnings)})
    return job if request.hold else begin(job, Reason.SUBMISSION)


_COPIED = (
    "name", "cluster", "team", "runtime", "image", "command", "environment", "mounts", "epochs", "steps_per_epoch", "gpus_min",
    "gpus_max", "allowed_types", "cores", "memory_gb", "due_at", "deadline_at", "walltime_s", "tardiness_weight", "priority",
    "weight", "max_retries", "checkpoint_place", "may_mix", "may_share", "labels", "on_disconnect",
)  # fmt: skip
"""Fields that a JobRequest and a Job share by name."""


def _kind(request: JobRequest) -> Kind:
    return kind_for(
        name=request.kind,
        runtime=request.runtime,
        image=request.image,
        image_digest="",
        command=request.command,
        declared={},
    )


def _given_kind(kind: Kind) -> str:
    """The name if the user gave it; one that was made up does not go into a clone, which may differ from it."""
    named = kinds.digest(name=kind.name, runtime="", image="", image_digest="", command=(), declared={})
    return kind.name if kind.name and named == kind.digest else ""


def _checked_key(key: str | None) -> str | None:
    if key is None or (key.strip() and len(key) <= MAX_KEY and key.isprintable()):
        return key
    raise JobInvalid({"Idempotency-Key": [f"must have 1 to {MAX_KEY} printable characters; leave the header out to go without"]})


def _digest(data: object, cloned_from: Job | None) -> str:
    body = [data, str(cloned_from.pk) if cloned_from else None]
    return hashlib.sha256(json.dumps(body, sort_keys=True, default=str).encode()).hexdigest()


def _earlier(user: User, key: str | None, digest: str) -> Submission | None:
    """What an earlier request with this key made, if there was one."""
    known = IdempotencyKey.objects.select_related("job__cluster", "job__team", "job__user", "job__kind").filter(user=user, key=key)
    row = known.first() if key else None
    if row and row.body_sha256 != digest:
        raise IdempotencyConflict("this Idempotency-Key was used before with another body; send a new key for a new job")
    return Submission(row.job, created=False) if row else None
