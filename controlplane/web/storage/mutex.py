"""Mutex in the cache: saves work; correctness never rests on it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from django.core.cache import cache
from redis.exceptions import RedisError

log = logging.getLogger(__name__)


@contextmanager
def mutex(name: str, most_s: int) -> Iterator[bool]:
    """Yield True if no other process holds this name (for `most_s` at most), or without a cache."""
    key, own = f"mutex:{name}", uuid4().hex
    try:
        free = bool(cache.add(key, own, most_s))
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
