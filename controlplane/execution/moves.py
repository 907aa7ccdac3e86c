"""The only way to change an assignment's state: compare-and-swap by the table, with event."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from jobs.assignment_lifecycle import ENDED, AssignmentMove, check_move
from jobs.models import Assignment, AssignmentEvent, AssignmentSlot
from jobs.moves import LostRaceError
from loadmaster.protocol import AssignmentState


def move_assignment(
    assignment: Assignment,
    move: AssignmentMove,
    *,
    observed_at: datetime | None = None,
    data: dict[str, Any] | None = None,
    **values: Any,
) -> Assignment:
    """Move `assignment` (as it was read) and set `values` with it; event and, at its end, the
    release of its slots go with it.

    Raises IllegalAssignmentMoveError if the table has no such move, LostRaceError if state, fence
    or epoch have changed since it was read. The given object is brought up to date.
    """
    before = AssignmentState(assignment.state)
    after = check_move(before, move)
    if after in ENDED:
        values.setdefault("ended_at", timezone.now())
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
        if after in ENDED:
            AssignmentSlot.objects.filter(assignment=assignment).update(live=False)
    assignment.state = after
    for name, value in values.items():
        setattr(assignment, name, value)
    return assignment
