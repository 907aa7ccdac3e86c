"""One round per cluster at a time: a row with owner, expiry and number, by compare-and-swap.

Only the number's owner may apply a plan. A thread renews the lock for as long as a round may take.
A dead owner is followed at once on its own machine, elsewhere when that machine has seen the lock
not renewed for EXPIRY_S. `round_expires_at` changes with each renewal and is for people.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import Error, connections, transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from clusters.models import Cluster
from controlplane.loop.models import Round
from controlplane.web.storage.lock_holder import new_owner, owner_has_ended
from controlplane.web.storage.watch import THIS_MACHINE, Watch, boot_s, stamp


class LostLockError(Exception):
    """Expired lock that another round took over; apply nothing."""


@dataclass(frozen=True, slots=True)
class RoundLock:
    """Right to hold round `number` of a cluster."""

    cluster_id: int
    number: int
    owner: str


NEWEST = 100
"""Rounds of a cluster among which one may be unfinished: each ends those before it."""

_STAMP = ("round_number", "round_owner", "round_expires_at")


def acquire(
    cluster_id: int, now: datetime, until: datetime, watch: Watch = THIS_MACHINE
) -> RoundLock | None:
    """Take the cluster's next round and abandon unfinished ones; None while one is held."""
    owner, before = new_owner(), Cluster.objects.only(*_STAMP).get(pk=cluster_id)
    if is_held(before, watch):
        return None
    same = {name: getattr(before, name) for name in ("pk", *_STAMP)}
    with transaction.atomic():
        taken = Cluster.objects.filter(**same).update(
            round_number=F("round_number") + 1, round_owner=owner, round_expires_at=until
        )
        if not taken:
            return None
        number = Cluster.objects.values_list("round_number", flat=True).get(pk=cluster_id)
        abandon(cluster_id, number, now)
        return RoundLock(cluster_id, number, owner)


def renew(lock: RoundLock, until: datetime) -> bool:
    """Extend the lock; False, with nothing written, if it is no longer held."""
    return bool(_held(lock).update(round_expires_at=until))


def check(lock: RoundLock, now: datetime) -> None:
    """Raise LostLockError if the lock is not held; comes first in the applying transaction."""
    if not _held(lock).update(last_round_at=now):
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


CLOSED = "restore"
"""Owner of a lock that nobody holds and that delays rounds, followed by its seconds."""


def close_for(cluster: Cluster, wait_s: float, until: datetime) -> None:
    """Keep rounds from being held for so long from when a machine first sees it."""
    owner = f"{CLOSED}.{wait_s:.0f}"
    Cluster.objects.filter(pk=cluster.pk).update(round_owner=owner, round_expires_at=until)


def is_held(cluster: Cluster, watch: Watch = THIS_MACHINE) -> bool:
    """Return True if a round of the cluster, as it was read, is held."""
    if not cluster.round_owner or owner_has_ended(cluster.round_owner):
        return False
    name, written = f"round:{cluster.pk}", stamp(*(getattr(cluster, n) for n in _STAMP))
    still_s = watch.still_s({name: written})[name]
    return still_s < _expiry_s(cluster.round_owner)


def _expiry_s(owner: str) -> float:
    kind, _, seconds = owner.partition(".")
    return float(seconds) if kind == CLOSED and seconds else EXPIRY_S


def abandon(cluster_id: int, newest: int, now: datetime, *, most: int = NEWEST) -> int:
    """Mark unfinished rounds as abandoned and return their number; their events still wait.

    Looked for among the `most` up to `newest`: rounds are kept for a year, and each ends these.
    """
    rounds = Round.objects.filter(cluster=cluster_id, number__gt=newest - most, number__lte=newest)
    unfinished = rounds.filter(status=Round.Status.RUNNING)
    return unfinished.update(
        status=Round.Status.ABANDONED, ended_at=now, message="its process died or was too slow"
    )


logger = logging.getLogger(__name__)

EXPIRY_S = 15.0
"""Seconds without renewal after which a lock is free."""

RENEW_S = 4.0
"""Interval of renewal: several may fail before the lock is lost."""

END_S = 0.5
"""Interval of tries to release a lock while the database takes no writes."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """Renewal of a lock: every `every_s`, for `hold_s` in all."""

    hold_s: float
    expiry_s: float = EXPIRY_S
    every_s: float = RENEW_S

    def expires(self, now: datetime) -> datetime:
        return now + timedelta(seconds=min(self.expiry_s, self.hold_s))


def end(lock: RoundLock, now: datetime) -> None:
    """Abandon the round if it is not finished, and release its lock.

    While the database takes no writes, as on a full disk, a thread goes on trying: the process
    lives, so that the next round would else wait until the lock expires.
    """
    try:
        _end(lock, now)
    except Error as error:
        logger.warning("round %d could not release its lock: %s", lock.number, error)
        name = f"end of round {lock.number}"
        threading.Thread(target=_end_later, args=(lock, now), name=name, daemon=True).start()


def _end(lock: RoundLock, now: datetime) -> None:
    with transaction.atomic():
        release(lock)  # first, as whoever acquires takes the cluster's row first
        abandon(lock.cluster_id, lock.number, now, most=1)


def _end_later(lock: RoundLock, now: datetime) -> None:
    until_s, pause = boot_s() + EXPIRY_S, threading.Event()
    try:
        while boot_s() < until_s:
            pause.wait(END_S)
            with suppress(Error):
                _end(lock, now)
                return
    finally:
        connections.close_all()


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
    until_s = boot_s() + renewal.hold_s
    try:
        while not over.wait(renewal.every_s) and boot_s() < until_s:
            try:
                if not renew(lock, renewal.expires(timezone.now())):
                    return
            except Error as error:
                logger.warning(
                    "round %d could not renew its lock and tries again: %s", lock.number, error
                )
    finally:
        connections.close_all()
