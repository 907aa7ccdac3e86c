"""One round per cluster at a time: a row, taken by compare-and-swap, with an expiry and a number.

Whoever holds the number may apply a plan. A holder renews its lock while it works
(`renewing`); one that is too slow loses it to the next one, and finds out when it
applies. A killed one is followed at once on its own machine, and on others when the lock it no
longer renews has expired. The number only grows, so no two rounds ever share one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.db.models import F, Q, QuerySet

from clusters.models import Cluster
from controlplane.loop.live.lock_holder import is_gone, new_holder
from controlplane.loop.models import Round


class LostLockError(Exception):
    """The round's lock expired and another round took over; apply nothing."""


@dataclass(frozen=True, slots=True)
class RoundLock:
    """The right to hold round `number` of a cluster."""

    cluster_id: int
    number: int
    owner: str


def acquire(cluster_id: int, now: datetime, until: datetime) -> RoundLock | None:
    """The next round of the cluster, held until then unless it is renewed; None while another is
    held.

    With it every round that was never finished is marked abandoned: its holder is dead or too late.
    """
    owner = new_holder()
    before = Cluster.objects.values_list("round_owner", flat=True).get(pk=cluster_id)
    free = (
        Q(round_owner="")
        | Q(round_expires_at__lte=now)
        | (Q(round_owner=before) if is_gone(before) else Q(pk=None))
    )
    with transaction.atomic():
        taken = Cluster.objects.filter(free, pk=cluster_id).update(
            round_number=F("round_number") + 1, round_owner=owner, round_expires_at=until
        )
        if not taken:
            return None
        number = Cluster.objects.values_list("round_number", flat=True).get(pk=cluster_id)
        abandon(Q(cluster=cluster_id), now)
        return RoundLock(cluster_id, number, owner)


def renew(lock: RoundLock, until: datetime) -> bool:
    """Extend the lock; False, with nothing written, if it is no longer held."""
    return bool(_held(lock).update(round_expires_at=until))


def check(lock: RoundLock, now: datetime) -> None:
    """Check the lock first in the applying transaction; LostLockError if it is not held."""
    if not _held(lock).filter(round_expires_at__gt=now).update(last_round_at=now):
        raise LostLockError(
            f"round {lock.number} of cluster {lock.cluster_id} took too long: another one has taken"
            " over"
        )


def release(lock: RoundLock) -> None:
    """Give the row back; nothing happens if it is not held any more."""
    _held(lock).update(round_owner="", round_expires_at=None)


def _held(lock: RoundLock) -> QuerySet[Cluster]:
    return Cluster.objects.filter(
        pk=lock.cluster_id, round_number=lock.number, round_owner=lock.owner
    )


def is_held(cluster: Cluster, now: datetime) -> bool:
    """Whether a round of the cluster, as it was read, is being held."""
    if not cluster.round_owner or is_gone(cluster.round_owner):
        return False
    return cluster.round_expires_at is not None and cluster.round_expires_at > now


def abandon(which: Q, now: datetime) -> int:
    """Mark unfinished rounds as abandoned and return their number; their events still wait."""
    unfinished = Round.objects.filter(which, status=Round.Status.RUNNING)
    return unfinished.update(
        status=Round.Status.ABANDONED, ended_at=now, message="its process died or was too slow"
    )
