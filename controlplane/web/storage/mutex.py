"""Mutex in the cache: saves work; correctness never rests on it.

One that was killed on this machine is followed at once.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from django.core.cache import cache
from redis.exceptions import RedisError

from controlplane.web.storage.lock_holder import new_owner, owner_has_ended
from controlplane.web.storage.watch import THIS_MACHINE

log = logging.getLogger(__name__)


@contextmanager
def mutex(name: str, most_s: int) -> Iterator[bool]:
    """Yield True if no other process holds this name (for `most_s` at most), or without a cache."""
    key, own = f"mutex:{name}", new_owner()
    try:
        free = bool(cache.add(key, own, most_s)) or _is_forgotten(key, own, most_s)
    except (RedisError, OSError) as error:
        log.warning("whether anybody else is at %s is not known: %s", name, error)
        yield True
        return
    try:
        yield free
    finally:
        if free:
            try:
                if cache.get(key) == own:
                    cache.delete(key)
            except (RedisError, OSError) as error:
                log.warning("%s stays taken for a while: %s", key, error)


def _is_forgotten(key: str, own: str, most_s: int) -> bool:
    """Take a name whose holder has ended, or that this machine has seen held for too long: the
    cache's clock went back.
    """
    holder = str(cache.get(key))
    if not owner_has_ended(holder) and THIS_MACHINE.still_s({key: holder})[key] <= most_s:
        return False
    cache.set(key, own, most_s)
    return True
