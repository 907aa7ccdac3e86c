"""REST: jobs. Views parse, call one service or selector, and answer; see `jobs.selectors`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from django.contrib.auth.models import User
from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import mixins, status
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer
from rest_framework.viewsets import GenericViewSet

from controlplane.web.rest.errors import ConflictError
from jobs import services
from jobs.logs import MAX_PIECE, MIN_PIECE, PIECE, STREAMS, BadCursor, read_log
from jobs.models import Job
from jobs.rest.answers import bodies
from jobs.rest.filters import JobFilter
from jobs.rest.serializers import (
    AssignmentSerializer,
    AttemptSerializer,
    JobDetailSerializer,
    JobEventSerializer,
    JobInput,
    JobSerializer,
    LogSerializer,
    SubmissionSerializer,
)
from jobs.selectors import JobNotFound, get_job, listed_jobs, names_in_waiting
from jobs.services import JobConflict, JobInvalid, Submission

KEY_HEADER = OpenApiParameter(
    "Idempotency-Key",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="The same key and body give the same job again",
)
LOG_PARAMETERS = [
    OpenApiParameter("stream", OpenApiTypes.STR, enum=list(STREAMS), default="stdout"),
    OpenApiParameter(
        "cursor", OpenApiTypes.STR, description="From the answer before; leave out to begin"
    ),
    OpenApiParameter(
        "offset", OpenApiTypes.INT64, description="Byte to begin with; from the end where negative"
    ),
    OpenApiParameter("rank", OpenApiTypes.INT, default=0),
    OpenApiParameter(
        "limit", OpenApiTypes.INT, default=PIECE, description="Bytes of a piece at most"
    ),
]


class JobViewSet(mixins.ListModelMixin, GenericViewSet[Job]):
    """Jobs of the caller's teams; operators see all."""

    queryset = Job.objects.none()
    serializer_class = JobSerializer
    filterset_class = JobFilter
    lookup_value_regex = "[0-9a-fA-F-]{36}"

    def get_queryset(self) -> QuerySet[Job]:
        """What the caller may see, with all a list shows."""
        return listed_jobs(self.request.user) if self.action == "list" else Job.objects.none()

    def paginate_queryset(self, queryset: QuerySet[Any] | Sequence[Any]) -> list[Any] | None:
        """A page of the list: first ids by an index alone, then their rows."""
        if self.action != "list" or not isinstance(queryset, QuerySet):
            return super().paginate_queryset(queryset)
        ids = super().paginate_queryset(queryset.values_list("pk", flat=True)) or ()
        place = {pk: i for i, pk in enumerate(ids)}
        return sorted(
            listed_jobs(self.request.user).filter(pk__in=place), key=lambda job: place[job.pk]
        )

    def get_serializer(self, *args: Any, **kwargs: Any) -> BaseSerializer[Job]:
        """The list's serializer, with the names that its reasons for waiting need."""
        rows = args[0] if args and isinstance(args[0], list) else []
        names = names_in_waiting(self.request.user, rows)
        kwargs["context"] = {**self.get_serializer_context(), "names": names}
        return JobSerializer(*args, **kwargs)

    @extend_schema(responses=JobDetailSerializer)
    def retrieve(self, request: Request, pk: str) -> Response:
        """One job with its progress, placement and description."""
        return Response(_detail(request, _job(request, pk)).data)

    @extend_schema(
        request=JobInput,
        responses={201: SubmissionSerializer, 200: SubmissionSerializer},
        parameters=[KEY_HEADER],
    )
    def create(self, request: Request) -> Response:
        """Submit a job."""
        return _submitted(
            request, lambda: services.job_submit(_user(request), request.data, _key(request))
        )

    @extend_schema(
        request=JobInput(partial=True),
        responses={201: SubmissionSerializer, 200: SubmissionSerializer},
        parameters=[KEY_HEADER],
    )
    @action(detail=True, methods=["post"])
    def clone(self, request: Request, pk: str) -> Response:
        """Submit a job's description again, with the fields of the body replaced."""
        job = _job(request, pk)
        return _submitted(
            request, lambda: services.job_clone(job, _user(request), request.data, _key(request))
        )

    @extend_schema(request=None, responses=JobDetailSerializer)
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: str) -> Response:
        """Stop the job for good; it is `cancelling` until its processes are gone."""
        return _acted(request, pk, services.job_cancel)

    @extend_schema(request=None, responses=JobDetailSerializer)
    @action(detail=True, methods=["post"])
    def hold(self, request: Request, pk: str) -> Response:
        """Keep the job out of the queue; one that runs saves a checkpoint first."""
        return _acted(request, pk, services.job_hold)

    @extend_schema(request=None, responses=JobDetailSerializer)
    @action(detail=True, methods=["post"])
    def release(self, request: Request, pk: str) -> Response:
        """Let a held job into the queue again."""
        return _acted(request, pk, services.job_release)

    @extend_schema(request=None, responses=JobDetailSerializer)
    @action(detail=True, methods=["post"])
    def requeue(self, request: Request, pk: str) -> Response:
        """Give a failed or cancelled job another chance, from its last checkpoint."""
        return _acted(request, pk, services.job_requeue)

    @extend_schema(responses=JobEventSerializer(many=True), filters=False)
    @action(detail=True, filterset_class=None)
    def events(self, request: Request, pk: str) -> Response:
        """Everything that happened to the job, oldest first."""
        return self._page(JobEventSerializer, _job(request, pk).events.all())

    @extend_schema(responses=AttemptSerializer(many=True), filters=False)
    @action(detail=True, filterset_class=None)
    def attempts(self, request: Request, pk: str) -> Response:
        """The job's tries."""
        return self._page(AttemptSerializer, _job(request, pk).attempts.all())

    @extend_schema(responses=AssignmentSerializer(many=True), filters=False)
    @action(detail=True, filterset_class=None)
    def assignments(self, request: Request, pk: str) -> Response:
        """Where the job was and is, with what was predicted and measured."""
        rows = (
            _job(request, pk)
            .assignments.select_related("node__gpu_type")
            .prefetch_related("slots__device")
        )
        return self._page(AssignmentSerializer, rows.order_by("created_at", "copy", "rank"))

    @extend_schema(responses=LogSerializer, parameters=LOG_PARAMETERS, filters=False)
    @action(detail=True, filterset_class=None, pagination_class=None)
    def logs(self, request: Request, pk: str) -> Response:
        """A piece of the job's log; ask again with its cursor until `done`."""
        job, query = _job(request, pk), request.query_params
        stream = query.get("stream", "stdout")
        if stream not in STREAMS:
            raise ValidationError({"stream": [f"must be {' or '.join(STREAMS)}"]})
        offset = _whole(query.get("offset"), "offset", -(2**62), 2**62)
        limit = _whole(query.get("limit"), "limit", MIN_PIECE, MAX_PIECE) or PIECE
        rank = _whole(query.get("rank"), "rank", 0, 100_000) or 0
        try:
            piece = read_log(
                job, stream, cursor=query.get("cursor", ""), offset=offset, rank=rank, limit=limit
            )
        except BadCursor as error:
            raise ValidationError({"cursor": [str(error).partition(": ")[2]]}) from None
        return Response(LogSerializer(piece).data)

    def _page(
        self, serializer: Callable[..., BaseSerializer[Any]], rows: QuerySet[Any]
    ) -> Response:
        page = self.paginate_queryset(rows)
        return self.get_paginated_response(serializer(page, many=True).data)


