"""Rescheduling events, which ask for a round; one round answers all pending ones.

After an event a hint is sent: a task that makes a worker look for events at once. The reconciler
finds events whose hint was lost. While a hint is pending, further events send none.
"""

import logging
import math
from collections.abc import Iterable
from functools import partial
from uuid import UUID

from celery import current_app
from django.core.cache import cache
from django.db import transaction
from django.db.models import Model
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from clusters.models import Cluster, Node, Reason, RescheduleEvent
from controlplane.web.storage.bulk import insert

log = logging.getLogger(__name__)

ROUND_TASK = "controlplane.loop.tasks.run_cluster_round"
"""Name of the task that runs a round; the loop is a layer above, so it cannot be imported."""

HINT_LIVES_S = 1
"""Seconds for which a hint counts as pending, so that a lost one does not block others."""


def request_reschedule(
    cluster: Cluster, reason: Reason, *, job: Model | None = None, node: Node | None = None
) -> RescheduleEvent:
    """Write an event, and send a hint on commit."""
    event = RescheduleEvent.objects.create(
        cluster=cluster, reason=reason, job_id=job.pk if job else None, node=node
    )
    transaction.on_commit(lambda: _send_hint(cluster.pk), robust=True)
    return event


def request_reschedules(cluster: Cluster, reason: Reason, jobs: Iterable[Model]) -> None:
    """Write events of many jobs, and send one hint on commit."""
    insert(
        RescheduleEvent,
        (RescheduleEvent(cluster=cluster, reason=reason, job_id=job.pk) for job in jobs),
    )
    transaction.on_commit(lambda: _send_hint(cluster.pk), robust=True)


def note_nodes_joined(nodes: Iterable[tuple[int, UUID]]) -> None:
    """Write events of nodes that may get work again, and send a hint for each cluster on commit.

    `nodes`: pairs of the cluster's and the node's primary key.
    """
    joined = list(nodes)
    RescheduleEvent.objects.bulk_create(
        RescheduleEvent(cluster_id=cluster, reason=Reason.NODE_JOINED, node_id=node)
        for cluster, node in joined
    )
    for cluster in sorted({cluster for cluster, _ in joined}):
        transaction.on_commit(partial(_send_hint, cluster), robust=True)


def hint_arrived(cluster_id: int) -> None:
    """Note that a worker looks for events now, so no hint is pending: later events send one."""
    forget(_hint_key(cluster_id), _backoff_key(cluster_id))


def hint_after(cluster_id: int, backoff_s: float) -> None:
    """Send a hint that arrives in `backoff_s` seconds; events until then send none."""
    lives_s = max(HINT_LIVES_S, math.ceil(backoff_s))
    if is_first(_backoff_key(cluster_id), lives_s):
        is_first(_hint_key(cluster_id), lives_s)  # the hint is pending until it arrives
        _send_round_task(cluster_id, countdown=backoff_s)


def _send_hint(cluster_id: int) -> None:
    """Send a hint, unless one is pending."""
    if is_first(_hint_key(cluster_id), HINT_LIVES_S):
        _send_round_task(cluster_id)


def _send_round_task(cluster_id: int, countdown: float | None = None) -> None:
    """Send the task of a round, to run after `countdown` seconds; None: at once."""
    try:
        current_app.send_task(ROUND_TASK, (cluster_id,), countdown=countdown)
    except OperationalError as error:
        log.warning("the broker is away, so the reconciler will find the event: %s", error)


def is_first(key: str, lives_s: int) -> bool:
    """Return True for the first call with a key in `lives_s` seconds, or since `forget`.

    Without the cache every call is the first.
    """
    try:
        return bool(cache.add(key, 1, lives_s))
    except (RedisError, OSError) as error:
        log.warning("the cache is away, so every event sends a hint: %s", error)
        return True


def forget(*keys: str) -> None:
    """Forget earlier calls of `is_first` with these keys, so that the next one is the first."""
    try:
        cache.delete_many(keys)
    except (RedisError, OSError) as error:
        log.warning("the cache is away, so hints of the next second may be left out: %s", error)


def _hint_key(cluster_id: int) -> str:
    return f"hint:{cluster_id}"


def _backoff_key(cluster_id: int) -> str:
    return f"backoff:{cluster_id}"
