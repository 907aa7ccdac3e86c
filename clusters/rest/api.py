"""REST of clusters, nodes, GPU types and policies. Users read; only operators change."""

from collections.abc import Callable
from typing import Any, cast

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Count, Prefetch, Q, QuerySet
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
from rest_framework.serializers import Serializer
from rest_framework.viewsets import GenericViewSet, ReadOnlyModelViewSet

from clusters.events import request_reschedule
from clusters.models import (
    Cluster,
    Device,
    EnergyTariff,
    EnrolmentToken,
    GpuType,
    Node,
    Reason,
)
from clusters.rest import serializers
from clusters.services import nodes
from clusters.services.clusters import cluster_change
from clusters.services.enrolment import issue_enrolment_token
from clusters.services.implausible import recent
from clusters.tariff_series import SeriesError, add_series
from clusters.tariffs import costs_changed
from controlplane.audit.record import record, record_values
from controlplane.web.rest.defaults import (
    BoundedPagination,
    OperatorsAct,
    OperatorsOnly,
    ShortPages,
)
from controlplane.web.rest.errors import ConflictError
from controlplane.web.rest.strict import StrictView
from policies.host import registry

OF_CLUSTER = OpenApiParameter(
    "cluster", OpenApiTypes.STR, description="Only those of the cluster of this name"
)


class ClusterViewSet(StrictView, ReadOnlyModelViewSet[Cluster]):
    """Clusters with their policy, intervals and limits."""

    queryset = Cluster.objects.order_by("name")
    serializer_class = serializers.ClusterSerializer
    permission_classes = [*ReadOnlyModelViewSet.permission_classes, OperatorsAct]
    lookup_field = "name"

    @extend_schema(
        request=serializers.ClusterSerializer(partial=True), responses=serializers.ClusterSerializer
    )
    def partial_update(self, request: Request, name: str) -> Response:
        """Change the settings that the next round uses (operators)."""
        cluster = self.get_object()
        serializer = serializers.ClusterSerializer(cluster, data=request.data, partial=True)
        serializer.is_valid(raise_exception=True)
        cluster_change(cluster, cast(User, request.user), serializer.validated_data)
        return Response(serializers.ClusterSerializer(self.get_object()).data)

    @extend_schema(request=None, responses={202: None})
    @action(detail=True, methods=["post"])
    def reschedule(self, request: Request, name: str) -> Response:
        """Ask for a round now (operators)."""
        cluster = self.get_object()
        with transaction.atomic():
            request_reschedule(cluster, Reason.OPERATOR)
            record("cluster.reschedule", cluster)
        return Response(status=status.HTTP_202_ACCEPTED)


class TariffsView(StrictView):
    """Versions of a cluster's prices."""

    pagination_class = BoundedPagination
    permission_classes = [*StrictView.permission_classes, OperatorsAct]

    @extend_schema(operation_id="tariffs_list", responses=serializers.TariffSerializer(many=True))
    def get(self, request: Request, name: str) -> Response:
        """The versions, the one that begins last first."""
        cluster = get_object_or_404(Cluster, name=name)
        tariffs = cluster.tariffs.annotate(prices=Count("steps"))
        paginator = self.pagination_class()
        page = paginator.paginate_queryset(
            tariffs.order_by("-effective_from", "-id"), request, view=self
        )
        data = serializers.TariffSerializer(page, many=True).data
        return paginator.get_paginated_response(data)

    @extend_schema(
        operation_id="tariffs_create",
        request=serializers.SeriesInput,
        responses={201: serializers.TariffSerializer},
    )
    def post(self, request: Request, name: str) -> Response:
        """Add a series of prices, for each hour or quarter of an hour (operators)."""
        # 1. Add the series; its errors belong to the field of the text.
        cluster = get_object_or_404(Cluster, name=name)
        body = _validated_body(serializers.SeriesInput, request)
        user = cast(User, request.user)
        try:
            tariff = add_series(cluster, body["csv"], name=body["name"], by=user)
        except SeriesError as error:
            raise ValidationError({"csv": [str(error)]}) from None

        # 2. Answer with the version and the number of its prices.
        with_prices = EnergyTariff.objects.annotate(prices=Count("steps")).get(pk=tariff.pk)
        data = serializers.TariffSerializer(with_prices).data
        return Response(data, status=status.HTTP_201_CREATED)


