"""Which of a long queue's jobs a round looks at.

A snapshot of a hundred thousand jobs takes half a minute to read, to decide on and to keep, and
nothing that is decided about job 50,000 matters before the first thousands run. So a round sees
every job that holds something and, of those that queue, LOADMASTER_ROUND_JOBS at most: a half by
turns of the teams (each team's most pressing first, so that no team hides another's jobs behind its
own), a quarter by due date or deadline, and a quarter that moves on with every round, so that each
job is looked at now and then whatever stands before it. Jobs that wait for other jobs cannot start:
they get only what seats are left, an eighth at least, by turns, so that they learn what they wait
for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import Exists, F, OuterRef, QuerySet, Window
from django.db.models.functions import Coalesce, Least, RowNumber

from jobs.lifecycle import JobState
from jobs.models import Job

_DEPENDENCIES = Job.dependencies.through._default_manager


def window(queued: QuerySet[Job], most: int, number: int) -> list[Any] | None:
    """Primary keys of up to `most` `queued` jobs for the round; None if there are no more."""
    count = queued.count()
    if count <= most:
        return None
    waits = Exists(
        _DEPENDENCIES.filter(from_job=OuterRef("pk")).exclude(to_job__state=JobState.COMPLETED)
    )
    ready, waiting = queued.filter(~waits), queued.filter(waits)
    able = ready.count()
    seats = most - min(most // 8, count - able)
    quarter = seats // 4
    chosen = dict.fromkeys(_in_turn(ready, seats - 2 * quarter))
    chosen |= dict.fromkeys(_soonest(ready, quarter))
    chosen |= dict.fromkeys(_passing(ready, seats - len(chosen), number, able))
    chosen |= dict.fromkeys(_passing(waiting, most - len(chosen), number, count - able))
    return list(chosen)


def _in_turn(queued: QuerySet[Job], most: int) -> Iterable[Any]:
    """The most urgent job of each team, then the second of each: by priority, then age."""
    turn = Window(
        RowNumber(),
        partition_by=[F("team_id")],
        order_by=[F("priority").desc(), F("submitted_at").asc(), F("pk").asc()],
    )
    ordered = queued.annotate(turn=turn).order_by("turn", "-priority", "submitted_at", "pk")
    return [pk for pk, _ in ordered.values_list("pk", "turn")[:most]]


def _soonest(queued: QuerySet[Job], most: int) -> Iterable[Any]:
    """By the earlier of due date and deadline, either replacing the other if NULL."""
    due, deadline = Coalesce("due_at", "deadline_at"), Coalesce("deadline_at", "due_at")
    pressed = (
        queued.annotate(until=Least(due, deadline))
        .filter(until__isnull=False)
        .order_by("until", "pk")
    )
    return [pk for pk, _ in pressed.values_list("pk", "until")[:most]]


def _passing(queued: QuerySet[Job], most: int, number: int, count: int) -> Iterable[Any]:
    """The next section of the queue in a neutral order, cyclically."""
    pieces = -(-count // most) if most and count else 1
    start = number % pieces * most
    return queued.order_by("pk").values_list("pk", flat=True)[start : start + most]
