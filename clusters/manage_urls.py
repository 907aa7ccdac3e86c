"""Addresses of clusters, nodes and rounds, below /api/v1/."""

from django.urls import URLPattern, URLResolver, include, path
from rest_framework.routers import SimpleRouter

from clusters.cost_api import CostsView
from clusters.manage_api import (
    ClusterViewSet,
    EnrolmentTokenViewSet,
    GpuTypeViewSet,
    NodeViewSet,
    PoliciesView,
    RoundViewSet,
)

router = SimpleRouter()
router.register("clusters", ClusterViewSet, basename="cluster")
router.register("nodes", NodeViewSet, basename="node")
router.register("gpu-types", GpuTypeViewSet, basename="gpu-type")
router.register("enrolment-tokens", EnrolmentTokenViewSet, basename="enrolment-token")
router.register("rounds", RoundViewSet, basename="round")

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include(router.urls)),
    path("costs/", CostsView.as_view(), name="api-costs"),
    path("policies/", PoliciesView.as_view(), name="policies"),
]
