"""Errors of predicted run times that a user may see."""

from django.contrib.auth.models import AnonymousUser, User

from controlplane.web.operators import is_operator
from jobs.selectors import teams_of
from profiling.models import PredictedRun
from profiling.run_times.errors import Ended, RunTimeErrors

MOST_COMPARED = 5000
"""Newest ended jobs that the errors are taken over."""


def run_time_errors(user: User | AnonymousUser) -> RunTimeErrors:
    """Return the errors of the newest batch jobs of the user's teams, for operators of all."""
    ended = PredictedRun.objects.order_by("-pk")
    if not is_operator(user):
        ended = ended.filter(team__in=list(teams_of(user).values_list("pk", flat=True)))
    columns = ended.values_list("user__username", "source", "predicted_s", "run_s")
    return RunTimeErrors.of(map(Ended._make, columns[:MOST_COMPARED]))
