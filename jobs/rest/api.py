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

STATES = [(str(s), str(s)) for s in JobState]


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
        own = Q(user=self.request.user.pk)
        return jobs.filter(own if value else ~own)

    def of_active(self, jobs: QuerySet[Job], name: str, value: bool) -> QuerySet[Job]:
        return jobs.filter(self.of_active_states(value))

    @staticmethod
    def of_active_states(value: bool) -> Q:
        active = Q(state__in=sorted(str(s) for s in ACTIVE))
        return UNFINISHED & active if value else ~active

    def of_array(self, jobs: QuerySet[Job], name: str, value: UUID) -> QuerySet[Job]:
        return jobs.filter(array=value).order_by("array_index")

    def of_fold(self, jobs: QuerySet[Job], name: str, value: bool) -> QuerySet[Job]:
        found = id_begins(self.form.cleaned_data["search"] or "")
        return jobs.filter(first_of_array(self._states()) | found) if value else jobs

    def _states(self) -> Q:
        """Condition of the filters by state, which of an array's elements meet differently."""
        asked = self.form.cleaned_data
        states = Q(state__in=asked["state"]) if asked["state"] else Q()
        active = asked["active"]
        return states if active is None else states & self.of_active_states(active)

    def of_search(self, jobs: QuerySet[Job], name: str, value: str) -> QuerySet[Job]:
        named = Q(name__icontains=value) | Q(kind__name__icontains=value)
        return jobs.filter(named | id_begins(value) | array_id_begins(value))


KEY = "Idempotency-Key"
KEY_HEADER = OpenApiParameter(
    KEY,
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
        return listed_jobs(self.request.user) if self.action == "list" else Job.objects.none()

    def paginate_queryset(self, queryset: QuerySet[Any] | Sequence[Any]) -> list[Any] | None:
        """Page of the list: first ids by an index alone, then their rows."""
        if self.action != "list" or not isinstance(queryset, QuerySet):
            return super().paginate_queryset(queryset)
        ids = super().paginate_queryset(queryset.values_list("pk", flat=True)) or ()
        place = {pk: i for i, pk in enumerate(ids)}
        return sorted(
            listed_jobs(self.request.user).filter(pk__in=place), key=lambda job: place[job.pk]
        )

    def get_serializer(self, *args: Any, **kwargs: Any) -> BaseSerializer[Job]:
        rows = args[0] if args and isinstance(args[0], list) else []
        names = names_in_waiting(self.request.user, rows)
        folds = self.action == "list" and flag_of(self.request, "fold")
        states = states_of(job.array_id for job in rows if job.array_id) if folds else {}
        context = {**self.get_serializer_context(), "names": names, **_starts(rows)}
        kwargs["context"] = {**context, "states": states}
        return serializers.JobSerializer(*args, **kwargs)

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
        user, key = _user(request), request.headers.get(KEY)
        return _submitted(request, lambda: services.job_submit(user, request.data, key))

    @extend_schema(
        request=serializers.JobInput(partial=True),
        responses={201: serializers.SubmissionSerializer, 200: serializers.SubmissionSerializer},
        parameters=[KEY_HEADER],
    )
    @action(detail=True, methods=["post"])
    def clone(self, request: Request, pk: str) -> Response:
        """Submit a job's description again, with the fields of the body replaced."""
        job, user, key = get_job(request.user, pk), _user(request), request.headers.get(KEY)
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
        page = self.paginate_queryset(rows)
        return self.get_paginated_response(serializer(page, many=True).data)


def _user(request: Request) -> User:
    return cast(User, request.user)


def _detail(
    request: Request,
    job: Job,
    serializer: type[serializers.JobSerializer] = serializers.JobDetailSerializer,
) -> serializers.JobSerializer:
    fresh = get_object_or_404(whole_jobs(request.user), pk=job.pk)
    names = names_in_waiting(request.user, [fresh])
    context = {"request": request, "names": names, **_starts([fresh])}
    return serializer(fresh, context={**context, "first_forecast": first_forecast(fresh)})


def _starts(jobs: Sequence[Job]) -> dict[str, Any]:
    """Expected starts of waiting jobs, why others have none, and unknown run times."""
    now = timezone.now()
    found = starts_of(jobs, now)
    return {
        "expected": found.expected,
        "start_unknown": found.unknown,
        "run_times": unknown_run_times(jobs, now, known=found.of_known_end),
    }


def _acted(request: Request, pk: str, act: Callable[[Job, User], Job]) -> Response:
    try:
        job = act(get_job(request.user, pk), _user(request))
    except JobConflict as error:
        raise error_of_conflict(error) from None
    return Response(_detail(request, job).data)


def _submitted(request: Request, submit: Callable[[], Submission]) -> Response:
    try:
        done = submit()
    except JobInvalid as error:
        raise ValidationError(cast("dict[str, Any]", error.fields)) from None
    except JobConflict as error:
        raise error_of_conflict(error) from None
    if done.created:
        return Response(bodies([done])[0], status=status.HTTP_201_CREATED)
    return Response(_detail(request, done.job, serializers.SubmissionSerializer).data)


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
