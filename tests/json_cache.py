"""A cache in memory whose values go through JSON, as they do in Redis."""

from typing import Any

from django.core.cache.backends.locmem import LocMemCache

from controlplane.web.storage.shared_cache import JsonSerializer


def _as_in_redis(value: Any) -> Any:
    serializer = JsonSerializer()
    stored = serializer.dumps(value)
    return stored if isinstance(stored, int) else serializer.loads(stored)


class JsonLocMemCache(LocMemCache):
    def add(self, key: Any, value: Any, *args: Any, **values: Any) -> bool:
        return super().add(key, _as_in_redis(value), *args, **values)

    def set(self, key: Any, value: Any, *args: Any, **values: Any) -> None:
        super().set(key, _as_in_redis(value), *args, **values)
