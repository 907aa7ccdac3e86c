"""State changes of jobs: compare-and-swap by the table with events, and the order of locks.

Rows are locked in the order node, job, assignment, so that transactions cannot deadlock. The locks
are FOR NO KEY UPDATE: rows that merely refer to a locked one do not wait.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction

from clusters.models import Node
from controlplane.web.storage.bulk import insert, update_rows
from jobs.lifecycle import JobMove, JobState, check_move
from jobs.models import Assignment, Job, JobEvent


def lock_node(pk: uuid.UUID) -> Node:
    """Return the node with its cluster and GPU type, locked until the transaction ends."""
    return (
        Node.objects.select_for_update(of=("self",), no_key=True)
        .select_related("cluster", "gpu_type")
        .get(pk=pk)
    )


def lock_assignment(pk: uuid.UUID, node: Node | None = None) -> Assignment:
    """Return the assignment, locked with its job until the transaction ends.

    `node`: its node with cluster and GPU type, if known; it is not read again. Raises
    Job.DoesNotExist if there is no such assignment, or it is not that node's.
    """
    of_node = {} if node is None else {"assignments__node": node.pk}
    job = (
        Job.objects.select_for_update(of=("self",), no_key=True)
        .select_related("team", "kind")
        .get(assignments=pk, **of_node)
    )
    rows = Assignment.objects.select_for_update(of=("self",), no_key=True)
    if node is None:
        rows = rows.select_related("node__cluster", "node__gpu_type")
    assignment = rows.get(pk=pk)
    if node is not None:
        assignment.node = node
    assignment.job = job
    if job.cluster_id == assignment.node.cluster_id:
        job.cluster = assignment.node.cluster
    return assignment


class LostRaceError(Exception):
    """Concurrent change of the row: read it again and retry."""


def move_job(
    job: Job, move: JobMove, *, actor: str = "", data: dict[str, Any] | None = None, **values: Any
) -> Job:
    """Move `job` (as read) with its event and set `values`, in one transaction.

    Raises IllegalJobMoveError, or LostRaceError if the state has changed since it was read. Updates
    `job`.
    """
    before = JobState(job.state)
    after, values = check_move(before, move), _in_order(job, values)
    with transaction.atomic():
        if not Job.objects.filter(pk=job.pk, state=before).update(state=after, **values):
            raise LostRaceError(f"job {job.pk} is no longer {before}")
        _event(job, move, after, data, actor).save()
    _bring_up_to_date(job, {"state": after, **values})
    return job


@dataclass(frozen=True, slots=True)
class Moving:
    """Job to move, as read, with fields to set and event data."""

    job: Job
    values: Mapping[str, Any]
    data: Mapping[str, Any]


def move_jobs(moving: Sequence[Moving], move: JobMove, *, actor: str = "") -> None:
    """Move these jobs, all or none, like `move_job`, in a constant number of queries.

    Compares fences too. Lock jobs first, by key, where others may move them. Raises
    IllegalJobMoveError, LostRaceError, and ValueError if the jobs do not set the same fields; then
    nothing changes.
    """
    states = [check_move(JobState(one.job.state), move) for one in moving]
    moves = [
        (one.job, {"state": state, **_in_order(one.job, one.values)}, dict(one.data))
        for one, state in zip(moving, states, strict=True)
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
        events = [_event(job, move, values["state"], data, actor) for job, values, data in moves]
        insert(JobEvent, events)
    for job, values, _ in moves:
        _bring_up_to_date(job, values)


def _in_order(job: Job, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values whose end is not before what came before it, whatever the clock did meanwhile."""
    end = values.get("completed_at")
    if end is None:
        return dict(values)
    earlier = (job.submitted_at, values.get("started_at", job.started_at))
    return {**values, "completed_at": max([end, *filter(None, earlier)])}


def _event(
    job: Job, move: JobMove, after: JobState, data: dict[str, Any] | None, actor: str
) -> JobEvent:
    return JobEvent(
        job=job, event=move, from_state=job.state, to_state=after, data=data or {}, actor=actor
    )


def _bring_up_to_date(job: Job, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        setattr(job, name, value)


def note_job(
    job: Job, event: str, *, actor: str = "", data: dict[str, Any] | None = None
) -> JobEvent:
    """Write an event that changes no state."""
    return note_jobs([job], event, actor=actor, data=data)[0]


def note_jobs(
    jobs: Iterable[Job], event: str, *, actor: str = "", data: dict[str, Any] | None = None
) -> list[JobEvent]:
    """Write an event of each of these jobs that changes no state."""
    return JobEvent.objects.bulk_create(
        JobEvent(
            job=job,
            event=event,
            from_state=job.state,
            to_state=job.state,
            data=data or {},
            actor=actor,
        )
        for job in jobs
    )
