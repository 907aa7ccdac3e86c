"""Answers when the database is full (507), read-only or away (503), with Retry-After.

/readyz fails with the same reason for as long as it lasts.
"""

import logging
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, InterfaceError, connection
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.views.defaults import server_error

from controlplane.web.http.middleware import Middleware
from controlplane.web.rest.errors import error_body

log = logging.getLogger(__name__)

RETRY_AFTER_S = 10
REMEMBERED_S = 30.0
LEAST_FREE_BYTES = 32 * 1024 * 1024
"""Free bytes on the disk of a SQLite database below which the server is not ready."""

DISK_FULL = "53100"
READ_ONLY = "25006"


@dataclass(frozen=True, slots=True)
class Failure:
    """Reason why the database is unusable: `status` and `code`, `detail` for readers."""

    status: int
    code: str
    detail: str


FULL = Failure(
    507,
    "disk_full",
    "the server's disk is full, so nothing can be saved; an operator has to make room",
)
READS_ONLY = Failure(
    503,
    "read_only",
    "the database can only be read just now, so nothing can be saved; try again later",
)
AWAY = Failure(503, "database_away", "the database cannot be reached just now; try again later")
BUSY = Failure(503, "database_busy", "the database is busy; try again")

_SQLITE = {
    "database or disk is full": FULL,
    "disk i/o error": FULL,
    "attempt to write a readonly database": READS_ONLY,
    "unable to open database file": AWAY,
    "database is locked": BUSY,
}
_POSTGRES = {
    DISK_FULL: FULL,
    READ_ONLY: READS_ONLY,
    **dict.fromkeys(("40001", "40P01", "55P03", "53300"), BUSY),
}
_CONNECTION_LOST = ("08", "57P")
"""First characters of the SQLSTATEs of lost connections and of a server that shuts down."""

_last: list[tuple[float, Failure]] = []


def failure_of(error: BaseException | None) -> Failure | None:
    """Failure of the database's storage behind an error, else None."""
    if not isinstance(error, DatabaseError | InterfaceError):
        return None
    cause = error.__cause__
    state = getattr(cause, "pgcode", None) or getattr(cause, "sqlstate", None)
    if state:
        return _POSTGRES.get(state) or (AWAY if state.startswith(_CONNECTION_LOST) else None)
    said = str(error).lower()
    found = next((failure for words, failure in _SQLITE.items() if words in said), None)
    is_away = type(error).__name__ in ("OperationalError", "InterfaceError")
    if found is None and connection.vendor == "postgresql" and is_away:
        return AWAY  # no SQLSTATE: the server was never reached, or has gone in the middle
    return found


class StorageFailures(Middleware):
    """Middleware that answers for views whose database failed."""

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        return _answer(request, error)


@login_not_required
def server_error_page(request: HttpRequest) -> HttpResponseBase:
    """handler500: also answers for database failures outside of views."""
    return _answer(request, sys.exc_info()[1]) or server_error(request)


def present_failure() -> str | None:
    """Reason why nothing can be saved now, found without writing; None if none is known."""
    if _last and time.monotonic() - _last[0][0] < REMEMBERED_S:
        return _last[0][1].code
    if connection.vendor == "sqlite":
        return _full(Path(str(connection.settings_dict["NAME"])))
    with connection.cursor() as cursor:
        cursor.execute("SHOW transaction_read_only")
        return READS_ONLY.code if cursor.fetchone() == ("on",) else None


def _full(database: Path) -> str | None:
    if not database.parent.is_dir() or not database.exists():
        return None  # a database in memory
    return FULL.code if shutil.disk_usage(database.parent).free < LEAST_FREE_BYTES else None


def noted_failure(error: BaseException | None) -> Failure | None:
    """Log an error's failure and report it on /readyz; None if it is none."""
    failure = failure_of(error)
    if failure is None:
        return None
    log.error("the database cannot be used: %s", failure.code)
    if failure is not BUSY:
        _last[:] = [(time.monotonic(), failure)]
    return failure


def _answer(request: HttpRequest, error: BaseException | None) -> HttpResponse | None:
    failure = noted_failure(error)
    if failure is None:
        return None
    headers = {"Retry-After": str(RETRY_AFTER_S), "Cache-Control": "no-store"}
    if request.path.startswith("/api/"):
        body = error_body(failure.code, failure.detail)
        return JsonResponse(body, status=failure.status, headers=headers)
    text, headers["Content-Type"] = f"Loadmaster: {failure.detail}.\n", "text/plain; charset=utf-8"
    return HttpResponse(text, status=failure.status, headers=headers)
