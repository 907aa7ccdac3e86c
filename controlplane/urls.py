"""Where everything is."""

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include("controlplane.page_urls")),
    path("admin/", admin.site.urls),
]
