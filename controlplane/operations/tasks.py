"""Celery entries of the clock: periodic rounds, reconciliation, pruning.

Each may be lost, doubled or run at once with another, and nothing goes wrong.
"""

from celery import shared_task
from django.utils import timezone

from controlplane.execution.reconciler import reconcile_clusters
from controlplane.execution.services import stop_profiling
from controlplane.loop.due_rounds import ask_for_periodic_rounds, overdue_clusters
from controlplane.loop.metrics import note_reconciled
from controlplane.loop.tasks import run_cluster_round
from controlplane.operations.health import note_beat
from controlplane.operations.retention import prune
from controlplane.studies.running.hints import hint_simulations
from controlplane.studies.running.runner import reconcile_simulations
from controlplane.web.storage.mutex import mutex
from profiling.reconciler import reconcile_profiles

LONG_PASS_S = 10
"""How long a pass of the reconciler keeps others out: a longer or killed one does so no more."""


@shared_task
def periodic_rounds() -> None:
    """Ask for a round of each cluster whose last one is a period ago."""
    note_beat()
    ask_for_periodic_rounds(timezone.now())


@shared_task
def reconcile() -> None:
    """Find what was missed: silent agents, due drains, idle profile runs, unanswered events.

    Two passes at once would do the same work twice, so the second leaves it to the first, for a
    while.
    """
    with mutex("reconcile", LONG_PASS_S) as is_alone:
        if not is_alone:
            return
        now = timezone.now()
        reconcile_clusters(now)
        reconcile_profiles(now, stop_profiling)
        for cluster_id in overdue_clusters(now):
            run_cluster_round.delay(cluster_id)
        if reconcile_simulations(now):
            hint_simulations()
        note_reconciled()


@shared_task
def prune_old() -> None:
    """Let a part of what is old enough go."""
    prune(timezone.now())
