"""Changes for the readers of live pages: one look for all of them.

A row that commits after a later one is missed, so pages also refresh now and then. Topics: `jobs`,
`job:<id>`, `nodes`, `rounds`, of visible jobs only.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db.models import Max, Model
from django.utils import timezone

from clusters.models import NodeEvent
from controlplane.loop.models import Round
from controlplane.web.operators import is_operator
from jobs.models import AssignmentEvent, JobEvent, LogChunk, Membership, ProgressPoint

MOST_ROWS = 500

OF_JOBS: Mapping[type[Model], str] = {
    JobEvent: "job",
    AssignmentEvent: "assignment__job",
    ProgressPoint: "assignment__job",
    LogChunk: "assignment__job",
}
"""Followed rows of jobs, with the path to the job."""

Cursors: TypeAlias = Mapping[type[Model], int]
"""Newest row already told of each followed model."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Reader of a stream, by the login as it was when the stream began."""

    user: int
    session: str
    password: str

    @classmethod
    def of(cls, user: User, session: str) -> "Reader":
        return cls(user.pk, session, user.get_session_auth_hash())


@dataclass(frozen=True, slots=True)
class Changes:
    """Changed rows: jobs of each model with their teams, and the models of which any changed."""

    jobs: Mapping[type[Model], Mapping[str, int]]
    moved: frozenset[type[Model]]

    def topics(self, teams: Collection[int] | None) -> frozenset[str]:
        """Topics for a member of these teams; None for an operator, who sees all."""
        seen = {
            model: {job for job, team in rows.items() if teams is None or team in teams}
            for model, rows in self.jobs.items()
        }
        listed = seen[JobEvent] | seen[AssignmentEvent] | seen[ProgressPoint]
        topics = {f"job:{pk}" for pk in listed | seen[LogChunk]}
        topics |= {"jobs"} if listed else set()
        topics |= {"nodes"} if self.moved & {AssignmentEvent, NodeEvent} else set()
        topics |= {"rounds"} if Round in self.moved else set()
        return frozenset(topics)


def newest() -> Cursors:
    followed: list[type[Model]] = [*OF_JOBS, Round, NodeEvent]
    return {model: _newest(model) for model in followed}


def look(
    readers: Collection[Reader], cursors: Cursors
) -> tuple[Mapping[Reader, frozenset[str]], Cursors]:
    """(topics changed since, by reader; new cursors). Who may no longer read is left out."""
    found, after = changes_since(cursors)
    users = User.objects.filter(pk__in={reader.user for reader in readers}, is_active=True)
    known = {user.pk: user for user in users}
    teams: defaultdict[int, set[int]] = defaultdict(set)
    for user, team in Membership.objects.filter(user__in=known).values_list("user_id", "team_id"):
        teams[user].add(team)
    topics = {
        pk: found.topics(None if is_operator(user) else teams[pk]) for pk, user in known.items()
    }
    return {reader: topics[reader.user] for reader in _logged_in(readers, known)}, after


def changes_since(cursors: Cursors) -> tuple[Changes, Cursors]:
    after: dict[type[Model], int] = {}
    jobs: dict[type[Model], Mapping[str, int]] = {}
    for model, path in OF_JOBS.items():
        after[model], jobs[model] = _job_rows(model, cursors[model], path)
    after |= {model: _newest(model) for model in (Round, NodeEvent)}
    moved = frozenset(model for model, cursor in after.items() if cursor > cursors[model])
    return Changes(jobs, moved), after


def _logged_in(readers: Collection[Reader], users: Mapping[int, User]) -> list[Reader]:
    """Readers whose session goes on, and whose password is still the same."""
    sessions = Session.objects.filter(
        pk__in={reader.session for reader in readers}, expire_date__gt=timezone.now()
    )
    going_on = set(sessions.values_list("pk", flat=True))
    passwords = {pk: user.get_session_auth_hash() for pk, user in users.items()}
    return [
        reader
        for reader in readers
        if reader.session in going_on and passwords.get(reader.user) == reader.password
    ]


def _newest(model: type[Model]) -> int:
    return model._default_manager.aggregate(newest=Max("pk"))["newest"] or 0


def _job_rows(model: type[Model], cursor: int, path: str) -> tuple[int, Mapping[str, int]]:
    """(newest id, teams by job) of rows after the cursor; a large burst takes several turns."""
    rows = model._default_manager.filter(pk__gt=cursor).order_by("pk")
    after = list(rows.values_list("pk", f"{path}_id", f"{path}__team_id")[:MOST_ROWS])
    return (after[-1][0] if after else cursor), {str(job): team for _, job, team in after}
