"""While a process holds a round, a thread of it renews the round's lock every few seconds.

So the lock may be short, and a holder that dies, or whose machine does, is followed within seconds
wherever it ran. A holder that works on renews for so long at most as a round may take: one that
hangs is followed too. The thread only ever prolongs what is still its own; whether the plan may be
applied is for `lock.check` to say.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db import Error, connections

from controlplane.loop.live import lock as locks
from controlplane.loop.live.lock import RoundLock

logger = logging.getLogger(__name__)

EXPIRY_S = 15.0
"""Expiry of a lock without renewal; clocks of machines must agree better than this."""

RENEW_S = 4.0
"""Several renewals may fail before the lock is lost."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """Renewal of a lock: every `every_s` for `expiry_s`, until `until_s` by `clock`."""

    clock: Callable[[], float]
    until_s: float
    expiry_s: float = EXPIRY_S
    every_s: float = RENEW_S

    def expires(self, now_s: float) -> datetime:
        """When a lock expires that is renewed now."""
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
                if not locks.renew(lock, renewal.expires(now_s)):
                    return
            except Error as error:
                logger.warning(
                    "round %d could not renew its lock and tries again: %s", lock.number, error
                )
    finally:
        connections.close_all()
