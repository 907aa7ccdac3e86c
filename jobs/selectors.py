"""Visibility of jobs and teams: every read of a job on a user's behalf begins here."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import ValidationError
from django.db.models import Prefetch, Q, QuerySet
from django.http import Http404

from clusters.models import Node
from controlplane.web.operators import is_operator
from jobs.assignment_lifecycle import LIVE
from jobs.lifecycle import JobState
from jobs.models import Assignment, AssignmentSlot, Job, JobArray, Membership, Team
from loadmaster.slurm.scripts.numbers import read_number

OTHERS = "another team's job"
"""Placeholder for the name of an invisible job."""

LIVE_STATES = sorted(str(s) for s in LIVE)


class JobNotFound(Http404):
    """Missing job, or one that this user may not see."""


def teams_of(user: User | AnonymousUser) -> QuerySet[Team]:
    """Teams whose things a user may see: their own, for operators all."""
    if is_operator(user):
        return Team.objects.all()
    return Team.objects.filter(members=user.pk) if user.is_authenticated else Team.objects.none()


def visible_jobs(user: User | AnonymousUser) -> QuerySet[Job]:
    """Jobs of the user's teams, for operators all."""
    if is_operator(user):
        return Job.objects.all()
    own = Membership.objects.filter(user=user.pk).values("team")
    return Job.objects.filter(team__in=own) if user.is_authenticated else Job.objects.none()


def seen_by(user: User, jobs: Iterable[Any]) -> frozenset[Any]:
    """Those of these jobs that the user may see."""
    jobs = set(jobs)
    if is_operator(user) or not jobs:
        return frozenset(jobs)
    return frozenset(visible_jobs(user).filter(pk__in=jobs).values_list("pk", flat=True))


def jobs_of_teams(user: User | AnonymousUser, teams: Iterable[Team]) -> QuerySet[Job]:
    """`visible_jobs` for known teams: literal ids let the index of one team give the order."""
    every = Job.objects.all()
    return every if is_operator(user) else every.filter(team__in=[t.pk for t in teams])


def get_job(user: User | AnonymousUser, job_id: uuid.UUID | str) -> Job:
    """Return a job visible to this user; raise JobNotFound otherwise."""
    try:
        return visible_jobs(user).select_related("cluster", "team", "user", "kind").get(pk=job_id)
    except (Job.DoesNotExist, ValidationError):
        raise JobNotFound(f"there is no job {job_id}") from None


def id_begins(text: str) -> Q:
    """Condition on jobs whose id begins with four or more hexadecimal digits, or of this number.

    No job for other text.
    """
    return _id_between("pk", text) | _numbered("pk", Job, text)


def array_id_begins(text: str) -> Q:
    """`id_begins` for the arrays of elements."""
    return _id_between("array", text) | _numbered("array", JobArray, text)


def _id_between(name: str, text: str) -> Q:
    digits = text.replace("-", "").lower()
    if not 4 <= len(digits) <= 32 or not set(digits) <= set("0123456789abcdef"):
        return Q(pk__in=())
    first = uuid.UUID(digits.ljust(32, "0"))
    last = uuid.UUID(digits.ljust(32, "f"))
    return Q(**{f"{name}__gte": first, f"{name}__lte": last})


def _numbered(name: str, model: type[Job] | type[JobArray], text: str) -> Q:
    """Ids by the number, not the number itself: indexes that lists are read from have the ids."""
    number = read_number(text)
    if number is None:
        return Q(pk__in=())
    return Q(**{f"{name}__in": model.objects.filter(number=number).order_by().values("pk")})


_OF_JOB = (
    "number", "name", "state", "gpus_min", "gpus_max", "priority", "tardiness_weight", "due_at",
    "deadline_at", "begin_at", "submitted_at", "started_at", "completed_at", "hold_wanted",
    "failure_reason", "waiting_code", "waiting_detail", "steps_done", "total_steps",
    "checkpoint_steps", "first_loss", "last_loss", "array_index", "cluster__name", "team__name",
    "user__username", "kind__name", "kind__digest", "kind__reports_steps", "array__indices",
    "array__at_once", "array__size", "array__number", "batch", "walltime_s",
)  # fmt: skip
_OF_ASSIGNMENT = (
    "job_id", "purpose", "state", "rank", "created_at", "running_at", "predicted_run_s",
    "steps_per_s", "gpus", "units", "share", "cpu_quota",
    "node__name", "node__emulated", "node__gpu_type__name", "node__gpu_type__emulated",
)  # fmt: skip


def live_assignments() -> QuerySet[Assignment]:
    """Assignments that hold slots, with the columns that lists show alone."""
    live = Assignment.objects.filter(state__in=LIVE_STATES).order_by("fence", "copy", "rank")
    return live.select_related("node__gpu_type").only(*_OF_ASSIGNMENT)


def listed_jobs(user: User | AnonymousUser) -> QuerySet[Job]:
    """Visible jobs with the columns of a list alone, newest first, in a few queries.

    All columns of a job and its node take a third of a list's time.
    """
    held = AssignmentSlot.objects.select_related("device").only("assignment_id", "device__uuid")
    live = live_assignments().prefetch_related(Prefetch("slots", held))
    jobs = visible_jobs(user).select_related("cluster", "team", "user", "kind", "array")
    return jobs.only(*_OF_JOB).prefetch_related(
        Prefetch("assignments", live, to_attr="live_assignments")
    )


def whole_jobs(user: User | AnonymousUser) -> QuerySet[Job]:
    """`listed_jobs` with all of their columns."""
    return listed_jobs(user).defer(None)


def jobs_by_id(user: User | AnonymousUser, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Job]:
    """Those of these jobs that the user may see, like `whole_jobs`."""
    return {job.pk: job for job in whole_jobs(user).filter(pk__in=ids)} if ids else {}


def names_in_waiting(user: User | AnonymousUser, jobs: Iterable[Job]) -> Mapping[str, str]:
    """Names of nodes and visible jobs and arrays that block these jobs, by id.

    A node that takes nothing new is named with the reason.
    """
    details = [j.waiting_detail for j in jobs if isinstance(j.waiting_detail, dict)]
    node_ids = uuids(i for d in details for i in d.get("nodes") or ())
    job_ids = uuids(i for d in details for i in d.get("jobs") or ())
    rows: list[tuple[uuid.UUID, str]] = []
    if node_ids:
        nodes = Node.objects.filter(pk__in=node_ids).values_list("pk", "name", "reason")
        rows += [(pk, f"{name} ({reason})" if reason else name) for pk, name, reason in nodes]
    if job_ids:
        rows += visible_jobs(user).filter(pk__in=job_ids).values_list("pk", "name")
    if arrays := job_ids - {pk for pk, _ in rows}:
        elements = visible_jobs(user).filter(array__in=arrays).order_by()
        rows += elements.values_list("array", "name").distinct()
    return {str(pk): name for pk, name in rows}


def uuids(values: Iterable[object]) -> set[uuid.UUID]:
    """Values that are UUIDs."""
    found = set()
    for value in values:
        try:
            found.add(uuid.UUID(str(value)))
        except ValueError:
            continue
    return found


def fraction_of(job: Job) -> float:
    """Fraction of its work that a job has done, 0 to 1."""
    if job.state == JobState.COMPLETED or not job.total_steps:
        return 1.0
    return min(1.0, job.steps_done / job.total_steps)
