"""Changes of assignments: the only way to move a state or request a stop, by compare-and-swap."""

from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from jobs.assignment_lifecycle import ENDED, LIVE, AssignmentMove, check_move
from jobs.models import Assignment, AssignmentEvent, AssignmentSlot
from jobs.moves import LostRaceError
from loadmaster.protocol import AssignmentState, ReasonClass, StopReason


def move_assignment(
    assignment: Assignment,
    move: AssignmentMove,
    *,
    observed_at: datetime | None = None,
    data: dict[str, Any] | None = None,
    **values: Any,
) -> Assignment:
    """Move `assignment` (as read), set `values`, write its event; its end releases its slots.

    Raises IllegalAssignmentMoveError, or LostRaceError if state, fence or epoch have changed.
    """
    before = AssignmentState(assignment.state)
    after = check_move(before, move)
    if after in ENDED:  # not before what came before it, whatever the clock did meanwhile
        begun = (assignment.accepted_at, values.get("running_at", assignment.running_at))
        end = values.get("ended_at") or timezone.now()
        values["ended_at"] = max([end, *filter(None, begun)])
    with transaction.atomic():
        same = Assignment.objects.filter(
            pk=assignment.pk, state=before, fence=assignment.fence, epoch=assignment.epoch
        )
        if not same.update(state=after, **values):
            raise LostRaceError(
                f"assignment {assignment.pk} is no longer {before} at fence {assignment.fence}"
            )
        AssignmentEvent.objects.create(
            assignment=assignment,
            move=move,
            from_state=before,
            to_state=after,
            observed_at=observed_at,
            data=data or {},
        )
        if after in ENDED and assignment.gpus:
            AssignmentSlot.objects.filter(assignment=assignment).update(live=False)
    assignment.state = after
    for name, value in values.items():
        setattr(assignment, name, value)
    return assignment


WITHDRAW = {
    StopReason.PREEMPT: (AssignmentMove.PREEMPT, ReasonClass.PREEMPT),
    StopReason.CANCEL: (AssignmentMove.CANCEL, ReasonClass.OPERATOR),
}


def request_stop(
    assignment: Assignment, reason: StopReason, actor: str = "", now: datetime | None = None
) -> bool:
    """Request a stop; True if that ended it (an offer, withdrawn). The job's row must be locked.

    A request to cancel is never weakened to one to pre-empt.
    """
    now = now or timezone.now()
    if AssignmentState(assignment.state) in ENDED:
        return False
    if assignment.desired not in (str(reason), str(StopReason.CANCEL)):
        _note_wish(assignment, reason, actor, now)
    if assignment.state != AssignmentState.OFFERED:
        return False
    move, reason_class = WITHDRAW[reason]
    text = "withdrawn before an agent took it"
    move_assignment(
        assignment, move, data={"by": actor}, reason_class=reason_class, reason=text, ended_at=now
    )
    return True


def _note_wish(assignment: Assignment, reason: StopReason, actor: str, now: datetime) -> None:
    live = Assignment.objects.filter(pk=assignment.pk, fence=assignment.fence, state__in=LIVE)
    if not live.update(desired=str(reason), desired_at=now):
        return
    AssignmentEvent.objects.create(
        assignment=assignment,
        move=f"want_{reason}",
        from_state=assignment.state,
        to_state=assignment.state,
        data={"by": actor},
    )
    assignment.desired, assignment.desired_at = str(reason), now
