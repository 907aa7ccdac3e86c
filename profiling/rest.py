"""REST of kinds."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.contrib.auth.models import AnonymousUser, User
from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import NotFound
from rest_framework.permissions import IsAdminUser
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.web.pages.samples import LEAST_SAMPLES
from controlplane.web.rest.defaults import ShortPages
from controlplane.web.rest.errors import ConflictError
from controlplane.web.rest.strict import StrictView
from jobs.models import Kind
from policies.contract.snapshot import Source
from profiling import services
from profiling.pages.rows import HeldRow, KindRow, ProfileRow, RunRow, table_of, visible_kinds
from profiling.publication import KindStateError, publish, withdraw
from profiling.run_times.errors import ErrorRow, RunTimeErrors
from profiling.run_times.rows import run_time_errors


class ProfileSerializer(serializers.Serializer[ProfileRow]):
    """One number of a kind."""

    gpu_type = serializers.CharField()
    gpus = serializers.IntegerField()
    spread = serializers.BooleanField(help_text="Over several nodes")
    steps_per_s = serializers.FloatField(allow_null=True, help_text="Null if nobody knows")
    samples = serializers.IntegerField(help_text="Measurements it rests on")
    age_s = serializers.FloatField(
        help_text=(
            "Seconds since the newest measurement; for an estimate, of the oldest it is made of"
        )
    )
    estimated_steps_per_s = serializers.FloatField(
        allow_null=True, help_text="What would be estimated from the kind's other numbers"
    )
    error = serializers.FloatField(
        allow_null=True,
        help_text="Relative error of that estimate, or the usual one of an estimate over nodes",
    )
    basis = serializers.CharField(
        allow_blank=True, help_text="Evidence of an estimate over several nodes; else empty"
    )
    published = serializers.BooleanField(
        help_text="Measured by another team, and published by an operator"
    )

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """Add `source`, which as an attribute would hide the one that every field has."""
        return {
            **super().get_fields(),
            "source": serializers.ChoiceField(choices=[str(s) for s in Source]),
        }


class RunSerializer(serializers.Serializer[RunRow]):
    """A measurement wanted, under way or given up."""

    gpu_type = serializers.CharField()
    gpus = serializers.IntegerField()
    state = serializers.ChoiceField(choices=["wanted", "running", "given_up"])
    failures = serializers.IntegerField()
    reason = serializers.CharField()


class HeldSerializer(serializers.Serializer[HeldRow]):
    """A measurement far from what is known, which waits for a second run."""

    gpu_type = serializers.CharField()
    gpus = serializers.IntegerField()
    spread = serializers.BooleanField()
    known_steps_per_s = serializers.FloatField()
    seen_steps_per_s = serializers.FloatField()
    at = serializers.DateTimeField()


class KindSerializer(serializers.Serializer[KindRow]):
    """A kind: what determines a job's speed."""

    id = serializers.IntegerField()
    team = serializers.CharField(allow_null=True, help_text="Null: published for all teams")
    name = serializers.CharField()
    digest = serializers.CharField()
    setup_s = serializers.FloatField(allow_null=True, help_text="Seconds from launch to first step")
    restart_s = serializers.FloatField(
        allow_null=True, help_text="Seconds that a stop and the next launch take; null: never seen"
    )
    lost_s = serializers.FloatField(allow_null=True, help_text="Seconds of work a stop loses")
    saves_at_stop = serializers.BooleanField(
        allow_null=True, help_text="Whether its newest stop lost no work"
    )
    reports_steps = serializers.BooleanField(
        allow_null=True, help_text="If false, speeds are total steps over run times"
    )
    jobs = serializers.IntegerField(help_text="Jobs of it that you may see")
    active_jobs = serializers.IntegerField()
    profiles = ProfileSerializer(many=True)
    runs = RunSerializer(many=True)
    held = HeldSerializer(many=True)
    error = serializers.FloatField(
        allow_null=True,
        help_text="Median relative error of leave-one-out estimates; null below 20 of them",
    )


