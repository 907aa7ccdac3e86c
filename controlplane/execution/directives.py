"""Directives for the assignments of a node."""

from collections.abc import Iterable
from datetime import datetime

from jobs.models import Assignment
from loadmaster.protocol import AssignmentState, Directive, DirectiveAction, StopReason


def directives(assignments: Iterable[Assignment], grace_s: float) -> tuple[Directive, ...]:
    """Directives for all pending wishes of live assignments."""
    found = (directive(a, grace_s) for a in assignments)
    return tuple(d for d in found if d is not None)


def directive(assignment: Assignment, grace_s: float) -> Directive | None:
    """Order for a live assignment: start, stop, or newest term; None without news."""
    name, fence = str(assignment.pk), assignment.fence
    if assignment.desired != "run":
        reason = StopReason(assignment.desired)
        return Directive(name, fence, DirectiveAction.STOP, stop_reason=reason, grace_s=grace_s)
    if assignment.state == AssignmentState.OFFERED:
        return Directive(name, fence, DirectiveAction.START)
    until, quota = assignment.term_until, assignment.steps_quota
    if until is None and quota is None and assignment.term_at is None:
        return None
    until_s = until.timestamp() if until else None
    return Directive(name, fence, DirectiveAction.UPDATE, term_until_s=until_s, steps_quota=quota)


def is_news(assignment: Assignment) -> bool:
    """Return True for a wish that the agent has not known since its launch."""
    return (
        assignment.state == AssignmentState.OFFERED
        or assignment.desired != "run"
        or assignment.term_at is not None
    )


def cursor_of(assignments: Iterable[Assignment]) -> int:
    """Cursor of the long poll: time of the newest wish in microseconds, or 0."""
    return max((int(_wished_at(a).timestamp() * 1_000_000) for a in assignments), default=0)


AHEAD_S = 5.0
"""Seconds by which a cursor may be ahead: the clocks of a site's servers differ."""


def is_past(cursor: int, now: datetime) -> bool:
    """Return False for a cursor from before the clock went back: what is wished now is older."""
    return cursor / 1_000_000 <= now.timestamp() + AHEAD_S


def _wished_at(assignment: Assignment) -> datetime:
    wished_at = assignment.desired_at or assignment.created_at
    return max(wished_at, assignment.term_at) if assignment.term_at else wished_at
