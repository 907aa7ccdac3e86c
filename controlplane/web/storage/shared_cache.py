"""Cache over Redis whose connections all requests of a process share."""

import functools
import json
from typing import Any

from django.core.cache.backends.redis import RedisCache, RedisCacheClient


class JsonSerializer:
    """JSON for cached values: what somebody writes into Redis is never run, as a pickle would be.

    Tuples come back as lists.
    """

    def dumps(self, value: Any) -> int | bytes:
        # A number as Redis counts.
        return value if type(value) is int else json.dumps(value).encode()

    def loads(self, data: bytes) -> Any:
        return json.loads(data)


class SharedRedisCache(RedisCache):
    """Django's cache; under ASGI its own opens a connection for each request."""

    @property
    def _cache(self) -> RedisCacheClient:
        servers = self._servers  # type: ignore[attr-defined]  # no stubs
        options = self._options  # type: ignore[attr-defined]  # no stubs
        return _client(tuple(servers), tuple(options.items()))


@functools.cache
def _client(servers: tuple[str, ...], options: tuple[tuple[str, Any], ...]) -> RedisCacheClient:
    return RedisCacheClient(list(servers), **dict(options))
