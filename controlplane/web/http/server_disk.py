"""Room on the server's disk: where LOADMASTER_HOME is, with SQLite's database."""

from django.conf import settings
from django.http import HttpRequest

from loadmaster.files import free_gb


def server_free_gb() -> float:
    """Return the free room in GB."""
    return free_gb(settings.LOADMASTER_HOME)


def low_disk(request: HttpRequest) -> dict[str, float]:
    """Return the context of pages: `low_disk_gb` for operators if there is too little room."""
    user = getattr(request, "user", None)
    if user is None or not user.is_staff:
        return {}
    left_gb = server_free_gb()
    if left_gb >= settings.SERVER_LEAST_FREE_GB:
        return {}
    return {"low_disk_gb": left_gb}
