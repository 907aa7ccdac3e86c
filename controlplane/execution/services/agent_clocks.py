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
EVERY_S = 10.0
KEPT_S = 120


class AgentClocks:
    """Extremes of what the heartbeats of a process told, noted every EVERY_S in the cache."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._skews: list[float] = []
        self._noted_s = 0.0

    def note(self, sent_at_s: Iterable[float], now: datetime) -> None:
        """Take in when agents say that they sent what has just come."""
        ahead = [sent_s - now.timestamp() for sent_s in sent_at_s]
        with self._lock:
            known = [*self._skews, *ahead]
            self._skews = [min(known), max(known)] if known else []
            if not known or boot_s() - self._noted_s < EVERY_S:
                return
            extremes, self._skews, self._noted_s = self._skews, [], boot_s()
        try:
            cache.set(KEY, extremes, KEPT_S)
        except (RedisError, OSError) as error:
            log.warning("the agents' clocks are not noted: %s", error)


AGENT_CLOCKS = AgentClocks()


def agents_skew_s() -> tuple[float, float] | None:
    """(least, most) seconds by which agents are ahead of the server; None if none was heard."""
    found = cache.get(KEY)
    return (found[0], found[1]) if found else None
