"""Actions on arrays: elements that hold nothing in bulk, the others as single jobs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet

from clusters.events import request_reschedule
from clusters.models import Reason
from controlplane.audit.record import Change, record_all
from jobs import services
from jobs.assignment_lifecycle import LIVE
from jobs.lifecycle import JobMove, JobState
from jobs.models import Assignment, Job, JobArray
from jobs.moves import LostRaceError, Moving, move_jobs
from jobs.roles import check_change
from jobs.submission.quotas import check_requeue
from jobs.submission.refusals import JobConflict
from jobs.submission.submit import begin_all

S = JobState


@dataclass(frozen=True, slots=True)
class ArrayAction:
    """`move` of idle elements in states `bulk` to `values`; `alone` acts on those in `others`.

    `queues`: the elements enter the queue.
    """

    move: JobMove
    bulk: tuple[JobState, ...]
    values: Callable[[Job], Mapping[str, Any]]
    others: tuple[JobState, ...] = ()
    alone: Callable[[Job, User], Job] = services.job_cancel
    queues: bool = False


ACTIONS: Mapping[str, ArrayAction] = {
    "cancel": ArrayAction(
        JobMove.CANCELLED, (S.HELD, S.QUEUED), services.cancelled,
        (S.HELD, S.QUEUED, S.PROFILING, S.STARTING, S.RUNNING, S.STOPPING), services.job_cancel,
    ),
    "hold": ArrayAction(
        JobMove.HOLD, (S.QUEUED,), services.held, (S.QUEUED, S.PROFILING), services.job_hold
    ),
    "release": ArrayAction(JobMove.RELEASE, (S.HELD,), services.released, queues=True),
    "requeue": ArrayAction(
        JobMove.REQUEUE, (S.FAILED, S.CANCELLED), services.requeued, queues=True
    ),
}  # fmt: skip
"""Actions of people on an array. Hold keeps waiting elements back; those that run go on."""


def array_act(verb: str, array: JobArray, user: User) -> int:
    """Act on all elements that allow it; return their number. Safe to repeat.

    `array` is one that the user may see; its elements are of one user and one team. Raises
    RoleRefused, and JobConflict if races are lost too often.
    """
    action = ACTIONS[verb]
    check_change(user, array.jobs.select_related("team")[0])
    count = _in_bulk(verb, array, user)
    others = array.jobs.filter(state__in=action.others).order_by("array_index")
    for job in others:
        try:
            action.alone(job, user)
        except JobConflict:
            continue  # it has just ended
        count += 1
    return count


def _in_bulk(verb: str, array: JobArray, user: User) -> int:
    for _ in range(services.RACES):
        try:
            with transaction.atomic():
                moved = _moved(ACTIONS[verb], array, user)
                if moved:
                    new = {"elements": len(moved), "state": moved[0].state}
                    team, name = moved[0].team, moved[0].name
                    record_all([Change(f"array.{verb}", array, team, new=new, name=name)], by=user)
                return len(moved)
        except LostRaceError:
            continue
    raise JobConflict("the array changes too fast just now; try again")


def _moved(action: ArrayAction, array: JobArray, user: User) -> list[Job]:
    """Move the idle elements, and ask for a round; return them, with those that rested."""
    actor, jobs = user.get_username(), list(_idle(action, array))
    rested = services.end_rests(array.jobs.all(), actor) if action.move is JobMove.RELEASE else []
    if action.move is JobMove.REQUEUE:
        check_requeue(jobs)
    move_jobs([Moving(job, action.values(job), {}) for job in jobs], action.move, actor=actor)
    if action.queues:
        begin_all([*jobs, *rested])
    elif jobs:
        request_reschedule(jobs[0].cluster, Reason.CANCELLATION, job=jobs[0])
    return [*jobs, *rested]


def _idle(action: ArrayAction, array: JobArray) -> QuerySet[Job]:
    """Elements without anything live, locked until the transaction ends."""
    live = Assignment.objects.filter(job=OuterRef("pk"), state__in=LIVE)
    idle = array.jobs.filter(~Exists(live), state__in=action.bulk).select_related("cluster", "team")
    return idle.select_for_update(of=("self",), no_key=True).order_by("pk")
