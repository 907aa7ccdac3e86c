"""Addresses of the REST API for people and programs, below /api/v1/; agents have their own."""

from django.urls import URLPattern, URLResolver, include, path, re_path

from controlplane.web.rest.errors import not_found_api

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include("jobs.rest.urls")),
    path("", include("clusters.rest.urls")),
    path("", include("controlplane.accounting.urls")),
    path("", include("profiling.rest")),
    path("", include("controlplane.loop.rest.urls")),
    path("", include("controlplane.studies.rest.urls")),
    re_path(r"[\s\S]*", not_found_api),
]
