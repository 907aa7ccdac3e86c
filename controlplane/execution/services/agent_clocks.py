"""Skew of agents' wall clocks, for operators: nothing is decided by it."""

import logging
import threading
from collections.abc import Iterable
from datetime import datetime

from django.core.cache import cache
from redis.exceptions import RedisError

from controlplane.web.storage.watch import boot_s

log = logging.getLogger(__name__)

KEY = "loadmaster.agents_skew"
"""Key in the cache: [least, most] seconds by which agents' clocks are ahead of the server's."""

EVERY_S = 10.0
"""Shortest time between two writes of a process to the cache."""

KEPT_S = 120
"""Time after which the cache forgets the last write."""


class AgentClocks:
    """Extremes of the skews in the heartbeats of a process, written every EVERY_S to the cache."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._extremes: list[float] = []
        """Least and most skew since the last write; empty without heartbeats."""
        self._written_s = 0.0

    def note(self, sent_at_s: Iterable[float], now: datetime) -> None:
        """Note the times at which agents say that they sent the heartbeats received just now."""
        skews = [sent_s - now.timestamp() for sent_s in sent_at_s]
        with self._lock:
            skews.extend(self._extremes)
            if not skews:
                return
            extremes = [min(skews), max(skews)]
            self._extremes = extremes
            if boot_s() - self._written_s < EVERY_S:
                return
            self._extremes = []
            self._written_s = boot_s()
        try:
            cache.set(KEY, extremes, KEPT_S)
        except (RedisError, OSError) as error:
            log.warning("the agents' clocks are not noted: %s", error)


AGENT_CLOCKS = AgentClocks()


def agents_skew_s() -> tuple[float, float] | None:
    """(least, most) seconds by which agents are ahead of the server; None if none was heard."""
    extremes = cache.get(KEY)
    return (extremes[0], extremes[1]) if extremes else None
