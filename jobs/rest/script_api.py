"""REST for the programs of running scripts: squeue, sacct, sinfo, scancel, scontrol and sbatch.

The credential is a launch's token (`jobs.launch_tokens`). It gives access to its user's own jobs of
the launch's team, and to nothing else: no secrets, no logs, no actions of operators.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

from django.contrib.auth.models import User
from django.db.models import Q, QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed, NotFound, ValidationError
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.web.rest.errors import ConflictError
from controlplane.web.rest.strict import StrictView
from jobs import services
from jobs.arrays.actions import array_act
from jobs.arrays.selectors import element_of
from jobs.launch_tokens import launch_of
from jobs.lifecycle import ACTIVE, JobState
from jobs.models import UNFINISHED, Assignment, Job, JobArray
from jobs.numbers import arrays_with_numbers, jobs_with_numbers
from jobs.rest.script_rows import node_rows, rows_of
from jobs.selectors import visible_jobs
from jobs.submission.refusals import JobConflict
from jobs.submission.validation import JobInvalid
from loadmaster.slurm.scripts.numbers import read_number

MOST_ROWS = 10_000
"""Jobs of one answer: the elements of the largest array."""

MOST_NUMBERS = 100
"""Numbers of one request."""

RUNNING = (JobState.STARTING, JobState.RUNNING, JobState.STOPPING)
"""States of a job that has a launch."""


class LaunchAuthentication(BaseAuthentication):
    """The token of a launch that has not ended, in the Authorization header."""

    def authenticate(self, request: Request) -> tuple[User, Assignment]:
        """Return the job's user and the launch; AuthenticationFailed for any other token."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        launch = launch_of(token) if scheme == "Bearer" else None
        if launch is None or not launch.job.user.is_active:
            raise AuthenticationFailed("this needs the token of a launch that has not ended")
        return launch.job.user, launch

    def authenticate_header(self, request: Request) -> str:
        """Scheme of the answer 401."""
        return "Bearer"


class _ScriptView(StrictView):
    """Base of the views for scripts."""

    authentication_classes = (LaunchAuthentication,)
    permission_classes = (IsAuthenticated,)

    @property
    def user(self) -> User:
        """User whose script asks."""
        return cast(User, self.request.user)

    @property
    def job(self) -> Job:
        """Job whose script asks."""
        return cast(Assignment, self.request.auth).job

    def own_jobs(self) -> QuerySet[Job]:
        """Jobs that the script may see and change: its user's in its team."""
        own = visible_jobs(self.user).filter(user=self.user, team=self.job.team_id)
        return own.select_related("cluster", "team", "user", "array")


class ScriptJobsView(_ScriptView):
    """Own jobs of a script's user in the script's team."""

    @extend_schema(
        exclude=True,
        parameters=[
            OpenApiParameter("numbers", str),
            OpenApiParameter("since_s", float),
            OpenApiParameter("usage", str, enum=["memory"]),
        ],
    )
    def get(self, request: Request) -> Response:
        """List those of `numbers` (1,2,3_4), or all that are not over.

        `since_s`: those too that have ended after this moment, in epoch seconds. `usage`: with the
        most memory that each has used.
        """
        numbers = request.query_params.get("numbers", "")
        since = _moment(request.query_params.get("since_s", ""))
        jobs = self.own_jobs()
        if numbers:
            jobs = jobs.filter(_of_references(jobs, numbers.split(",")[:MOST_NUMBERS]))
        elif since is not None:
            jobs = jobs.filter(Q(completed_at__gte=since) | UNFINISHED)
        else:
            jobs = jobs.filter(state__in=sorted(str(state) for state in ACTIVE))
        listed = list(jobs.order_by("number")[:MOST_ROWS])
        measured = request.query_params.get("usage", "") == "memory"
        return Response({"jobs": rows_of(listed, measured=measured)})

    @extend_schema(exclude=True, request=OpenApiTypes.OBJECT)
    def post(self, request: Request) -> Response:
        """Submit a script {"sbatch": {...}} to the own team and cluster."""
        data = request.data
        if not isinstance(data, dict) or data.keys() != {"sbatch"}:
            raise ValidationError({"sbatch": ["must be the only field, with the script to submit"]})
        try:
            key = request.headers.get("Idempotency-Key")
            fields = {
                "team": self.job.team.name,
                "cluster": self.job.cluster.name,
                "sbatch": data["sbatch"],
            }
            submission = services.job_submit(self.user, fields, key)
        except JobInvalid as error:
            raise ValidationError(cast("dict[str, Any]", error.fields)) from None
        except JobConflict as error:
            raise ConflictError(str(error)) from None
        array = submission.job.array
        number = submission.job.number if array is None else array.number
        answer = {"number": number, "warnings": list(submission.warnings)}
        return Response(answer, status=201)


