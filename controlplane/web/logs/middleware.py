"""Access log: each request has an id and a line with its route, without query and token.

The id is the client's `X-Request-ID` if it is valid, else a new one; tasks that the request starts
carry it too. Good answers to agents, to probes and for files are logged as DEBUG.
"""

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from django.db.models import Model
from django.http import HttpRequest, HttpResponseBase
from django.utils.functional import SimpleLazyObject
from structlog.contextvars import bind_contextvars, clear_contextvars, get_contextvars

from controlplane.web.http.middleware import Middleware
from controlplane.web.http.request_metrics import count_request

log = logging.getLogger("loadmaster.access")

HEADER = "X-Request-ID"
SAFE_ID = re.compile(r"[A-Za-z0-9._:-]{8,128}")
"""Valid id of a client."""

UNMATCHED = "unmatched"
"""Route of an address that no URL pattern matches."""

FREQUENT = re.compile(r"/(api/agent/|static/|healthz|readyz|metrics)")
"""Addresses whose good answers are logged as DEBUG."""

IDS = {"node_id": "node", "assignment_id": "assignment", "job_id": "job"}
"""Ids among the arguments of addresses, and their names in a log."""


def request_id_of(request: HttpRequest) -> str:
    """Return the client's id of the request if it is valid, else a new one."""
    client_id = request.headers.get(HEADER, "")
    return client_id if SAFE_ID.fullmatch(client_id) else uuid4().hex


class RequestLog(Middleware):
    """Outermost middleware: logs each request, and gives it its id."""

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        with _own_ids(request):
            began_s = time.perf_counter()
            response = self.get_response(request)
            _log(request, response, time.perf_counter() - began_s)
            return response

    def process_view(
        self, request: HttpRequest, view: object, args: object, kwargs: dict[str, Any]
    ) -> None:
        """Bind the ids of the address to the lines that the view logs."""
        ids = {}
        for name, value in kwargs.items():
            if name in IDS:
                ids[IDS[name]] = str(value)
        bind_contextvars(**ids)


def route_of(request: HttpRequest) -> str:
    """Return the URL pattern of the request, without ids."""
    match = request.resolver_match
    return UNMATCHED if match is None else f"/{match.route}"


def user_id_of(request: HttpRequest) -> object:
    """Return the user's id if it is known already, without a query; else None."""
    user = getattr(request, "user", None)
    if isinstance(user, SimpleLazyObject):  # the session's; the API replaces it by a token's
        user = getattr(request, "_cached_user", None)
    return user.pk if isinstance(user, Model) else None


@contextmanager
def _own_ids(request: HttpRequest) -> Iterator[None]:
    """Bind the request's id, and no ids from outside, to the lines that are logged within."""
    outer = get_contextvars()
    clear_contextvars()
    bind_contextvars(request_id=request_id_of(request))
    try:
        yield
    finally:
        clear_contextvars()
        bind_contextvars(**outer)


def _log(request: HttpRequest, response: HttpResponseBase, took_s: float) -> None:
    """Log and count a request, and put its id on the answer."""
    route = route_of(request)
    status = response.status_code
    response.headers[HEADER] = str(get_contextvars().get("request_id", ""))
    count_request(request.method or "", route, status, took_s)

    is_frequent = status < 400 and FREQUENT.match(request.path_info)
    level = logging.DEBUG if is_frequent else logging.INFO
    if not log.isEnabledFor(level):
        return
    fields: dict[str, object] = {
        "method": request.method,
        "route": route,
        "status": status,
        "ms": round(took_s * 1000, 1),
    }
    user_id = user_id_of(request)
    if user_id is not None:
        fields["user"] = user_id
    log.log(level, "request", extra={"loadmaster": fields})
