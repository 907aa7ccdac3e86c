"""The one way a job changes state: a move of the table, written by compare-and-swap with its event."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from jobs.lifecycle import JobMove, JobState, check_move
from jobs.models import Job, JobEvent


class LostRaceError(Exception):
    """Somebody else moved the row first: read it again and decide anew."""


def move_job(job: Job, move: JobMove, *, actor: str = "", data: dict[str, Any] | None = None, **values: Any) -> Job:
    """Move `job` (as it was read) and set `values` with it; the event is written in the same transaction.

    Raises IllegalJobMoveError if the table has no such move, LostRaceError if the job's state has changed since it was read. The
    given object is brought up to date.
    """
    before = JobState(job.state)
    after = check_move(before, move)
    with transaction.atomic():
        if not Job.objects.filter(pk=job.pk, state=before).update(state=after, **values):
            raise LostRaceError(f"job {job.pk} is no longer {before}")
        JobEvent.objects.create(job=job, event=move, from_state=before, to_state=after, data=data or {}, actor=actor)
    job.state = after
    for name, value in values.items():
        setattr(job, name, value)
    return job


def note_job(job: Job, event: str, *, actor: str = "", data: dict[str, Any] | None = None) -> JobEvent:
    """Write an event that changes no state (submitted, migrated, checkpoint, warning ...)."""
    return JobEvent.objects.create(job=job, event=event, from_state=job.state, to_state=job.state, data=data or {}, actor=actor)
