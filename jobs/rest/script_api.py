"""REST for the programs of running scripts: squeue, scancel, scontrol and sbatch.

The credential is a launch's token (`jobs.launch_tokens`). It gives access to its user's own jobs of
the launch's team, and to nothing else: no secrets, no logs, no actions of operators.
"""

from collections.abc import Callable
from typing import Any, cast

from django.contrib.auth.models import User
from django.db.models import Q, QuerySet
from django.utils import timezone
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
from jobs.models import Assignment, Job, JobArray
from jobs.numbers import arrays_with_numbers, jobs_with_numbers
from jobs.selectors import live_assignments, visible_jobs
from jobs.submission.refusals import JobConflict
from jobs.submission.validation import JobInvalid
from loadmaster.slurm.scripts.numbers import read_number

MOST_ROWS = 10_000
"""Jobs of one answer: the elements of the largest array."""

MOST_NUMBERS = 100
"""Numbers of one request."""

RUNNING = (JobState.STARTING, JobState.RUNNING, JobState.STOPPING)


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

    @extend_schema(exclude=True, parameters=[OpenApiParameter("numbers", str)])
    def get(self, request: Request) -> Response:
        """List those of `numbers` (1,2,3_4), or all that are not over."""
        numbers = request.query_params.get("numbers", "")
        jobs = self.own_jobs()
        if numbers:
            jobs = jobs.filter(_of_references(jobs, numbers.split(",")[:MOST_NUMBERS]))
        else:
            jobs = jobs.filter(state__in=sorted(map(str, ACTIVE)))
        return Response({"jobs": _rows(list(jobs.order_by("number")[:MOST_ROWS]))})

    @extend_schema(exclude=True, request=OpenApiTypes.OBJECT)
    def post(self, request: Request) -> Response:
        """Submit a script {"sbatch": {...}} to the own team and cluster."""
        data = request.data
        if not isinstance(data, dict) or data.keys() != {"sbatch"}:
            raise ValidationError({"sbatch": ["must be the only field, with the script to submit"]})
        where = {"team": self.job.team.name, "cluster": self.job.cluster.name}
        try:
            key = request.headers.get("Idempotency-Key")
            fields = {**where, "sbatch": data["sbatch"]}
            submission = services.job_submit(self.user, fields, key)
        except JobInvalid as error:
            raise ValidationError(cast("dict[str, Any]", error.fields)) from None
        except JobConflict as error:
            raise ConflictError(str(error)) from None
        array = submission.job.array
        number = submission.job.number if array is None else array.number
        answer = {"number": number, "warnings": list(submission.warnings)}
        return Response(answer, status=201)


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
    base, index = element_of(reference)
    number = read_number(base)
    if number is None:
        return None
    array = arrays_with_numbers(jobs, [number]).get(number)
    if index is not None:
        return jobs.filter(array=array, array_index=index).first() if array else None
    if array is not None:
        return JobArray.objects.get(pk=array)
    job = jobs_with_numbers(jobs, [number]).get(number)
    return jobs.get(pk=job) if job else None


def _rows(jobs: list[Job]) -> list[dict[str, Any]]:
    """Return jobs in the form that `loadmaster.slurm.programs.listing.Row` describes."""
    nodes: dict[Any, list[str]] = {}
    for assignment in live_assignments().filter(job__in=[job.pk for job in jobs]):
        nodes.setdefault(assignment.job_id, []).append(assignment.node.name)
    codes = _exit_codes(jobs)
    return [_row(job, nodes.get(job.pk, []), codes.get(job.pk)) for job in jobs]


def _exit_codes(jobs: list[Job]) -> dict[Any, int]:
    """Return the exit code of the last launch of each job that is over."""
    ended = [job.pk for job in jobs if job.is_over]
    rows = Assignment.objects.filter(job__in=ended, rank=0, exit_code__isnull=False)
    codes: dict[Any, int] = {}
    for job, code in rows.order_by("created_at").values_list("job", "exit_code"):
        if code is not None:
            codes[job] = code  # that of a later launch replaces an earlier one's
    return codes


def _row(job: Job, nodes: list[str], exit_code: int | None) -> dict[str, Any]:
    now = timezone.now()
    end = job.completed_at or now
    array = job.array
    return {
        "number": job.number,
        "array": None if array is None else array.number,
        "index": job.array_index,
        "at_once": None if array is None else array.at_once,
        "name": job.name,
        "user": job.user.get_username(),
        "cluster": job.cluster.name,
        "state": job.state,
        "waiting": job.waiting_code,
        "failure": job.failure_reason[:200],
        "nodes": nodes,
        "node_count": len(nodes) or job.nodes or 1,
        "units": job.units,
        "cores": job.cores * job.units,
        "memory_gb": job.memory_gb * job.units,
        "gpus": job.gpus_max,
        "priority": job.priority,
        "restarts": max(0, job.fence - 1),
        "exit_code": exit_code,
        "submitted_s": job.submitted_at.timestamp(),
        "begin_s": job.begin_at.timestamp() if job.begin_at else None,
        "started_s": job.started_at.timestamp() if job.started_at else None,
        "ended_s": job.completed_at.timestamp() if job.completed_at else None,
        "run_s": (end - job.started_at).total_seconds() if job.started_at else 0.0,
        "walltime_s": job.walltime_s,
        "folder": job.folder,
        "output": job.output,
        "error_output": job.error_output or job.output,
        "preemptible": job.preemptible,
    }
