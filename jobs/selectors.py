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

LIVE_STATES = sorted(str(state) for state in LIVE)
"""States of assignments that hold slots, as the database has them."""

COLUMNS_OF_JOB = (
    "number", "name", "state", "gpus_min", "gpus_max", "priority", "tardiness_weight", "due_at",
    "deadline_at", "begin_at", "submitted_at", "started_at", "completed_at", "hold_wanted",
    "failure_reason", "waiting_code", "waiting_detail", "steps_done", "total_steps",
    "checkpoint_steps", "first_loss", "last_loss", "array_index", "cluster__name", "team__name",
    "user__username", "kind__name", "kind__digest", "kind__reports_steps", "array__indices",
    "array__at_once", "array__size", "array__number", "batch", "walltime_s",
)  # fmt: skip  # a long list of names
"""Columns that a list of jobs needs."""

COLUMNS_OF_ASSIGNMENT = (
    "job_id", "purpose", "state", "rank", "created_at", "running_at", "predicted_run_s",
    "steps_per_s", "gpus", "units", "share", "cpu_quota",
    "node__name", "node__emulated", "node__gpu_type__name", "node__gpu_type__emulated",
)  # fmt: skip  # a long list of names
"""Columns that a list of jobs needs of their assignments."""


class JobNotFound(Http404):
    """Missing job, or one that this user may not see."""


def teams_of(user: User | AnonymousUser) -> QuerySet[Team]:
    """Return the teams whose jobs and kinds a user may see: their own; for operators all."""
    if is_operator(user):
        return Team.objects.all()
    if not user.is_authenticated:
        return Team.objects.none()
    return Team.objects.filter(members=user.pk)


def visible_jobs(user: User | AnonymousUser) -> QuerySet[Job]:
    """Return the jobs of the user's teams; for operators all."""
    if is_operator(user):
        return Job.objects.all()
    if not user.is_authenticated:
        return Job.objects.none()
    own_teams = Membership.objects.filter(user=user.pk).values("team")
    return Job.objects.filter(team__in=own_teams)


def seen_by(user: User, job_ids: Iterable[Any]) -> frozenset[Any]:
    """Return those of these ids whose jobs the user may see."""
    all_ids = frozenset(job_ids)
    if is_operator(user) or not all_ids:
        return all_ids
    visible = visible_jobs(user).filter(pk__in=all_ids)
    return frozenset(visible.values_list("pk", flat=True))


def jobs_of_teams(user: User | AnonymousUser, teams: Iterable[Team]) -> QuerySet[Job]:
    """Return `visible_jobs` of a user whose teams are known.

    With literal ids the database can take the order from the index of a team.
    """
    if is_operator(user):
        return Job.objects.all()
    return Job.objects.filter(team__in=[team.pk for team in teams])


def get_job(user: User | AnonymousUser, job_id: uuid.UUID | str) -> Job:
    """Return a job visible to this user; raise JobNotFound otherwise."""
    try:
        return visible_jobs(user).select_related("cluster", "team", "user", "kind").get(pk=job_id)
    except (Job.DoesNotExist, ValidationError):
        raise JobNotFound(f"there is no job {job_id}") from None


def id_begins(text: str) -> Q:
    """Return a condition: a job's id begins with this text, or its number is this text.

    A beginning has at least four hexadecimal digits. Other texts fit no job.
    """
    return _id_between("pk", text) | _numbered("pk", Job, text)


def array_id_begins(text: str) -> Q:
    """Return a condition on elements: `id_begins` for their array."""
    return _id_between("array", text) | _numbered("array", JobArray, text)


def _id_between(name: str, text: str) -> Q:
    """Return a condition: the id of this name begins with hexadecimal digits.

    It is a range, which an index of UUIDs can serve.
    """
    digits = text.replace("-", "").lower()
    if not 4 <= len(digits) <= 32 or not set(digits) <= set("0123456789abcdef"):
        return Q(pk__in=())
    first = uuid.UUID(digits.ljust(32, "0"))
    last = uuid.UUID(digits.ljust(32, "f"))
    return Q(**{f"{name}__gte": first, f"{name}__lte": last})


