"""REST of jobs."""

from collections.abc import Callable, Sequence
from typing import Any, cast
from uuid import UUID

import django_filters
from django.contrib.auth.models import User
from django.db.models import Q, QuerySet
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, URLResolver, include, path
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import mixins, status
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.serializers import BaseSerializer
from rest_framework.viewsets import GenericViewSet

from controlplane.web.models import Scope
from controlplane.web.rest.strict import FlagFilter, StrictView, flag_of
from jobs import services
from jobs.arrays.selectors import first_of_array, states_of
from jobs.forecasts.expected_starts import first_forecast, starts_of
from jobs.forecasts.run_times import unknown_run_times
from jobs.lifecycle import ACTIVE, JobState
from jobs.logs import BadCursor, read_log
from jobs.models import UNFINISHED, Job
from jobs.rest import arrays_api, people_api, script_api, serializers, teams_api
from jobs.rest.bulk_api import JobsBulkView, bodies, error_of_conflict
from jobs.selectors import (
    array_id_begins,
    get_job,
    id_begins,
    listed_jobs,
    names_in_waiting,
    whole_jobs,
)
from jobs.submission.array_expression import MAX_INDEX
from jobs.submission.refusals import JobConflict
from jobs.submission.submit import Submission
from jobs.submission.validation import JobInvalid

STATES = [(str(state), str(state)) for state in JobState]
"""Choices of the filter by state, as (value, label)."""


class JobFilter(django_filters.FilterSet):  # type: ignore[misc]  # the library has no types
    """Filters by state, team, cluster, mine, active and search."""

    state = django_filters.MultipleChoiceFilter(choices=STATES, distinct=False)
    team = django_filters.CharFilter(field_name="team__name")
    cluster = django_filters.CharFilter(field_name="cluster__name")
    mine = FlagFilter(method="of_mine", label="Only jobs the caller submitted")
    active = FlagFilter(
        method="of_active", label="Only jobs that are not over (false: only those that are)"
    )
    search = django_filters.CharFilter(
        method="of_search",
        label="Part of the name or of the kind's name, the number, or the id's beginning",
    )
    array = django_filters.UUIDFilter(
        method="of_array", label="Only elements of this array, in the order of their indices"
    )
    index = django_filters.NumberFilter(field_name="array_index", min_value=0, max_value=MAX_INDEX)
    fold = FlagFilter(
        method="of_fold", label="Of each array only its first element, with numbers by state"
    )

    class Meta:
        model = Job
        fields: list[str] = []

    def of_mine(self, jobs: QuerySet[Job], name: str, value: bool) -> QuerySet[Job]:
        """Return only own jobs, or, for false, only those of others."""
        own = Q(user=self.request.user.pk)
        return jobs.filter(own if value else ~own)

    def of_active(self, jobs: QuerySet[Job], name: str, value: bool) -> QuerySet[Job]:
        """Return only jobs that are not over, or, for false, only those that are."""
        return jobs.filter(self._is_active(value))

    @staticmethod
    def _is_active(value: bool) -> Q:
        """Return the condition of the filter `active`."""
        active = Q(state__in=sorted(str(state) for state in ACTIVE))
        if value:
            return UNFINISHED & active  # the index of unfinished jobs serves the first part
        return ~active

    def of_array(self, jobs: QuerySet[Job], name: str, value: UUID) -> QuerySet[Job]:
        """Return the elements of an array in the order of their indices."""
        return jobs.filter(array=value).order_by("array_index")

    def of_fold(self, jobs: QuerySet[Job], name: str, value: bool) -> QuerySet[Job]:
        """Return of each array only the first element that the other filters leave.

        An element whose own id or number is searched for stays, too.
        """
        if not value:
            return jobs
        searched = id_begins(self.form.cleaned_data["search"] or "")
        return jobs.filter(first_of_array(self._has_state()) | searched)

    def _has_state(self) -> Q:
        """Return the condition of the filters by state, in which elements of an array differ."""
        filters = self.form.cleaned_data
        condition = Q()
        if filters["state"]:
            condition &= Q(state__in=filters["state"])
        if filters["active"] is not None:
            condition &= self._is_active(filters["active"])
        return condition

    def of_search(self, jobs: QuerySet[Job], name: str, value: str) -> QuerySet[Job]:
        """Return the jobs whose name, kind, number or id has this text."""
        is_named = Q(name__icontains=value) | Q(kind__name__icontains=value)
        return jobs.filter(is_named | id_begins(value) | array_id_begins(value))


KEY_NAME = "Idempotency-Key"
KEY_HEADER = OpenApiParameter(
    KEY_NAME,
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="The same key and body give the same job again",
)


