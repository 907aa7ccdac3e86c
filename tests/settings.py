"""Settings of the tests: a database of their own, broker and cache in memory unless a test starts
real ones.
"""

import os
import tempfile

os.environ["LOADMASTER_HOME"] = tempfile.mkdtemp(prefix="loadmaster-tests-")
os.environ.setdefault("SECRET_KEY", "only-for-tests-" + "0123456789" * 5)

from controlplane.settings import *  # noqa: F403  # settings are a star import by nature

# A dictionary of its own: tests look at the server's too.
CACHES = {**CACHES, "default": {"BACKEND": "tests.json_cache.JsonLocMemCache"}}  # noqa: F405  # as above
CELERY_BROKER_URL = "memory://"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
AXES_ENABLED = False
WHITENOISE_AUTOREFRESH = True
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
