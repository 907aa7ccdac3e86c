"""Where the pages are."""

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import path

from clusters import cost_views as costs
from clusters import views as clusters
from controlplane import views as controlplane
from jobs import views as jobs
from jobs.live import live
from profiling import views as profiling

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
    path("live/", live, name="live"),
]