class JobViewSet(StrictView, mixins.ListModelMixin, GenericViewSet[Job]):
    """Jobs of the caller's teams; operators see all."""

    write_scope = Scope.SUBMIT
    queryset = Job.objects.none()
    serializer_class = serializers.JobSerializer
    filterset_class = JobFilter
    lookup_value_regex = "[0-9a-fA-F-]{36}"

    def get_queryset(self) -> QuerySet[Job]:
        """Return the jobs of the list; other actions get their job by `get_job`."""
        if self.action == "list":
            return listed_jobs(self.request.user)
        return Job.objects.none()

    def paginate_queryset(self, queryset: QuerySet[Any] | Sequence[Any]) -> list[Any] | None:
        """Return a page of the list: first ids by an index alone, then their rows."""
        if self.action != "list" or not isinstance(queryset, QuerySet):
            return super().paginate_queryset(queryset)
        ids = super().paginate_queryset(queryset.values_list("pk", flat=True)) or ()
        place_by_id = {pk: place for place, pk in enumerate(ids)}
        jobs = listed_jobs(self.request.user).filter(pk__in=place_by_id)
        return sorted(jobs, key=lambda job: place_by_id[job.pk])

    def get_serializer(self, *args: Any, **kwargs: Any) -> BaseSerializer[Job]:
        """Return the serializer of a page, with all that its jobs need, read at once."""
        jobs: list[Job] = args[0] if args and isinstance(args[0], list) else []
        context: dict[str, Any] = dict(self.get_serializer_context())
        context["names"] = names_in_waiting(self.request.user, jobs)
        context.update(_starts(jobs))
        if self.action == "list" and flag_of(self.request, "fold"):
            context["states"] = states_of(job.array_id for job in jobs if job.array_id)
        return serializers.JobSerializer(*args, **{**kwargs, "context": context})

    @extend_schema(responses=serializers.JobDetailSerializer)
    def retrieve(self, request: Request, pk: str) -> Response:
        """One job with its progress, placement and description."""
        return Response(_detail(request, get_job(request.user, pk)).data)

    @extend_schema(
        request=serializers.JobInput,
        responses={201: serializers.SubmissionSerializer, 200: serializers.SubmissionSerializer},
        parameters=[KEY_HEADER],
    )
    def create(self, request: Request) -> Response:
        """Submit a job."""
        user = _user(request)
        key = request.headers.get(KEY_NAME)
        return _submitted(request, lambda: services.job_submit(user, request.data, key))

    @extend_schema(
        request=serializers.JobInput(partial=True),
        responses={201: serializers.SubmissionSerializer, 200: serializers.SubmissionSerializer},
        parameters=[KEY_HEADER],
    )
    @action(detail=True, methods=["post"])
    def clone(self, request: Request, pk: str) -> Response:
        """Submit a job's description again, with the fields of the body replaced."""
        job = get_job(request.user, pk)
        user = _user(request)
        key = request.headers.get(KEY_NAME)
        return _submitted(request, lambda: services.job_clone(job, user, request.data, key))

    @extend_schema(request=None, responses=serializers.JobDetailSerializer)
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: str) -> Response:
        """Stop the job for good; it is `cancelling` until its processes are gone."""
        return _acted(request, pk, services.job_cancel)

    @extend_schema(request=None, responses=serializers.JobDetailSerializer)
    @action(detail=True, methods=["post"])
    def hold(self, request: Request, pk: str) -> Response:
        """Keep the job out of the queue; one that runs saves a checkpoint first."""
        return _acted(request, pk, services.job_hold)

    @extend_schema(request=None, responses=serializers.JobDetailSerializer)
    @action(detail=True, methods=["post"])
    def release(self, request: Request, pk: str) -> Response:
        """Let a held job into the queue again."""
        return _acted(request, pk, services.job_release)

    @extend_schema(request=None, responses=serializers.JobDetailSerializer)
    @action(detail=True, methods=["post"])
    def requeue(self, request: Request, pk: str) -> Response:
        """Give a failed or cancelled job another chance, from its last checkpoint."""
        return _acted(request, pk, services.job_requeue)

    @extend_schema(responses=serializers.JobEventSerializer(many=True), filters=False)
    @action(detail=True, filterset_class=None)
    def events(self, request: Request, pk: str) -> Response:
        """Everything that happened to the job, oldest first."""
        return self._page(serializers.JobEventSerializer, get_job(request.user, pk).events.all())

    @extend_schema(responses=serializers.AttemptSerializer(many=True), filters=False)
    @action(detail=True, filterset_class=None)
    def attempts(self, request: Request, pk: str) -> Response:
        """The job's tries."""
        return self._page(serializers.AttemptSerializer, get_job(request.user, pk).attempts.all())

    @extend_schema(responses=serializers.AssignmentSerializer(many=True), filters=False)
    @action(detail=True, filterset_class=None)
    def assignments(self, request: Request, pk: str) -> Response:
        """Where the job was and is, with what was predicted and measured."""
        rows = get_job(request.user, pk).assignments.order_by("created_at", "copy", "rank")
        rows = rows.select_related("node__gpu_type").prefetch_related("slots__device")
        return self._page(serializers.AssignmentSerializer, rows)

    @extend_schema(
        responses=serializers.LogSerializer, parameters=[serializers.LogQuery], filters=False
    )
    @action(detail=True, filterset_class=None, pagination_class=None)
    def logs(self, request: Request, pk: str) -> Response:
        """A piece of the job's log; ask again with its cursor until `done`."""
        query = serializers.LogQuery(data=request.query_params)
        job = get_job(request.user, pk)
        query.is_valid(raise_exception=True)
        try:
            piece = read_log(job, **query.validated_data)
        except BadCursor as error:
            raise ValidationError({"cursor": [str(error).partition(": ")[2]]}) from None
        return Response(serializers.LogSerializer(piece).data)

    def _page(
        self, serializer: Callable[..., BaseSerializer[Any]], rows: QuerySet[Any]
    ) -> Response:
        """Answer with a page of these rows."""
        page = self.paginate_queryset(rows)
        return self.get_paginated_response(serializer(page, many=True).data)


