"""Periodic tasks, which may be lost, doubled or run at once."""

from uuid import UUID

from celery import shared_task
from django.utils import timezone

from clusters.energy import HOUR_S
from clusters.services.devices import end_flush_pause, flush_samples
from controlplane.accounting.ledger import meter
from controlplane.execution.reconciler import reconcile_clusters
from controlplane.execution.services.stops import stop_profiling
from controlplane.loop.round_counts import note_reconciled
from controlplane.loop.tasks import ask_for_periodic_rounds, overdue_clusters, run_cluster_round
from controlplane.operations.clocks import ahead_s, note_jump
from controlplane.operations.health import note_beat
from controlplane.operations.retention import is_steady, prune
from controlplane.operations.schedule import newest_only
from controlplane.studies.running.runner import reconcile_simulations
from controlplane.studies.running.workers import hint_simulations
from controlplane.web.http.throttling import forget_later_failures
from controlplane.web.storage.mutex import mutex
from jobs.submission.submit import finish_array, stalled_arrays
from profiling.reconciler import reconcile_profiles

LONG_PASS_S = 10
"""Longest time for which a pass of the reconciler keeps others out."""


@shared_task
@newest_only
def periodic_rounds() -> None:
    note_beat()
    ask_for_periodic_rounds(timezone.now())


@shared_task
@newest_only
def reconcile() -> None:
    """Find missed work: silent agents, due drains, idle profile runs, unanswered events."""
    with mutex("reconcile", LONG_PASS_S) as is_free:
        if not is_free:
            return
        now = timezone.now()  # before the look for a jump, which else could fall between
        if note_jump():
            end_flush_pause()
            forget_later_failures()
        reconcile_clusters(now, doubt_s=ahead_s())
        reconcile_profiles(now, stop_profiling)
        for cluster_id in overdue_clusters(now):
            run_cluster_round.delay(cluster_id)
        for array in stalled_arrays():
            finish_stalled_array.delay(str(array))
        if reconcile_simulations():
            hint_simulations()
        note_reconciled()


@shared_task
def finish_stalled_array(array: str) -> None:
    """Write the elements of a submitted array whose writer was killed."""
    with mutex(f"array:{array}", LONG_PASS_S) as is_free:
        if is_free:
            finish_array(UUID(array))


@shared_task
@newest_only
def prune_old() -> None:
    now = timezone.now()
    forget_later_failures()  # the clock may have been set back while nobody looked
    if is_steady(now):
        prune(now)


@shared_task
@newest_only
def meter_energy() -> None:
    if ahead_s() < HOUR_S:  # else each job would be billed for hours to come
        meter()


@shared_task
@newest_only
def write_samples() -> None:
    """Write device samples of heartbeats, which takes seconds on a large cluster."""
    flush_samples()
