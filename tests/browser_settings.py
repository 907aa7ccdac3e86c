"""Settings of the server that the browser tests start: the real ones on a database file, broker and
cache in memory.
"""

from controlplane.settings import *  # noqa: F403  # settings are a star import by nature

CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
CELERY_BROKER_URL = "memory://"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
