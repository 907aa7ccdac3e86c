"""Addresses of jobs, teams and tokens, below /api/v1/."""

from django.urls import URLPattern, URLResolver, include, path
from rest_framework.routers import SimpleRouter

from jobs.rest.api import JobViewSet
from jobs.rest.bulk_api import JobsBulkView
from jobs.rest.people_api import (
    CurrentTokenView,
    MeView,
    SecretsView,
    SecretView,
    TeamsView,
    TeamView,
    TokensView,
    TokenView,
)

router = SimpleRouter()
router.register("jobs", JobViewSet, basename="job")

urlpatterns: list[URLPattern | URLResolver] = [
    path("jobs/bulk/", JobsBulkView.as_view(), name="jobs-bulk"),
    path("", include(router.urls)),
    path("me/", MeView.as_view(), name="me"),
    path("teams/", TeamsView.as_view(), name="teams"),
    path("teams/<slug:team>/", TeamView.as_view(), name="team"),
    path("teams/<slug:team>/secrets/", SecretsView.as_view(), name="secrets"),
    path("teams/<slug:team>/secrets/<str:name>/", SecretView.as_view(), name="secret"),
    path("tokens/", TokensView.as_view(), name="tokens"),
    path("tokens/current/", CurrentTokenView.as_view(), name="current-token"),
    path("tokens/<slug:key>/", TokenView.as_view(), name="token"),
]
