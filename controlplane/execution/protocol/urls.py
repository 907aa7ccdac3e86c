"""The agent protocol, under api/agent/v1/."""

from django.urls import path, re_path

from controlplane.execution.protocol import api
from controlplane.execution.protocol.directives import directives_view
from controlplane.web.rest.errors import not_found_api

urlpatterns = [
    path("register", api.RegisterView.as_view(), name="agent-register"),
    path("nodes/<uuid:node_id>/session", api.SessionView.as_view(), name="agent-session"),
    path("nodes/<uuid:node_id>/heartbeat", api.HeartbeatView.as_view(), name="agent-heartbeat"),
    path("nodes/<uuid:node_id>/directives", directives_view, name="agent-directives"),
    path("assignments/<uuid:assignment_id>/accept", api.AcceptView.as_view(), name="agent-accept"),
    path("assignments/<uuid:assignment_id>/state", api.StateView.as_view(), name="agent-state"),
    path(
        "assignments/<uuid:assignment_id>/logs/<str:stream>",
        api.LogView.as_view(),
        name="agent-log",
    ),
    path(
        "assignments/<uuid:assignment_id>/metrics", api.MetricsView.as_view(), name="agent-metrics"
    ),
    re_path(r"[\s\S]*", not_found_api),
]
