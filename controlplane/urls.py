"""Addresses of pages and REST; agents have `controlplane.execution.protocol`."""

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path, re_path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from controlplane.operations.health import healthz, readyz
from controlplane.operations.metrics import MetricsView

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include("controlplane.page_urls")),
    path("api/v1/", include("controlplane.api_urls")),
    re_path(r"^api/schema/?$", SpectacularAPIView.as_view(), name="schema"),
    re_path(r"^api/docs/?$", SpectacularSwaggerSplitView.as_view(url_name="schema"), name="docs"),
    path("healthz", healthz, name="healthz"),
    path("readyz", readyz, name="readyz"),
    re_path(r"^metrics/?$", MetricsView.as_view(), name="metrics"),
    path("admin/", admin.site.urls),
]
handler500 = "controlplane.web.http.storage_errors.server_error_page"
