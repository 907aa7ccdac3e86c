"""The only way to change a job's state: compare-and-swap by the transition table, with event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction

from controlplane.web.storage.bulk import insert, update_rows
from jobs.lifecycle import JobMove, JobState, check_move
from jobs.models import Job, JobEvent


class LostRaceError(Exception):
    """Somebody else moved the row first: read it again and decide anew."""


def move_job(
    job: Job, move: JobMove, *, actor: str = "", data: dict[str, Any] | None = None, **values: Any
) -> Job:
    """Move `job` (as it was read) and set `values` with it; the event is written in the same
    transaction.

    Raises IllegalJobMoveError if the table has no such move, LostRaceError if the job's state has
    changed since it was read. The given object is brought up to date.
    """
    before = JobState(job.state)
    after = check_move(before, move)
    with transaction.atomic():
        if not Job.objects.filter(pk=job.pk, state=before).update(state=after, **values):
            raise LostRaceError(f"job {job.pk} is no longer {before}")
        _event(job, move, after, data, actor).save()
    _bring_up_to_date(job, {"state": after, **values})
    return job


@dataclass(frozen=True, slots=True)
class Moving:
    """A job to be moved, as read, with the fields to set and the data of its event."""

    job: Job
    values: Mapping[str, Any]
    data: Mapping[str, Any]


def move_jobs(moving: Sequence[Moving], move: JobMove, *, actor: str = "") -> None:
    """Move these jobs, all of them or none, as `move_job` moves each, in a number of queries that
    does not grow with them.

    Each is compared by its fence too, for a crowd is read earlier than a single job. Where others
    may move some of them as well, lock them first, in the order of their keys. Raises
    IllegalJobMoveError if the table lacks one of the moves, ValueError if they do not all set
    values of the same names, LostRaceError if any has changed since it was read: then nothing is
    written, and no given object changed.
    """
    moves = [
        (
            one.job,
            {"state": check_move(JobState(one.job.state), move), **one.values},
            dict(one.data),
        )
        for one in moving
    ]
    if not moves:
        return
    columns = list(moves[0][1])
    if any(values.keys() != moves[0][1].keys() for _, values, _ in moves):
        raise ValueError("jobs that move together set values of the same names")
    rows = [
        (job.pk, job.state, job.fence, *(values[name] for name in columns))
        for job, values, _ in moves
    ]
    with transaction.atomic():
        if update_rows(Job, ("id", "state", "fence"), columns, rows) != len(rows):
            who = f"job {rows[0][0]}" if len(rows) == 1 else f"one of {len(rows)} jobs"
            raise LostRaceError(f"{who} is no longer what it was")
        insert(
            JobEvent,
            [_event(job, move, values["state"], data, actor) for job, values, data in moves],
        )
    for job, values, _ in moves:
        _bring_up_to_date(job, values)


def _event(
    job: Job, move: JobMove, after: JobState, data: dict[str, Any] | None, actor: str
) -> JobEvent:
    """The event of a move of `job`, as it was read, to the state `after`."""
    return JobEvent(
        job=job, event=move, from_state=job.state, to_state=after, data=data or {}, actor=actor
    )


def _bring_up_to_date(job: Job, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        setattr(job, name, value)


def note_job(
    job: Job, event: str, *, actor: str = "", data: dict[str, Any] | None = None
) -> JobEvent:
    """Write an event that changes no state (submitted, migrated, checkpoint, warning ...)."""
    return JobEvent.objects.create(
        job=job, event=event, from_state=job.state, to_state=job.state, data=data or {}, actor=actor
    )
