"""REST of kinds."""

from typing import Any

from django.contrib.auth.models import AnonymousUser, User
from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.permissions import IsAdminUser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.web.rest.defaults import BoundedPagination
from jobs.models import Kind
from policies.contract.snapshot import Source
from profiling import services
from profiling.pages.rows import KindRow, ProfileRow, RunRow, table_of, visible_kinds
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
    error = serializers.FloatField(allow_null=True, help_text="Relative error of that estimate")

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
    reason = serializers.CharField(help_text="Empty where it comes from a job of another team")


class KindSerializer(serializers.Serializer[KindRow]):
    """A kind: what determines a job's speed."""

    id = serializers.IntegerField()
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
    error = serializers.FloatField(
        allow_null=True, help_text="Median relative error of leave-one-out estimates"
    )


class KindList(APIView):
    """Kinds, the newest first."""

    pagination_class = BoundedPagination

    @extend_schema(operation_id="kinds_list", responses=KindSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Kinds of the jobs you may see: what is known, its source, and the errors of estimates."""
        paginator = self.pagination_class()
        page = paginator.paginate_queryset(visible_kinds(request.user), request, view=self) or []
        return paginator.get_paginated_response(
            [KindSerializer(row).data for row in table_of(request.user, page).kinds]
        )


class KindDetail(APIView):
    """One kind."""

    @extend_schema(operation_id="kinds_retrieve", responses=KindSerializer)
    def get(self, request: Request, pk: int) -> Response:
        """The kind, if it is one of a job you may see."""
        return Response(KindSerializer(_row(request.user, pk)).data)


class KindForget(APIView):
    """Have a kind measured anew."""

    permission_classes = [IsAdminUser]

    @extend_schema(operation_id="kinds_forget", request=None, responses=KindSerializer)
    def post(self, request: Request, pk: int) -> Response:
        """Operators: keep its numbers as estimates until they have been measured again."""
        services.forget(_kind(request.user, pk))
        return Response(KindSerializer(_row(request.user, pk)).data)


class ErrorRowSerializer(serializers.Serializer[ErrorRow]):
    """Errors of some jobs: predicted less actual run time, in seconds."""

    name = serializers.CharField()
    jobs = serializers.IntegerField()
    mean_s = serializers.FloatField(help_text="With its sign: above 0, the jobs ended sooner")
    absolute_s = serializers.FloatField(help_text="Mean without sign")
    median_s = serializers.FloatField(help_text="Median without sign")
    too_short = serializers.FloatField(help_text="Part of the jobs that ran longer than expected")


class RunTimeErrorsSerializer(serializers.Serializer[RunTimeErrors]):
    """Errors in all (null before the first end), by source of the prediction and by user."""

    total = ErrorRowSerializer(allow_null=True)
    by_source = ErrorRowSerializer(many=True)
    by_user = ErrorRowSerializer(many=True)


class RunTimes(APIView):
    """Predicted run times of batch jobs."""

    @extend_schema(operation_id="run_times_retrieve", responses=RunTimeErrorsSerializer)
    def get(self, request: Request) -> Response:
        """How far off the predictions were, for the newest batch jobs of your teams."""
        return Response(RunTimeErrorsSerializer(run_time_errors(request.user)).data)


def _kind(user: User | AnonymousUser, pk: int) -> Kind:
    kind = visible_kinds(user).filter(pk=pk).first()
    if kind is None:
        raise NotFound(f"there is no kind {pk}, or none of its jobs is one you may see")
    return kind


def _row(user: User | AnonymousUser, pk: int) -> KindRow:
    return table_of(user, [_kind(user, pk)]).kinds[0]


urlpatterns = [
    path("kinds/", KindList.as_view(), name="api-kinds"),
    path("kinds/<int:pk>/", KindDetail.as_view(), name="kind"),
    path("kinds/<int:pk>/forget/", KindForget.as_view(), name="kind-forget"),
    path("run-times/", RunTimes.as_view(), name="api-run-times"),
]
