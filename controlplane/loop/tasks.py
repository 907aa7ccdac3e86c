"""Rounds that are due, and the Celery task that holds them: it may be lost, doubled or overlap."""

from datetime import datetime, timedelta
from math import inf

from celery import shared_task
from celery.signals import worker_process_init
from django.db.models import Q
from django.utils import timezone

from clusters.events import hint_after, hint_arrived, request_reschedule
from clusters.models import Cluster, Reason, RescheduleEvent
from controlplane.loop.live import lock as locks
from controlplane.loop.live.solver import await_solver, solve_in_child, start_solver
from controlplane.loop.live.world import Ports, hold_round, is_wanted
from controlplane.loop.models import Round
from controlplane.web.logs.structured import bound


@shared_task
def run_cluster_round(cluster_id: int) -> None:
    """Answer the cluster's waiting events; leave if there are none or another worker answers them.

    Its hint then still counts as pending, so that a flood of submissions sends one a second. Events
    that come during the round are answered after its backoff.
    """
    if is_held(cluster_id) or _backs_off(cluster_id):
        return
    hint_arrived(cluster_id)
    with bound(cluster=cluster_id):
        if hold_round(cluster_id, Ports(solve_in_child, await_solver=await_solver)) is None:
            return
    hint_arrived(cluster_id)
    if not _backs_off(cluster_id) and is_wanted(cluster_id):
        hint_after(cluster_id, 0.0)


def _backs_off(cluster_id: int) -> bool:
    left_s = backoff_s(cluster_id, timezone.now())
    if left_s > 0 and is_wanted(cluster_id):
        hint_after(cluster_id, left_s)
    return left_s > 0


PATIENCE_S = 2.0
"""Age of an event whose hint counts as lost."""


def ask_for_periodic_rounds(now: datetime) -> list[Cluster]:
    """Write a periodic event for each cluster due for one without any waiting; those clusters."""
    waiting = set(
        RescheduleEvent.objects.filter(reason=Reason.PERIODIC, round=None).values_list(
            "cluster_id", flat=True
        )
    )
    due = [
        c
        for c in Cluster.objects.exclude(pk__in=waiting).order_by("pk")
        if c.last_round_at is None or _age_s(c.last_round_at, now) >= c.period_s
    ]
    for cluster in due:
        request_reschedule(cluster, Reason.PERIODIC)
    return due


def overdue_clusters(now: datetime) -> list[int]:
    """Clusters with overdue events and no round; expired rounds are marked abandoned first."""
    recent = Q(created_at__gt=now - timedelta(seconds=PATIENCE_S), created_at__lte=now)
    late = RescheduleEvent.objects.filter(~recent, round=None)
    clusters = Cluster.objects.filter(pk__in=late.values("cluster_id")).order_by("pk")
    free = [c for c in clusters if not locks.is_held(c)]
    for cluster in Cluster.objects.exclude(round_owner=""):
        if not locks.is_held(cluster):
            locks.abandon(cluster.pk, cluster.round_number, now)
    return [c.pk for c in free]


BACKOFF = 2
"""A round is followed by a backoff of so many times its length, which gathers events for the next
one: where jobs end all the time, most of a round's cost is the same for one as for many."""

LONG_S = 1.0
SHORT_BACKOFF_S = 0.1
"""Longest backoff after a round of up to LONG_S."""

LONGEST_BACKOFF_S = 5.0
"""Jobs submitted during a slow solve must not wait as long again."""


def is_held(cluster_id: int) -> bool:
    cluster = Cluster.objects.filter(pk=cluster_id).first()
    return cluster is not None and locks.is_held(cluster)


def backoff_s(cluster_id: int, now: datetime) -> float:
    """Seconds left of the backoff after the newest round."""
    rounds = Round.objects.filter(cluster=cluster_id).only("started_at", "ended_at", "snapshot_s")
    last = rounds.order_by("-number").first()
    if last is None or last.ended_at is None:
        return 0.0
    took_s = (last.ended_at - last.started_at).total_seconds() + (last.snapshot_s or 0.0)
    whole_s = min(BACKOFF * took_s, LONGEST_BACKOFF_S if took_s > LONG_S else SHORT_BACKOFF_S)
    return max(0.0, whole_s - _age_s(last.ended_at, now))


def _age_s(moment: datetime, now: datetime) -> float:
    """Seconds since then; without end for a moment to come, written by a clock that was ahead."""
    age_s = (now - moment).total_seconds()
    return age_s if age_s >= 0.0 else inf


# A worker's process warms its solver up before the first round asks it.
worker_process_init.connect(lambda **_: start_solver(), weak=False)
