"""REST of rounds."""

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.serializers import BaseSerializer
from rest_framework.viewsets import ReadOnlyModelViewSet

from clusters.rest.api import OF_CLUSTER, of_cluster
from controlplane.loop.models import Round
from controlplane.web.rest.defaults import OperatorsOnly
from controlplane.web.rest.strict import StrictView


class RoundSerializer(serializers.ModelSerializer[Round]):
    """A round in a list."""

    cluster = serializers.CharField(source="cluster.name")

    class Meta:
        model = Round
        fields = [
            "id", "cluster", "number", "status", "reasons", "policy", "parameters", "seed",
            "plan_status", "objective", "bound",
            "cost_rate_per_h", "message", "carried", "started_at", "ended_at", "snapshot_s",
            "solve_s", "apply_s",
        ]  # fmt: skip  # a long list of names


class RoundDetailSerializer(RoundSerializer):
    """A round with its snapshot and plan, which name every team's jobs: for operators."""

    class Meta(RoundSerializer.Meta):
        fields = [
            *RoundSerializer.Meta.fields,
            "snapshot_sha256",
            "plan_sha256",
            "changes",
            "rejected",
            "snapshot",
            "plan",
        ]


class RoundViewSet(StrictView, ReadOnlyModelViewSet[Round]):
    """Rounds, newest first. A round by itself shows snapshot and plan, and is for operators."""

    queryset = Round.objects.none()

    def get_queryset(self) -> QuerySet[Round]:
        rounds = of_cluster(self.request, Round.objects.select_related("cluster")).order_by("-id")
        if self.action == "list":
            return rounds.defer("snapshot", "plan", "runs_expected", "changes", "rejected")
        return rounds

    def get_serializer_class(self) -> type[BaseSerializer[Round]]:
        return RoundSerializer if self.action == "list" else RoundDetailSerializer

    def get_permissions(self) -> list[Any]:
        return [*super().get_permissions(), *([] if self.action == "list" else [OperatorsOnly()])]

    @extend_schema(parameters=[OF_CLUSTER])
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().list(request, *args, **kwargs)


router = SimpleRouter()
router.register("rounds", RoundViewSet, basename="round")