def _user(request: Request) -> User:
    return cast(User, request.user)


def _job(request: Request, pk: str) -> Job:
    try:
        return get_job(_user(request), pk)
    except JobNotFound as error:
        raise NotFound(str(error)) from None


def _key(request: Request) -> str | None:
    return request.headers.get("Idempotency-Key")


def _detail(
    request: Request, job: Job, serializer: type[JobSerializer] = JobDetailSerializer
) -> JobSerializer:
    fresh = listed_jobs(_user(request)).get(pk=job.pk)
    return serializer(
        fresh, context={"request": request, "names": names_in_waiting(_user(request), [fresh])}
    )


def _acted(request: Request, pk: str, act: Callable[[Job, User], Job]) -> Response:
    try:
        job = act(_job(request, pk), _user(request))
    except JobConflict as error:
        raise ConflictError(str(error)) from None
    return Response(_detail(request, job).data)


def _submitted(request: Request, submit: Callable[[], Submission]) -> Response:
    try:
        done = submit()
    except JobInvalid as error:
        raise ValidationError(cast("dict[str, Any]", error.fields)) from None
    except JobConflict as error:
        raise ConflictError(str(error)) from None
    if done.created:
        return Response(bodies([done])[0], status=status.HTTP_201_CREATED)
    return Response(_detail(request, done.job, SubmissionSerializer).data)


def _whole(text: str | None, name: str, least: int, most: int) -> int | None:
    if text is None:
        return None
    if not text.removeprefix("-").isdecimal() or len(text) > 20 or not least <= int(text) <= most:
        raise ValidationError({name: [f"must be a whole number from {least} to {most}"]})
    return int(text)
