"""Public /healthz: the process lives. /readyz: database, cache and migrations work."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.core.cache import cache
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from redis.exceptions import RedisError

from controlplane.operations import clocks
from controlplane.web.http.storage_errors import present_failure
from controlplane.web.storage.watch import leave_sign, sign_age_s

log = logging.getLogger(__name__)

BEAT_KEY = "loadmaster.beat"


def note_beat() -> None:
    """Note beat's tick for /readyz; cache failures are ignored."""
    try:
        leave_sign(BEAT_KEY)
    except RedisError as error:
        log.warning("the beat is not noted: %s", error)


@never_cache
@require_safe
@login_not_required
def healthz(request: HttpRequest) -> JsonResponse:
    """Return 200 without looking at anything."""
    return JsonResponse({"status": "ok"})


@never_cache
@require_safe
@login_not_required
def readyz(request: HttpRequest) -> JsonResponse:
    """Return ready (200) or not (503), by check; errors by class only, as it is public."""
    checks = {name: _outcome(check) for name, check in CHECKS.items()}
    is_ready = all(outcome == "ok" for outcome in checks.values())
    body = {
        "status": "ok" if is_ready else "unavailable",
        "checks": checks,
        "beat_age_s": _beat_age_s(checks["cache"]),
        "clocks": _clocks(checks),
    }
    return JsonResponse(body, status=200 if is_ready else 503)


def _outcome(check: Callable[[], str]) -> str:
    """Outcome of a check: "ok", or the problem."""
    try:
        return check()
    except Exception as error:  # whatever keeps a part from answering is the answer
        return type(error).__name__


def _database() -> str:
    """Outcome of a query, or the reason why nothing can be saved."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        if cursor.fetchone() != (1,):
            return "wrong answer"
    return present_failure() or "ok"


def _cache() -> str:
    probe = str(time.time_ns())
    cache.set("loadmaster.readyz", probe, 60)
    # Another process may have asked in between: any answer shows that the cache works.
    return "ok" if cache.get("loadmaster.readyz") else "forgets"


def _migrations() -> str:
    executor = MigrationExecutor(connection)
    if executor.migration_plan(executor.loader.graph.leaf_nodes()):
        return "migrations are missing; run manage.py migrate"
    return "ok"


CHECKS: dict[str, Callable[[], str]] = {
    "database": _database,
    "cache": _cache,
    "migrations": _migrations,
}


def _beat_age_s(cache_outcome: str) -> float | None:
    return sign_age_s(BEAT_KEY, cache.get(BEAT_KEY)) if cache_outcome == "ok" else None


def _clocks(checks: Mapping[str, str]) -> dict[str, Any] | None:
    return clocks.report() if checks["cache"] == checks["database"] == "ok" else None