class ScriptNodesView(_ScriptView):
    """Nodes of a script's cluster, without the jobs on them."""

    @extend_schema(exclude=True)
    def get(self, request: Request) -> Response:
        """List the nodes that run jobs of production, by name."""
        return Response({"nodes": node_rows(self.job.cluster)})


class ScriptActionView(_ScriptView):
    """Actions on the own jobs of a script's user."""

    @extend_schema(exclude=True, request=None)
    def post(self, request: Request, reference: str, verb: str) -> Response:
        """Cancel, hold, release or requeue a job (12), an array, or an element (12_3)."""
        if verb not in ACTIONS:
            raise NotFound(f"there is no action {verb}; there are {', '.join(ACTIONS)}")
        job_or_array = _named(self.own_jobs(), reference)
        if job_or_array is None:
            raise NotFound(f"there is no job {reference}")
        try:
            if isinstance(job_or_array, JobArray):
                changed = array_act(verb, job_or_array, self.user)
            else:
                ACTIONS[verb](job_or_array, self.user)
                changed = 1
        except JobConflict as error:
            raise ConflictError(str(error)) from None
        return Response({"changed": changed})


def _requeue(job: Job, user: User) -> Job:
    """Start a job again: one that runs is stopped first, as by Slurm."""
    if job.state in RUNNING:
        return services.job_release(services.job_hold(job, user), user)
    return services.job_requeue(job, user)


ACTIONS: dict[str, Callable[[Job, User], Job]] = {
    "cancel": services.job_cancel,
    "hold": services.job_hold,
    "release": services.job_release,
    "requeue": _requeue,
}


def _of_references(jobs: QuerySet[Job], references: list[str]) -> Q:
    """Return the condition for jobs with these references: for an array all its elements."""
    condition = Q(pk__in=())
    for reference in references:
        job_or_array = _named(jobs, reference)
        if isinstance(job_or_array, JobArray):
            condition |= Q(array=job_or_array.pk)
        elif job_or_array is not None:
            condition |= Q(pk=job_or_array.pk)
    return condition


def _named(jobs: QuerySet[Job], reference: str) -> Job | JobArray | None:
    """Return the job or array of a number (12), or an element (12_3); None if unknown."""
    # 1. The number, and the index of an element.
    base, index = element_of(reference)
    number = read_number(base)
    if number is None:
        return None

    # 2. An array, or one of its elements.
    array_id = arrays_with_numbers(jobs, [number]).get(number)
    if index is not None:
        return jobs.filter(array=array_id, array_index=index).first() if array_id else None
    if array_id is not None:
        return JobArray.objects.get(pk=array_id)

    # 3. A job.
    job_id = jobs_with_numbers(jobs, [number]).get(number)
    return jobs.get(pk=job_id) if job_id else None


def _moment(text: str) -> datetime | None:
    """Return the moment of epoch seconds; None for no text. Raises ValidationError."""
    if not text:
        return None
    try:
        return datetime.fromtimestamp(float(text), UTC)
    except (ValueError, OverflowError, OSError):
        problem = "must be seconds since 1970, such as 1767225600"
        raise ValidationError({"since_s": [problem]}) from None
