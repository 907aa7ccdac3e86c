"""Stops of assignments, jobs and gangs."""

from datetime import datetime
from uuid import UUID

from django.db import transaction

from controlplane.execution.moves import request_stop
from controlplane.execution.outcomes import assignment_ended
from jobs.assignment_lifecycle import LIVE
from jobs.lifecycle import JobMove, JobState
from jobs.models import Assignment, Job
from jobs.moves import lock_assignment, move_job
from loadmaster.protocol import StopReason

_EVICTABLE = frozenset({JobState.STARTING, JobState.RUNNING})


def stop_assignment(
    assignment: Assignment, reason: StopReason, actor: str = "", now: datetime | None = None
) -> Assignment:
    """Request an assignment's stop. Move its job (PREEMPT, CANCEL) before; updates `assignment`.

    An offer nobody has accepted is withdrawn at once, and its job moved on.
    """
    with transaction.atomic():
        newest = lock_assignment(assignment.pk)
        if request_stop(newest, reason, actor, now):
            assignment_ended(newest, now)
    for name in ("state", "desired", "desired_at", "ended_at", "reason", "reason_class"):
        setattr(assignment, name, getattr(newest, name))
    return assignment


def stop_profiling(assignment: Assignment) -> Assignment:
    """Request the end of a profile run's assignment that has measured enough."""
    return stop_assignment(assignment, StopReason.PREEMPT, "profiler")


def stop_job(job: Job, reason: StopReason, actor: str) -> None:
    for assignment in list(Assignment.objects.filter(job=job, state__in=LIVE)):
        stop_assignment(assignment, reason, actor)


def preempt_gang(
    assignment_id: UUID, actor: str, now: datetime | None = None, why: str = ""
) -> None:
    """Pre-empt a whole gang; its job is queued again once it has stopped. `why` is noted."""
    with transaction.atomic():
        newest = lock_assignment(assignment_id)
        job = newest.job
        if newest.purpose == "training" and JobState(job.state) in _EVICTABLE:
            move_job(job, JobMove.PREEMPT, actor=actor, data={"why": why} if why else {})
        gang = Assignment.objects.filter(job=job, fence=newest.fence, ended_at=None).order_by("pk")
        for member in gang:
            stop_assignment(member, StopReason.PREEMPT, actor, now)
