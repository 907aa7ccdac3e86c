"""Mutex in the cache, which saves work that another process does; correctness never rests on it.

A name that was held by a killed process of this machine can be taken at once.
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
    """Hold this name for at most `most_s` seconds; yield False if another process holds it.

    Without a cache, True is yielded to all.
    """
    key = f"mutex:{name}"
    owner = new_owner()
    try:
        is_ours = bool(cache.add(key, owner, most_s)) or _take_abandoned(key, owner, most_s)
    except (RedisError, OSError) as error:
        log.warning("it is not known if another process is at %s: %s", name, error)
        yield True
        return
    try:
        yield is_ours
    finally:
        if is_ours:
            _release(key, owner)


def _release(key: str, owner: str) -> None:
    """Release a name, unless another process holds it by now."""
    try:
        if cache.get(key) == owner:
            cache.delete(key)
    except (RedisError, OSError) as error:
        log.warning("%s stays taken for a while: %s", key, error)


def _take_abandoned(key: str, owner: str, most_s: int) -> bool:
    """Take a name whose holder has ended, or that was held for too long; return True if taken.

    It is held for longer than `most_s` only if the cache's clock went back.
    """
    holder = str(cache.get(key))
    if not owner_has_ended(holder) and THIS_MACHINE.still_s({key: holder})[key] <= most_s:
        return False
    cache.set(key, owner, most_s)
    return True
