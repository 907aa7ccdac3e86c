"""Directives for the assignments of a node."""

from collections.abc import Iterable
from datetime import datetime

from jobs.models import Assignment
from loadmaster.protocol import AssignmentState, Directive, DirectiveAction, StopReason


def directives(assignments: Iterable[Assignment], grace_s: float) -> tuple[Directive, ...]:
    """Return the directives for these live assignments, without those that have no news."""
    all_or_none = [directive(assignment, grace_s) for assignment in assignments]
    return tuple(each for each in all_or_none if each is not None)


def directive(assignment: Assignment, grace_s: float) -> Directive | None:
    """Return the order for a live assignment: stop, start, or newest term; None without news.

    `grace_s`: time between the order to stop and SIGKILL.
    """
    name = str(assignment.pk)
    fence = assignment.fence
    if assignment.desired != "run":
        reason = StopReason(assignment.desired)
        return Directive(name, fence, DirectiveAction.STOP, stop_reason=reason, grace_s=grace_s)
    if assignment.state == AssignmentState.OFFERED:
        return Directive(name, fence, DirectiveAction.START)
    until = assignment.term_until
    quota = assignment.steps_quota
    cores = _changed_cores(assignment)
    if until is None and quota is None and assignment.term_at is None and cores is None:
        return None
    until_s = until.timestamp() if until else None
    return Directive(
        name,
        fence,
        DirectiveAction.UPDATE,
        term_until_s=until_s,
        steps_quota=quota,
        cpu_quota=cores,
    )


def _changed_cores(assignment: Assignment) -> float | None:
    """Return the cores of a launch if they have changed since it began; else None.

    Older agents know no such field; on their nodes cores never change.
    """
    if assignment.quota_at is None:
        return None
    if assignment.cpu_quota is None:
        return assignment.job.cores * assignment.units
    return assignment.cpu_quota


def is_news(assignment: Assignment) -> bool:
    """Return True if the agent may not know yet what the server wishes for an assignment."""
    return (
        assignment.state == AssignmentState.OFFERED
        or assignment.desired != "run"
        or assignment.term_at is not None
        or assignment.quota_at is not None
    )


def cursor_of(assignments: Iterable[Assignment]) -> int:
    """Cursor of the long poll: time of the newest wish in microseconds, or 0."""
    times_us = [int(_wished_at(each).timestamp() * 1_000_000) for each in assignments]
    return max(times_us, default=0)


AHEAD_S = 5.0
"""Seconds by which a cursor may be ahead: the clocks of a site's servers differ."""


def is_past(cursor: int, now: datetime) -> bool:
    """Return False for a cursor in the future: it was made before the clock was set back.

    Wishes of now would be older than such a cursor, so they would never count as new.
    """
    return cursor / 1_000_000 <= now.timestamp() + AHEAD_S


def _wished_at(assignment: Assignment) -> datetime:
    """Time of the server's newest wish: its launch, a stop, a new term or other cores."""
    wished_at = assignment.desired_at or assignment.created_at
    for changed_at in (assignment.term_at, assignment.quota_at):
        if changed_at is not None:
            wished_at = max(wished_at, changed_at)
    return wished_at
