"""Addresses of pages and REST; agents have `controlplane.execution.protocol`."""

from django.contrib import admin
from django.contrib.auth.views import LoginView, LogoutView
from django.urls import URLPattern, URLResolver, include, path, re_path
from django.views.generic import RedirectView
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from controlplane.accounting import views as costs
from controlplane.accounting.api import CostsView
from controlplane.execution.pages import views as nodes
from controlplane.loop.api import router as rounds_router
from controlplane.loop.pages import views as rounds
from controlplane.loop.pages.live_updates import live
from controlplane.operations import audit_page
from controlplane.operations.health import healthz, readyz
from controlplane.operations.prometheus import MetricsView
from controlplane.studies.pages import views as studies
from controlplane.studies.what_if.start_now_page import start_now_part
from controlplane.studies.what_if.views import what_if_apply, what_if_page
from controlplane.web.pages.account import ChangePassword, revoke_token, tokens_page
from controlplane.web.rest.errors import not_found_api
from jobs.pages import teams
from jobs.pages import views as jobs
from profiling.pages import views as profiling

PAGES = [
    path("", jobs.queue, name="queue"),
    path("login/", LoginView.as_view(redirect_authenticated_user=True), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("password/", ChangePassword.as_view(), name="password"),
    path("tokens/", tokens_page, name="tokens_page"),
    path("tokens/<slug:key>/revoke/", revoke_token, name="revoke_token"),
    path("submit/", jobs.submit, name="submit"),
    path("jobs/<uuid:job_id>/", jobs.job, name="job"),
    path("jobs/<uuid:job_id>/start-now/", start_now_part, name="start_now"),
    path("jobs/<uuid:job_id>/<slug:action>/", jobs.job_action, name="job_action"),
    path("arrays/<uuid:array_id>/", jobs.array, name="array"),
    path("arrays/<uuid:array_id>/<slug:action>/", jobs.array_action, name="array_action"),
    path("teams/", teams.teams, name="teams_page"),
    path("teams/<slug:name>/members/", teams.member_action, name="member_action"),
    path("audit/", audit_page.audit, name="audit"),
    path("audit/audit.csv", audit_page.audit_csv, name="audit_csv"),
    path("nodes/", nodes.nodes, name="nodes"),
    path("nodes/<uuid:node_id>/<slug:action>/", nodes.node_action, name="node_action"),
    path("timeline/", rounds.gantt, name="gantt"),
    path("timeline/figure.json", rounds.gantt_figure, name="gantt_figure"),
    path("rounds/", rounds.rounds, name="rounds"),
    path("rounds/<int:pk>/", rounds.round_, name="round"),
    path("rounds/<int:pk>/snapshot.json", rounds.round_snapshot, name="round_snapshot"),
    path("kinds/", profiling.kinds, name="kinds"),
    path("kinds/<int:pk>/<slug:action>/", profiling.kind_action, name="kind_action"),
    path("costs/", costs.costs, name="costs"),
    path("costs/figure.json", costs.costs_figure, name="costs_figure"),
    path("costs/costs.csv", costs.costs_csv, name="costs_csv"),
    path("simulations/", studies.simulations, name="simulations"),
    path("simulations/new/", studies.new, name="simulation_new"),
    path("simulations/compare/", studies.compare, name="simulation_compare"),
    path("simulations/<uuid:pk>/", studies.simulation, name="simulation"),
    path("simulations/<uuid:pk>/report/", studies.simulation_report, name="simulation_report"),
    path("simulations/<uuid:pk>/files/<str:name>", studies.simulation_file, name="simulation_file"),
    path(
        "simulations/<uuid:pk>/do/<slug:action>/",
        studies.simulation_action,
        name="simulation_action",
    ),
    path("simulations/<uuid:pk>/apply/<int:number>/", what_if_apply, name="what_if_apply"),
    path("shared/simulations/<str:link>/", studies.shared, name="shared_simulation"),
    path("shared/simulations/<str:link>/report/", studies.shared_report, name="shared_report"),
    path("what-if/", what_if_page, name="what_if"),
    path("live/", live, name="live"),
]
API: list[URLPattern | URLResolver] = [
    path("", include("jobs.rest.api")),
    path("", include("clusters.rest.api")),
    path("costs/", CostsView.as_view(), name="api-costs"),
    path("", include("profiling.rest")),
    path("", include(rounds_router.urls)),
    path("", include("controlplane.studies.rest.api")),
    re_path(r"[\s\S]*", not_found_api),
]
urlpatterns: list[URLPattern | URLResolver] = [
    *PAGES,
    path("api/v1/", include(API)),
    re_path(r"^api/schema/?$", SpectacularAPIView.as_view(), name="schema"),
    re_path(r"^api/docs/?$", SpectacularSwaggerSplitView.as_view(url_name="schema"), name="docs"),
    path("healthz", healthz, name="healthz"),
    path("readyz", readyz, name="readyz"),
    re_path(r"^metrics/?$", MetricsView.as_view(), name="metrics"),
    # Before Django's own page, which counts no wrong tries and leaves no row of the audit.
    path("admin/password_change/", RedirectView.as_view(pattern_name="password")),
    path("admin/", admin.site.urls),
]
handler500 = "controlplane.web.http.storage_errors.server_error_page"
