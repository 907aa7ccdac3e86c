"""Addresses of simulations, below /api/v1/."""

from django.urls import URLPattern, URLResolver, include, path
from rest_framework.routers import SimpleRouter

from controlplane.studies.rest.api import (
    JobsView,
    ReportView,
    ResultsView,
    SimulationViewSet,
    WhatIfView,
)

router = SimpleRouter()
router.register("simulations", SimulationViewSet, basename="simulation")

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include(router.urls)),
    path("simulations/<uuid:pk>/results.json", ResultsView.as_view(), name="simulation-results"),
    path("simulations/<uuid:pk>/jobs.csv", JobsView.as_view(), name="simulation-jobs"),
    path("simulations/<uuid:pk>/report.html", ReportView.as_view(), name="simulation-report"),
    path("clusters/<slug:name>/what-if/", WhatIfView.as_view(), name="what-if"),
]
