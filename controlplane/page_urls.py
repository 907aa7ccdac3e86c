"""Where the pages are."""

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import path

from controlplane.accounting import views as costs
from controlplane.execution.pages import views as clusters
from controlplane.loop.pages import views as controlplane
from controlplane.loop.pages.live_updates import live
from controlplane.studies.pages import views as studies
from controlplane.studies.what_if.views import what_if_page
from jobs.pages import views as jobs
from profiling.pages import views as profiling

urlpatterns = [
    path("", jobs.queue, name="queue"),
    path("login/", LoginView.as_view(redirect_authenticated_user=True), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("password/", controlplane.ChangePassword.as_view(), name="password"),
    path("submit/", jobs.submit, name="submit"),
    path("jobs/<uuid:job_id>/", jobs.job, name="job"),
    path("jobs/<uuid:job_id>/<slug:action>/", jobs.job_action, name="job_action"),
    path("nodes/", clusters.nodes, name="nodes"),
    path("nodes/<uuid:node_id>/<slug:action>/", clusters.node_action, name="node_action"),
    path("timeline/", controlplane.gantt, name="gantt"),
    path("timeline/figure.json", controlplane.gantt_figure, name="gantt_figure"),
    path("rounds/", controlplane.rounds, name="rounds"),
    path("rounds/<int:pk>/", controlplane.round_, name="round"),
    path("rounds/<int:pk>/snapshot.json", controlplane.round_snapshot, name="round_snapshot"),
    path("kinds/", profiling.kinds, name="kinds"),
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
    path("shared/simulations/<str:link>/", studies.shared, name="shared_simulation"),
    path("shared/simulations/<str:link>/report/", studies.shared_report, name="shared_report"),
    path("what-if/", what_if_page, name="what_if"),
    path("live/", live, name="live"),
]
