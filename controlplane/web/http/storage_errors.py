"""Answers while the database is full (507), read-only or away (503), with Retry-After.

Meanwhile /readyz fails with the same reason.
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
"""Retry-After of these answers."""

REMEMBERED_S = 30.0
"""Seconds for which /readyz reports a failure after it was seen."""

LEAST_FREE_BYTES = 32 * 1024 * 1024
"""Free bytes on the disk of a SQLite database below which the server is not ready."""

# SQLSTATEs of PostgreSQL.
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
"""Failures by SQLite's messages, in small letters."""

_POSTGRES = {
    DISK_FULL: FULL,
    READ_ONLY: READS_ONLY,
    "40001": BUSY,  # serialization failure
    "40P01": BUSY,  # deadlock
    "55P03": BUSY,  # lock not available
    "53300": BUSY,  # too many connections
}
"""Failures by PostgreSQL's SQLSTATEs."""

_CONNECTION_LOST = ("08", "57P")
"""First characters of the SQLSTATEs of lost connections and of a server that shuts down."""

_last: list[tuple[float, Failure]] = []
"""The last failure, if there was any, with its monotonic time."""


def failure_of(error: BaseException | None) -> Failure | None:
    """Return the failure of the database behind an error; None for other errors."""
    if not isinstance(error, DatabaseError | InterfaceError):
        return None

    # 1. PostgreSQL gives a SQLSTATE.
    cause = error.__cause__
    sqlstate = getattr(cause, "pgcode", None) or getattr(cause, "sqlstate", None)
    if sqlstate:
        if sqlstate.startswith(_CONNECTION_LOST):
            return AWAY
        return _POSTGRES.get(sqlstate)

    # 2. SQLite gives a message.
    text = str(error).lower()
    for message, failure in _SQLITE.items():
        if message in text:
            return failure

    # 3. PostgreSQL gives no SQLSTATE if it was not reached, or the connection broke.
    is_of_connection = type(error).__name__ in ("OperationalError", "InterfaceError")
    if connection.vendor == "postgresql" and is_of_connection:
        return AWAY
    return None


class StorageFailures(Middleware):
    """Middleware that answers for views whose database failed."""

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        return _answer(request, error)


@login_not_required
def server_error_page(request: HttpRequest) -> HttpResponseBase:
    """Answer for errors outside of views (Django's handler500), database failures among them."""
    _, error, _ = sys.exc_info()
    return _answer(request, error) or server_error(request)


def present_failure() -> str | None:
    """Return the code of a failure that lasts, found without writing; None without one."""
    # 1. A failure that a request has met lately.
    if _last:
        failed_s, failure = _last[0]
        if time.monotonic() - failed_s < REMEMBERED_S:
            return failure.code

    # 2. The state of the disk or of the server.
    if connection.vendor == "sqlite":
        return _full_disk(Path(str(connection.settings_dict["NAME"])))
    with connection.cursor() as cursor:
        cursor.execute("SHOW transaction_read_only")
        return READS_ONLY.code if cursor.fetchone() == ("on",) else None


def _full_disk(database: Path) -> str | None:
    """Return the code of a full disk under a SQLite database; None with room, or in memory."""
    if not database.parent.is_dir() or not database.exists():
        return None
    free_bytes = shutil.disk_usage(database.parent).free
    return FULL.code if free_bytes < LEAST_FREE_BYTES else None


def noted_failure(error: BaseException | None) -> Failure | None:
    """Return an error's failure of the database, log it and report it on /readyz; else None."""
    failure = failure_of(error)
    if failure is None:
        return None
    log.error("the database cannot be used: %s", failure.code)
    if failure is not BUSY:
        _last[:] = [(time.monotonic(), failure)]
    return failure


def _answer(request: HttpRequest, error: BaseException | None) -> HttpResponse | None:
    """Return the answer to a request whose database failed; None for other errors."""
    failure = noted_failure(error)
    if failure is None:
        return None
    headers = {"Retry-After": str(RETRY_AFTER_S), "Cache-Control": "no-store"}
    if request.path.startswith("/api/"):
        body = error_body(failure.code, failure.detail)
        return JsonResponse(body, status=failure.status, headers=headers)
    headers["Content-Type"] = "text/plain; charset=utf-8"
    text = f"Loadmaster: {failure.detail}.\n"
    return HttpResponse(text, status=failure.status, headers=headers)