class KindList(StrictView):
    """Kinds, the newest first."""

    pagination_class = ShortPages

    @extend_schema(operation_id="kinds_list", responses=KindSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Kinds of your teams and published ones: speeds, sources, errors of estimates."""
        paginator = self.pagination_class()
        page = paginator.paginate_queryset(visible_kinds(request.user), request, view=self) or []
        rows = table_of(request.user, page).kinds
        return paginator.get_paginated_response([KindSerializer(row).data for row in rows])


class KindDetail(StrictView):
    """One kind."""

    @extend_schema(operation_id="kinds_retrieve", responses=KindSerializer)
    def get(self, request: Request, pk: int) -> Response:
        """The kind, if it is published or one of your teams'."""
        return Response(KindSerializer(_row(request.user, pk)).data)


class KindForget(StrictView):
    """Have a kind measured anew."""

    permission_classes = [IsAdminUser]

    @extend_schema(operation_id="kinds_forget", request=None, responses=KindSerializer)
    def post(self, request: Request, pk: int) -> Response:
        """Operators: keep its numbers as estimates until they have been measured again."""
        with conflicts():
            services.forget(_kind(request.user, pk))
        return Response(KindSerializer(_row(request.user, pk)).data)


class KindPublish(StrictView):
    """Let all teams use what is measured of a kind."""

    permission_classes = [IsAdminUser]

    @extend_schema(operation_id="kinds_publish", request=None, responses=KindSerializer)
    def post(self, request: Request, pk: int) -> Response:
        """Operators: publish what the kind's team has measured; the answer is the published one."""
        with conflicts():
            shared = publish(_kind(request.user, pk))
        return Response(KindSerializer(_row(request.user, shared.pk)).data)


class KindWithdraw(StrictView):
    """End the publication of a kind."""

    permission_classes = [IsAdminUser]

    @extend_schema(operation_id="kinds_withdraw", request=None, responses={204: None})
    def post(self, request: Request, pk: int) -> Response:
        """Operators: delete a published kind, and its numbers from the teams' kinds."""
        with conflicts():
            withdraw(_kind(request.user, pk))
        return Response(status=status.HTTP_204_NO_CONTENT)


class ErrorRowSerializer(serializers.Serializer[ErrorRow]):
    """Errors of some jobs: predicted less actual run time, in seconds; null below 20 jobs."""

    name = serializers.CharField()
    jobs = serializers.IntegerField()
    mean_s = serializers.FloatField(
        allow_null=True, help_text="With its sign: above 0, the jobs ended sooner"
    )
    absolute_s = serializers.FloatField(allow_null=True, help_text="Mean without sign")
    median_s = serializers.FloatField(allow_null=True, help_text="Median without sign")
    too_short = serializers.FloatField(
        allow_null=True, help_text="Part of the jobs that ran longer than expected"
    )

    def to_representation(self, instance: ErrorRow) -> dict[str, Any]:
        """Return the row, without figures that rest on too few jobs."""
        row: dict[str, Any] = super().to_representation(instance)
        if instance.jobs >= LEAST_SAMPLES:
            return row
        return {**dict.fromkeys(row), "name": instance.name, "jobs": instance.jobs}


class RunTimeErrorsSerializer(serializers.Serializer[RunTimeErrors]):
    """Errors in all (null before the first end), by source of the prediction and by user."""

    total = ErrorRowSerializer(allow_null=True)
    by_source = ErrorRowSerializer(many=True)
    by_user = ErrorRowSerializer(many=True)


class RunTimes(StrictView):
    """Predicted run times of batch jobs."""

    @extend_schema(operation_id="run_times_retrieve", responses=RunTimeErrorsSerializer)
    def get(self, request: Request) -> Response:
        """How far off the predictions were, for the newest batch jobs of your teams."""
        return Response(RunTimeErrorsSerializer(run_time_errors(request.user)).data)


@contextmanager
def conflicts() -> Iterator[None]:
    """Answer 409 if the kind's state does not allow the action."""
    try:
        yield
    except KindStateError as error:
        raise ConflictError(str(error)) from error


def _kind(user: User | AnonymousUser, pk: int) -> Kind:
    """Return a kind that the user may see. Raises NotFound."""
    kind = visible_kinds(user).filter(pk=pk).first()
    if kind is None:
        raise NotFound(f"there is no kind {pk} that is published or one of your teams'")
    return kind


def _row(user: User | AnonymousUser, pk: int) -> KindRow:
    """Return the figures of a kind that the user may see. Raises NotFound."""
    return table_of(user, [_kind(user, pk)]).kinds[0]


urlpatterns = [
    path("kinds/", KindList.as_view(), name="api-kinds"),
    path("kinds/<int:pk>/", KindDetail.as_view(), name="kind"),
    path("kinds/<int:pk>/forget/", KindForget.as_view(), name="kind-forget"),
    path("kinds/<int:pk>/publish/", KindPublish.as_view(), name="kind-publish"),
    path("kinds/<int:pk>/withdraw/", KindWithdraw.as_view(), name="kind-withdraw"),
    path("run-times/", RunTimes.as_view(), name="api-run-times"),
]
