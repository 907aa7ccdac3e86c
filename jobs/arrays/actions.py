"""Actions on arrays: idle elements change in bulk, those with anything live as single jobs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Exists, OuterRef, QuerySet

from clusters.events import request_reschedule
from clusters.models import Reason
from controlplane.audit.record import Change, record_all
from controlplane.web.storage.turns import ROWS_A_TURN, turn
from jobs import services
from jobs.assignment_lifecycle import LIVE
from jobs.lifecycle import JobMove, JobState
from jobs.models import Assignment, Job, JobArray
from jobs.moves import LostRaceError, Moving, move_jobs
from jobs.roles import check_change
from jobs.submission.quotas import check_requeue
from jobs.submission.refusals import JobConflict
from jobs.submission.submit import begin_all, finish_array

S = JobState


@dataclass(frozen=True, slots=True)
class ArrayAction:
    """Action on an array.

    Idle elements in the states `bulk` make the `move` together, and get the fields `values`.
    Elements in the states `others` are acted on one by one by `alone`. `queues`: the elements enter
    the queue.
    """

    move: JobMove
    bulk: tuple[JobState, ...]
    values: Callable[[Job], Mapping[str, Any]]
    others: tuple[JobState, ...] = ()
    alone: Callable[[Job, User], Job] = services.job_cancel
    queues: bool = False


ACTIONS: Mapping[str, ArrayAction] = {
    "cancel": ArrayAction(
        JobMove.CANCELLED,
        (S.HELD, S.QUEUED),
        services.cancelled,
        (S.HELD, S.QUEUED, S.PROFILING, S.STARTING, S.RUNNING, S.STOPPING),
        services.job_cancel,
    ),
    "hold": ArrayAction(
        JobMove.HOLD, (S.QUEUED,), services.held, (S.QUEUED, S.PROFILING), services.job_hold
    ),
    "release": ArrayAction(JobMove.RELEASE, (S.HELD,), services.released, queues=True),
    "requeue": ArrayAction(
        JobMove.REQUEUE, (S.FAILED, S.CANCELLED), services.requeued, queues=True
    ),
}
"""Actions of people on an array. Hold keeps waiting elements back; those that run go on."""


def array_act(verb: str, array: JobArray, user: User) -> int:
    """Act on all elements that allow it; return their number. Safe to repeat.

    Idle elements change in turns, between which other requests may write. Each turn is one
    transaction with its events. An action that was killed goes on when it is repeated. The user may
    see `array`, whose elements are of one user and one team. Raises RoleRefused, and JobConflict if
    races are lost too often or a limit of the team is reached.
    """
    action = ACTIONS[verb]
    check_change(user, array.jobs.select_related("team")[0])
    # First write the elements that its submission has not written yet.
    finish_array(array.pk)
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
    """Act on all idle elements in turns, lowest index first; return their number."""
    action = ACTIONS[verb]
    wanted = _idle(action, array.jobs.all())
    if action.move is JobMove.RELEASE:
        wanted = wanted | services.resting(array.jobs.all())
    keys = list(wanted.order_by("array_index").values_list("pk", flat=True))

    count = 0
    for start in range(0, len(keys), ROWS_A_TURN):
        some = array.jobs.filter(pk__in=keys[start : start + ROWS_A_TURN])
        left = len(keys) - start
        count += _in_one_turn(verb, array, some, user, left, is_first=count == 0)
    return count


def _in_one_turn(
    verb: str, array: JobArray, some: QuerySet[Job], user: User, left: int, *, is_first: bool
) -> int:
    """Act on those of these elements that are still idle; return their number.

    The first turn is audited for all that are left.
    """
    for _ in range(services.RACES):
        try:
            with turn():
                moved = _moved(ACTIONS[verb], some, user, left)
                if moved and is_first:
                    new = {"elements": left, "state": moved[0].state}
                    change = Change(
                        f"array.{verb}", array, moved[0].team, new=new, name=moved[0].name
                    )
                    record_all([change], by=user)
                return len(moved)
        except LostRaceError:
            continue
    raise JobConflict("the array changes too fast just now; try again")


def _moved(action: ArrayAction, some: QuerySet[Job], user: User, left: int) -> list[Job]:
    """Move the idle ones of these elements and end the rests of others; ask for a round.

    Returns all of them. `left`: number of elements that are still to be moved and must all find
    room in the queue.
    """
    actor = user.get_username()
    idle = _idle(action, some).select_related("cluster", "team")
    jobs = list(idle.select_for_update(of=("self",), no_key=True).order_by("pk"))
    rested = services.end_rests(some, actor) if action.move is JobMove.RELEASE else []
    if jobs and action.move is JobMove.REQUEUE:
        check_requeue(jobs[0], left)
    move_jobs([Moving(job, action.values(job), {}) for job in jobs], action.move, actor=actor)
    if action.queues:
        begin_all([*jobs, *rested])
    elif jobs:
        request_reschedule(jobs[0].cluster, Reason.CANCELLATION, job=jobs[0])
    return [*jobs, *rested]


def _idle(action: ArrayAction, elements: QuerySet[Job]) -> QuerySet[Job]:
    """Return the elements that the action moves in bulk: those without a live assignment."""
    live = Assignment.objects.filter(job=OuterRef("pk"), state__in=LIVE)
    return elements.filter(~Exists(live), state__in=action.bulk)