def _user(request: Request) -> User:
    """Return the caller, who is logged in."""
    return cast(User, request.user)


def _detail(
    request: Request,
    job: Job,
    serializer: type[serializers.JobSerializer] = serializers.JobDetailSerializer,
) -> serializers.JobSerializer:
    """Return the serializer of one job, read anew."""
    newest = get_object_or_404(whole_jobs(request.user), pk=job.pk)
    context = {
        "request": request,
        "names": names_in_waiting(request.user, [newest]),
        "first_forecast": first_forecast(newest),
        **_starts([newest]),
    }
    return serializer(newest, context=context)


def _starts(jobs: Sequence[Job]) -> dict[str, Any]:
    """Return expected starts of waiting jobs, why others have none, and unknown run times."""
    now = timezone.now()
    starts = starts_of(jobs, now)
    return {
        "expected": starts.expected,
        "start_unknown": starts.unknown,
        "run_times": unknown_run_times(jobs, now, known=starts.of_known_end),
    }


def _acted(request: Request, pk: str, act: Callable[[Job, User], Job]) -> Response:
    """Act on a job, and answer with the job; 409 if its state does not allow it."""
    try:
        job = act(get_job(request.user, pk), _user(request))
    except JobConflict as error:
        raise error_of_conflict(error) from None
    return Response(_detail(request, job).data)


def _submitted(request: Request, submit: Callable[[], Submission]) -> Response:
    """Submit, and answer 201 with the job; 200 if the key is known from an earlier call."""
    try:
        submission = submit()
    except JobInvalid as error:
        raise ValidationError(cast("dict[str, Any]", error.fields)) from None
    except JobConflict as error:
        raise error_of_conflict(error) from None
    if submission.created:
        return Response(bodies([submission])[0], status=status.HTTP_201_CREATED)
    return Response(_detail(request, submission.job, serializers.SubmissionSerializer).data)


router = SimpleRouter()
router.register("jobs", JobViewSet, basename="job")

urlpatterns: list[URLPattern | URLResolver] = [
    path("jobs/bulk/", JobsBulkView.as_view(), name="jobs-bulk"),
    path("", include(router.urls)),
    path("arrays/<uuid:array_id>/", arrays_api.ArrayView.as_view(), name="api-array"),
    path("arrays/<uuid:array_id>/<slug:verb>/", arrays_api.ArrayActionView.as_view()),
    path("script/jobs/", script_api.ScriptJobsView.as_view(), name="script-jobs"),
    path("script/jobs/<str:reference>/<slug:verb>/", script_api.ScriptActionView.as_view()),
    path("script/nodes/", script_api.ScriptNodesView.as_view(), name="script-nodes"),
    path("me/", people_api.MeView.as_view(), name="me"),
    path("teams/", teams_api.TeamsView.as_view(), name="teams"),
    path("teams/<slug:team>/", teams_api.TeamView.as_view(), name="team"),
    path("teams/<slug:team>/members/<str:username>/", teams_api.MemberView.as_view()),
    path("teams/<slug:team>/secrets/", teams_api.SecretsView.as_view(), name="secrets"),
    path("teams/<slug:team>/secrets/<str:name>/", teams_api.SecretView.as_view(), name="secret"),
    path("tokens/", people_api.TokensView.as_view(), name="tokens"),
    path("tokens/current/", people_api.CurrentTokenView.as_view(), name="current-token"),
    path("tokens/<slug:key>/", people_api.TokenView.as_view(), name="token"),
]
