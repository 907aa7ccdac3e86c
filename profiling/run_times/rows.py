"""Errors of predicted run times that a user may see."""

from django.contrib.auth.models import AnonymousUser, User

from controlplane.web.operators import is_operator
from jobs.selectors import teams_of
from profiling.models import PredictedRun
from profiling.run_times.errors import Ended, RunTimeErrors

MOST_COMPARED = 5000
"""Most ended jobs whose errors are summed up: the newest."""


def run_time_errors(user: User | AnonymousUser) -> RunTimeErrors:
    """Return the errors of the newest batch jobs of the user's teams; operators see all teams'."""
    runs = PredictedRun.objects.order_by("-pk")
    if not is_operator(user):
        runs = runs.filter(team__in=list(teams_of(user).values_list("pk", flat=True)))
    rows = runs.values_list("user__username", "source", "predicted_s", "run_s")
    return RunTimeErrors.of(Ended(*row) for row in rows[:MOST_COMPARED])
