"""Addresses of clusters and nodes, below /api/v1/."""

from django.urls import URLPattern, URLResolver, include, path
from rest_framework.routers import SimpleRouter

from clusters.rest.api import (
    ClusterViewSet,
    EnrolmentTokenViewSet,
    GpuTypeViewSet,
    NodeViewSet,
    PoliciesView,
)

router = SimpleRouter()
router.register("clusters", ClusterViewSet, basename="cluster")
router.register("nodes", NodeViewSet, basename="node")
router.register("gpu-types", GpuTypeViewSet, basename="gpu-type")
router.register("enrolment-tokens", EnrolmentTokenViewSet, basename="enrolment-token")

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include(router.urls)),
    path("policies/", PoliciesView.as_view(), name="policies"),
]