def _numbered(name: str, model: type[Job] | type[JobArray], text: str) -> Q:
    """Return a condition: the id of this name is that of the job or array with a number.

    Indexes that lists are read from have ids, and no numbers.
    """
    number = read_number(text)
    if number is None:
        return Q(pk__in=())
    ids = model.objects.filter(number=number).order_by().values("pk")
    return Q(**{f"{name}__in": ids})


def live_assignments() -> QuerySet[Assignment]:
    """Return the assignments that hold slots, with only the columns that lists need."""
    live = Assignment.objects.filter(state__in=LIVE_STATES).order_by("fence", "copy", "rank")
    return live.select_related("node__gpu_type").only(*COLUMNS_OF_ASSIGNMENT)


def listed_jobs(user: User | AnonymousUser) -> QuerySet[Job]:
    """Return visible jobs with only the columns of a list, newest first, in a few queries.

    All columns of a job and its node take a third of a list's time. Each job gets a list
    `live_assignments`.
    """
    slots = AssignmentSlot.objects.select_related("device").only("assignment_id", "device__uuid")
    live = live_assignments().prefetch_related(Prefetch("slots", slots))
    jobs = visible_jobs(user).select_related("cluster", "team", "user", "kind", "array")
    return jobs.only(*COLUMNS_OF_JOB).prefetch_related(
        Prefetch("assignments", live, to_attr="live_assignments")
    )


def whole_jobs(user: User | AnonymousUser) -> QuerySet[Job]:
    """Return `listed_jobs` with all of their columns."""
    return listed_jobs(user).defer(None)


def jobs_by_id(user: User | AnonymousUser, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Job]:
    """Return by id those of these jobs that the user may see, as `whole_jobs` reads them."""
    if not ids:
        return {}
    return {job.pk: job for job in whole_jobs(user).filter(pk__in=ids)}


def names_in_waiting(user: User | AnonymousUser, jobs: Iterable[Job]) -> Mapping[str, str]:
    """Return the names of nodes and visible jobs and arrays that block these jobs, by id.

    A node that takes nothing new is named with the reason.
    """
    # 1. Ids in the facts about why the jobs wait.
    node_ids: set[uuid.UUID] = set()
    job_ids: set[uuid.UUID] = set()
    for job in jobs:
        if isinstance(job.waiting_detail, dict):
            node_ids |= uuids(job.waiting_detail.get("nodes") or ())
            job_ids |= uuids(job.waiting_detail.get("jobs") or ())

    # 2. Names of nodes and jobs.
    names: dict[uuid.UUID, str] = {}
    if node_ids:
        nodes = Node.objects.filter(pk__in=node_ids).values_list("pk", "name", "reason")
        for pk, name, reason in nodes:
            names[pk] = f"{name} ({reason})" if reason else name
    if job_ids:
        names.update(visible_jobs(user).filter(pk__in=job_ids).values_list("pk", "name"))

    # 3. The other ids may be those of arrays.
    array_ids = job_ids - names.keys()
    if array_ids:
        elements = visible_jobs(user).filter(array__in=array_ids).order_by()
        names.update(elements.values_list("array", "name").distinct())
    return {str(pk): name for pk, name in names.items()}


def uuids(values: Iterable[object]) -> set[uuid.UUID]:
    """Return those of the values that are UUIDs, or texts of UUIDs."""
    ids = set()
    for value in values:
        try:
            ids.add(uuid.UUID(str(value)))
        except ValueError:
            continue
    return ids


def fraction_of(job: Job) -> float:
    """Return the fraction of its work that a job has done, 0 to 1."""
    if job.state == JobState.COMPLETED or not job.total_steps:
        return 1.0
    return min(1.0, job.steps_done / job.total_steps)
