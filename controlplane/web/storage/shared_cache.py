"""Cache over Redis whose connections all requests of a process share."""

import functools
import json
from typing import Any

from django.core.cache.backends.redis import RedisCache, RedisCacheClient


class JsonSerializer:
    """JSON for cached values: a pickle that somebody writes into Redis would be run.

    Tuples come back as lists.
    """

    def dumps(self, value: Any) -> int | bytes:
        """Return the bytes to store; a whole number stays one, so that Redis can count with it."""
        return value if type(value) is int else json.dumps(value).encode()

    def loads(self, data: bytes) -> Any:
        """Return a stored value."""
        return json.loads(data)


class SharedRedisCache(RedisCache):
    """Django's cache with one client per process: under ASGI Django would make one per request."""

    @property
    def _cache(self) -> RedisCacheClient:
        servers = self._servers  # type: ignore[attr-defined]  # no stubs
        options = self._options  # type: ignore[attr-defined]  # no stubs
        return _client(tuple(servers), tuple(options.items()))


@functools.cache
def _client(servers: tuple[str, ...], options: tuple[tuple[str, Any], ...]) -> RedisCacheClient:
    """Return the client of this process."""
    return RedisCacheClient(list(servers), **dict(options))
