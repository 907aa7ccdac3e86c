"""Changed rows of the database as topics, for all readers of live pages at once.

Topics are `jobs`, `job:<id>`, `nodes` and `rounds`; a reader gets those of jobs only for jobs that
the reader may see. A row whose transaction commits after that of a row with a higher key is missed,
so pages also refresh now and then.
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
"""Most new rows of a model that are read at once."""

OF_JOBS: Mapping[type[Model], str] = {
    JobEvent: "job",
    AssignmentEvent: "assignment__job",
    ProgressPoint: "assignment__job",
    LogChunk: "assignment__job",
}
"""Followed rows of jobs, with the path to the job."""

Cursors: TypeAlias = Mapping[type[Model], int]
"""Primary key of the last row of each followed model that readers were told of."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Reader of a stream of changes, with the login as it was when the stream began.

    `user`: primary key. `session`: key of the login's session. `password`: Django's hash of it.
    """

    user: int
    session: str
    password: str

    @classmethod
    def of(cls, user: User, session: str) -> "Reader":
        """Return the reader for a user and the key of the session."""
        return cls(user.pk, session, user.get_session_auth_hash())


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes since the last look.

    `jobs`: by followed model of jobs, the team of each changed job, by the job's id. `models`: the
    followed models with new rows.
    """

    jobs: Mapping[type[Model], Mapping[str, int]]
    models: frozenset[type[Model]]

    def topics(self, teams: Collection[int] | None) -> frozenset[str]:
        """Return the changed topics for a member of these teams; None: an operator sees all."""
        # 1. Jobs that this reader may see. New lines of a log do not change the list of jobs.
        changed_jobs: set[str] = set()
        changed_in_list: set[str] = set()
        for model, team_of_job in self.jobs.items():
            visible = {job for job, team in team_of_job.items() if teams is None or team in teams}
            changed_jobs.update(visible)
            if model is not LogChunk:
                changed_in_list.update(visible)

        # 2. Topics of each job, and of the lists.
        topics = {f"job:{job}" for job in changed_jobs}
        if changed_in_list:
            topics.add("jobs")
        if AssignmentEvent in self.models or NodeEvent in self.models:
            topics.add("nodes")
        if Round in self.models:
            topics.add("rounds")
        return frozenset(topics)


def newest() -> Cursors:
    """Return cursors for which all present rows are old."""
    followed: list[type[Model]] = [*OF_JOBS, Round, NodeEvent]
    return {model: _newest_key(model) for model in followed}


def look(
    readers: Collection[Reader], cursors: Cursors
) -> tuple[Mapping[Reader, frozenset[str]], Cursors]:
    """Return the changed topics of each reader, and the new cursors.

    Readers who may no longer read are left out.
    """
    # 1. What changed, and the readers' users and teams as they are now.
    changes, new_cursors = changes_since(cursors)
    users = User.objects.filter(pk__in={reader.user for reader in readers}, is_active=True)
    user_by_pk = {user.pk: user for user in users}
    teams: defaultdict[int, set[int]] = defaultdict(set)
    memberships = Membership.objects.filter(user__in=user_by_pk)
    for user_pk, team_pk in memberships.values_list("user_id", "team_id"):
        teams[user_pk].add(team_pk)

    # 2. Topics once per user, for all logins of the user.
    topics = {}
    for pk, user in user_by_pk.items():
        visible_teams = None if is_operator(user) else teams[pk]
        topics[pk] = changes.topics(visible_teams)
    logged_in = _logged_in(readers, user_by_pk)
    return {reader: topics[reader.user] for reader in logged_in}, new_cursors


def changes_since(cursors: Cursors) -> tuple[Changes, Cursors]:
    """Return the changes after the cursors, and the cursors after these changes."""
    new_cursors: dict[type[Model], int] = {}
    jobs: dict[type[Model], Mapping[str, int]] = {}
    for model, path_to_job in OF_JOBS.items():
        new_cursors[model], jobs[model] = _changed_jobs(model, cursors[model], path_to_job)
    for model in (Round, NodeEvent):
        new_cursors[model] = _newest_key(model)
    changed = {model for model, cursor in new_cursors.items() if cursor > cursors[model]}
    return Changes(jobs, frozenset(changed)), new_cursors


def _logged_in(readers: Collection[Reader], users: Mapping[int, User]) -> list[Reader]:
    """Return the readers whose session goes on, and whose password is still the same."""
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


def _newest_key(model: type[Model]) -> int:
    """Return the highest primary key of a model; 0 if it has no rows."""
    return model._default_manager.aggregate(newest=Max("pk"))["newest"] or 0


def _changed_jobs(
    model: type[Model], cursor: int, path_to_job: str
) -> tuple[int, Mapping[str, int]]:
    """Return the new cursor, and the teams by job of rows after the old one.

    At most MOST_ROWS rows are read; later calls read the rest of a burst.
    """
    rows = model._default_manager.filter(pk__gt=cursor).order_by("pk")
    columns = ("pk", f"{path_to_job}_id", f"{path_to_job}__team_id")
    new_rows = list(rows.values_list(*columns)[:MOST_ROWS])
    if not new_rows:
        return cursor, {}
    last_key, _, _ = new_rows[-1]
    return last_key, {str(job): team for _, job, team in new_rows}