class NodeViewSet(StrictView, ReadOnlyModelViewSet[Node]):
    """Nodes and their GPUs."""

    pagination_class = ShortPages
    serializer_class = serializers.NodeSerializer
    permission_classes = [*ReadOnlyModelViewSet.permission_classes, OperatorsAct]
    queryset = Node.objects.none()
    lookup_value_regex = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"

    def get_queryset(self) -> QuerySet[Node]:
        """Return the nodes with their GPUs, the slots held of each, and implausible figures."""
        held = Count("slots_held", filter=Q(slots_held__live=True))
        devices = Prefetch("devices", queryset=Device.objects.order_by("uuid").annotate(held=held))
        nodes = Node.objects.select_related("cluster", "gpu_type")
        nodes = nodes.prefetch_related(devices, recent(timezone.now()))
        return of_cluster(self.request, nodes).order_by("cluster__name", "name")

    @extend_schema(parameters=[OF_CLUSTER])
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().list(request, *args, **kwargs)

    @extend_schema(request=serializers.ReasonSerializer, responses=serializers.NodeSerializer)
    @action(detail=True, methods=["post"])
    def cordon(self, request: Request, pk: str) -> Response:
        """Take no new work; what runs goes on (operators)."""
        body = _validated_body(serializers.ReasonSerializer, request)
        return self._change_node(nodes.node_cordon, **body)

    @extend_schema(request=None, responses=serializers.NodeSerializer)
    @action(detail=True, methods=["post"])
    def uncordon(self, request: Request, pk: str) -> Response:
        """Take work again (operators)."""
        return self._change_node(nodes.node_uncordon)

    @extend_schema(request=serializers.DrainSerializer, responses=serializers.NodeSerializer)
    @action(detail=True, methods=["post"])
    def drain(self, request: Request, pk: str) -> Response:
        """Take no new work, and move what runs away, at once or by the time given (operators)."""
        body = _validated_body(serializers.DrainSerializer, request)
        return self._change_node(nodes.node_drain, **body)

    @extend_schema(request=serializers.RoleSerializer, responses=serializers.NodeSerializer)
    @action(detail=True, methods=["post"])
    def role(self, request: Request, pk: str) -> Response:
        """Say what the node is for: production, profiling or both (operators)."""
        body = _validated_body(serializers.RoleSerializer, request)
        return self._change_node(nodes.node_set_role, **body)

    @extend_schema(request=serializers.SlotsSerializer, responses=serializers.NodeSerializer)
    @action(detail=True, methods=["post"])
    def slots(self, request: Request, pk: str) -> Response:
        """Say how many jobs may share each of its GPUs, or each of those named (operators)."""
        body = _validated_body(serializers.SlotsSerializer, request)
        return self._change_node(nodes.node_set_slots, **body)

    def _change_node(self, service: Callable[..., Node], **values: Any) -> Response:
        """Call a service of `nodes` with the values of the body; answer with the changed node."""
        try:
            service(self.get_object(), actor=self.request.user.get_username(), **values)
        except nodes.SlotsError as error:
            raise ValidationError({error.field: [str(error)]}) from None
        except nodes.NodeStateError as error:
            raise ConflictError(str(error)) from None
        return Response(serializers.NodeSerializer(self.get_object()).data)


