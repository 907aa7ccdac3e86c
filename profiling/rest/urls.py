"""Where the REST endpoints of kinds are, below /api/v1/."""

from django.urls import path

from profiling.rest.api import KindDetail, KindForget, KindList

urlpatterns = [
    path("kinds/", KindList.as_view(), name="api-kinds"),
    path("kinds/<int:pk>/", KindDetail.as_view(), name="kind"),
    path("kinds/<int:pk>/forget/", KindForget.as_view(), name="kind-forget"),
]
