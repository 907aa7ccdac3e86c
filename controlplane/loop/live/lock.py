"""One round per cluster at a time: a row with owner, expiry and number, by compare-and-swap.

Only the number's owner may apply a plan. A thread renews the lock for as long as a round may take.
A dead owner is followed at once on its own machine, elsewhere when the lock has expired.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db import Error, connections, transaction
from django.db.models import F, Q, QuerySet

from clusters.models import Cluster
from controlplane.loop.live.lock_holder import new_owner, owner_has_ended
from controlplane.loop.models import Round


class LostLockError(Exception):
    """Expired lock that another round took over; apply nothing."""


@dataclass(frozen=True, slots=True)
class RoundLock:
    """Right to hold round `number` of a cluster."""

    cluster_id: int
    number: int
    owner: str


def acquire(cluster_id: int, now: datetime, until: datetime) -> RoundLock | None:
    """Take the cluster's next round and abandon unfinished ones; None while one is held."""
    owner = new_owner()
    before = Cluster.objects.values_list("round_owner", flat=True).get(pk=cluster_id)
    free = (
        Q(round_owner="")
        | Q(round_expires_at__lte=now)
        | (Q(round_owner=before) if owner_has_ended(before) else Q(pk=None))
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
    """Raise LostLockError if the lock is not held; comes first in the applying transaction."""
    if not _held(lock).filter(round_expires_at__gt=now).update(last_round_at=now):
        raise LostLockError(
            f"round {lock.number} of cluster {lock.cluster_id} took too long: another one has taken"
            " over"
        )


def release(lock: RoundLock) -> None:
    """Release the lock if it is still held."""
    _held(lock).update(round_owner="", round_expires_at=None)


def _held(lock: RoundLock) -> QuerySet[Cluster]:
    return Cluster.objects.filter(
        pk=lock.cluster_id, round_number=lock.number, round_owner=lock.owner
    )


def is_held(cluster: Cluster, now: datetime) -> bool:
    """Return True if a round of the cluster, as it was read, is held."""
    if not cluster.round_owner or owner_has_ended(cluster.round_owner):
        return False
    return cluster.round_expires_at is not None and cluster.round_expires_at > now


def abandon(which: Q, now: datetime) -> int:
    """Mark unfinished rounds as abandoned and return their number; their events still wait."""
    unfinished = Round.objects.filter(which, status=Round.Status.RUNNING)
    return unfinished.update(
        status=Round.Status.ABANDONED, ended_at=now, message="its process died or was too slow"
    )


logger = logging.getLogger(__name__)

EXPIRY_S = 15.0
"""Expiry of a lock without renewal; clocks of machines must agree better than this."""

RENEW_S = 4.0
"""Interval of renewal: several may fail before the lock is lost."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """Renewal of a lock: every `every_s` for `expiry_s`, until `until_s` by `clock`."""

    clock: Callable[[], float]
    until_s: float
    expiry_s: float = EXPIRY_S
    every_s: float = RENEW_S

    def expires(self, now_s: float) -> datetime:
        return datetime.fromtimestamp(min(now_s + self.expiry_s, self.until_s), UTC)


@contextmanager
def renewed(lock: RoundLock, renewal: Renewal) -> Iterator[None]:
    """Renew the lock while the block runs, by a connection of the thread's own."""
    over = threading.Event()
    thread = threading.Thread(
        target=_renew, args=(lock, renewal, over), name=f"round {lock.number}", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _renew(lock: RoundLock, renewal: Renewal, over: threading.Event) -> None:
    try:
        while not over.wait(renewal.every_s) and (now_s := renewal.clock()) < renewal.until_s:
            try:
                if not renew(lock, renewal.expires(now_s)):
                    return
            except Error as error:
                logger.warning(
                    "round %d could not renew its lock and tries again: %s", lock.number, error
                )
    finally:
        connections.close_all()