class GpuTypeViewSet(StrictView, ReadOnlyModelViewSet[GpuType]):
    """GPU types."""

    queryset = GpuType.objects.order_by("name")
    serializer_class = serializers.GpuTypeSerializer
    permission_classes = [*ReadOnlyModelViewSet.permission_classes, OperatorsAct]
    lookup_field = "name"
    lookup_value_regex = "[^/]+"

    @extend_schema(
        request=serializers.GpuTypeSerializer(partial=True), responses=serializers.GpuTypeSerializer
    )
    def partial_update(self, request: Request, name: str) -> Response:
        """Change the hourly price of a GPU type, and trigger rounds of its clusters (operators)."""
        # 1. Check the body.
        serializer = serializers.GpuTypeSerializer(
            self.get_object(), data=request.data, partial=True
        )
        serializer.is_valid(raise_exception=True)

        # 2. Save it with its row of the audit: prices decide, so each cluster gets a round.
        values = serializer.validated_data
        old_values = {field: getattr(serializer.instance, field) for field in values}
        with transaction.atomic():
            gpu_type = serializer.save()
            record_values("gpu_type.change", gpu_type, values, old_values)
            costs_changed(Cluster.objects.filter(nodes__gpu_type=gpu_type).distinct())
        return Response(serializers.GpuTypeSerializer(gpu_type).data)


class EnrolmentTokenViewSet(
    StrictView, mixins.ListModelMixin, mixins.DestroyModelMixin, GenericViewSet[EnrolmentToken]
):
    """Tokens that let machines in, for operators."""

    queryset = EnrolmentToken.objects.select_related("cluster", "used_by", "node").order_by("-id")
    serializer_class = serializers.EnrolmentTokenSerializer
    permission_classes = [*GenericViewSet.permission_classes, OperatorsOnly]
    lookup_value_regex = "[0-9]{1,18}"

    @extend_schema(
        request=serializers.EnrolmentTokenInput,
        responses={201: serializers.NewEnrolmentTokenSerializer},
    )
    def create(self, request: Request) -> Response:
        """Make a token for one machine, a new node or in place of one; it is shown only here."""
        body = _validated_body(serializers.EnrolmentTokenInput, request)
        token = issue_enrolment_token(
            body["cluster"],
            role=body["role"],
            valid_s=body["valid_h"] * 3600,
            created_by=cast(User, request.user),
            node=body["node"],
        )
        return Response({"token": token}, status=status.HTTP_201_CREATED)

    @transaction.atomic
    def perform_destroy(self, instance: EnrolmentToken) -> None:
        record("enrolment.delete", f"for {instance.cluster}", new={"id": instance.pk})
        instance.delete()


class PoliciesView(StrictView):
    """The policies a cluster may choose from, with their parameters."""

    @extend_schema(responses=serializers.PolicySerializer(many=True))
    def get(self, request: Request) -> Response:
        """All of them, best first."""
        return Response(serializers.PolicySerializer(registry.entries(), many=True).data)


def of_cluster(request: Request, rows: QuerySet[Any]) -> QuerySet[Any]:
    """Return the rows of the cluster that the parameter `cluster` names; all rows without it."""
    name = request.query_params.get("cluster", "")
    if "\0" in name:
        return rows.none()  # PostgreSQL refuses a text with NUL
    if name:
        return rows.filter(cluster__name=name)
    return rows


def _validated_body(serializer_class: type[Serializer[Any]], request: Request) -> dict[str, Any]:
    """Return the validated body of a request. Raises ValidationError."""
    serializer = serializer_class(data=request.data)
    serializer.is_valid(raise_exception=True)
    return cast("dict[str, Any]", serializer.validated_data)


router = SimpleRouter()
router.register("clusters", ClusterViewSet, basename="cluster")
router.register("nodes", NodeViewSet, basename="node")
router.register("gpu-types", GpuTypeViewSet, basename="gpu-type")
router.register("enrolment-tokens", EnrolmentTokenViewSet, basename="enrolment-token")

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include(router.urls)),
    path("clusters/<str:name>/tariffs/", TariffsView.as_view(), name="tariffs"),
    path("policies/", PoliciesView.as_view(), name="policies"),
]
