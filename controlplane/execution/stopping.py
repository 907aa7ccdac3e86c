"""The wish to stop an assignment. It is a wish: only the agent's report, or the lease's end, makes
it true.

An offer nobody has accepted holds nothing on its node and is withdrawn at once.
"""

from __future__ import annotations

from datetime import datetime

from django.utils import timezone

from controlplane.execution.moves import move_assignment
from jobs.assignment_lifecycle import ENDED, LIVE, AssignmentMove
from jobs.models import Assignment, AssignmentEvent
from loadmaster.protocol import AssignmentState, ReasonClass, StopReason

WITHDRAW = {
    StopReason.PREEMPT: (AssignmentMove.PREEMPT, ReasonClass.PREEMPT),
    StopReason.CANCEL: (AssignmentMove.CANCEL, ReasonClass.OPERATOR),
}


def want_stop(
    assignment: Assignment, reason: StopReason, actor: str = "", now: datetime | None = None
) -> bool:
    """Write the wish; whether the assignment ended by it (an offer withdrawn). Call it with the
    job's row locked.

    A wish to cancel is never weakened to one to pre-empt. Assignments that are over are left alone.
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
