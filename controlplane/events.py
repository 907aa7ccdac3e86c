"""Rescheduling events: something changed, a round is wanted. Events that wait are answered together by one round."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from django.db import transaction
from kombu.exceptions import OperationalError

from clusters.models import Cluster, Node
from controlplane.models import Reason, RescheduleEvent
from jobs.models import Job

log = logging.getLogger(__name__)


def request_reschedule(cluster: Cluster, reason: Reason, *, job: Job | None = None, node: Node | None = None) -> RescheduleEvent:
    """Write the event and, once the transaction is committed, hint the worker. A lost hint is found by the reconciler."""
    event = RescheduleEvent.objects.create(cluster=cluster, reason=reason, job=job, node=node)
    transaction.on_commit(lambda: _hint(cluster.pk), robust=True)
    return event


def request_reschedules(cluster: Cluster, reason: Reason, jobs: Iterable[Job]) -> None:
    """The events of many jobs that ask for a round for the same reason, and one hint for all of them."""
    RescheduleEvent.objects.bulk_create(RescheduleEvent(cluster=cluster, reason=reason, job=job) for job in jobs)
    transaction.on_commit(lambda: _hint(cluster.pk), robust=True)


def _hint(cluster_id: int) -> None:
    from controlplane.tasks import run_cluster_round  # the task module imports the loop, which imports this one

    try:
        run_cluster_round.delay(cluster_id)
    except OperationalError as error:
        log.warning("the broker is away, so the reconciler will find the event: %s", error)
