"""Settings of the server that the browser tests start: the real ones on a database file, broker and
cache in memory.
"""

from controlplane.settings import *  # noqa: F403  # settings are a star import by nature

_IN_MEMORY = "django.core.cache.backends.locmem.LocMemCache"
CACHES = {name: {"BACKEND": _IN_MEMORY, "LOCATION": name} for name in ("default", "process")}
CELERY_BROKER_URL = "memory://"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
