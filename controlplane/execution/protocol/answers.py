"""Answers and refusals to agents: headers, request id, count and line in the access log."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.middleware.clickjacking import XFrameOptionsMiddleware
from django.middleware.security import SecurityMiddleware
from structlog.contextvars import bound_contextvars

from clusters.agent_errors import AgentCallError
from controlplane.execution.protocol.threads import OverloadedError
from controlplane.web.http.asgi import Send
from controlplane.web.http.middleware import ContentSecurityPolicy, SecurityHeaders
from controlplane.web.http.request_metrics import count_request
from controlplane.web.http.storage_errors import RETRY_AFTER_S, noted_failure
from controlplane.web.logs.middleware import HEADER, SAFE_ID
from controlplane.web.logs.middleware import log as access_log
from jobs.moves import LostRaceError

log = logging.getLogger(__name__)


def refusal_of(error: Exception) -> AgentCallError:
    """Return the refusal for a call that raised this error; an unexpected one is logged: 500."""
    if isinstance(error, AgentCallError):
        return error
    if isinstance(error, OverloadedError):
        return overloaded("too many calls are waiting; send this call again in a few seconds")
    if isinstance(error, LostRaceError):
        log.info("an agent's call lost a race: %s", error)
        return AgentCallError(
            503, "race", "another request changed the same row first; send this one again"
        )
    refusal = database_refusal(error)
    if refusal is not None:
        return refusal
    log.error("an agent's call failed", exc_info=error)
    return AgentCallError(500, "server_error", "the server failed; send the request again later")


def database_refusal(error: Exception) -> AgentCallError | None:
    """Return the refusal for an error of an unusable database; None for any other error."""
    failure = noted_failure(error)
    if failure is None:
        return None
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    return AgentCallError(failure.status, failure.code, failure.detail, headers=headers)


def overloaded(detail: str) -> AgentCallError:
    """Return the refusal of a server that has too much to do."""
    return AgentCallError(503, "overloaded", detail)


GUARDS = (SecurityMiddleware, ContentSecurityPolicy, SecurityHeaders, XFrameOptionsMiddleware)
"""Middleware that sets security headers, the outermost first."""

REQUEST_ID = HEADER.lower().encode()
"""Name of the header with the request's id."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to an agent, JSON if it has a body."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_refusal(cls, refusal: AgentCallError) -> Answer:
        """Return the answer that says why a call is refused."""
        body = json.dumps(refusal.body(), separators=(",", ":")).encode()
        return cls(refusal.status, body, refusal.headers)


@dataclass(frozen=True, slots=True)
class Exchange:
    """Current request, with its route and ids for the log and the counts."""

    method: str
    route: str
    ids: Mapping[str, str]
    request_id: str
    began_s: float

    @classmethod
    def begin(
        cls, method: str, route: str, ids: Mapping[str, str], headers: Mapping[bytes, bytes]
    ) -> Exchange:
        """Begin now, with the client's request id if it is valid."""
        request_id = headers.get(REQUEST_ID, b"").decode("latin-1")
        if not SAFE_ID.fullmatch(request_id):
            request_id = os.urandom(16).hex()
        return cls(method, route, ids, request_id, time.perf_counter())

    def bound(self) -> AbstractContextManager[None]:
        """Put the request's id and its ids into every log line and every started task."""
        return bound_contextvars(request_id=self.request_id, **self.ids)

    def act(self, call: Callable[[Any], Any], request: object) -> object:
        """Make the call with the request's ids in every log line."""
        with self.bound():
            return call(request)

    async def send(self, send: Send, answer: Answer) -> None:
        """Send the answer, count it, and write a line of the access log."""
        # 1. Headers, then the body.
        headers = [
            (name.lower().encode(), value.encode()) for name, value in answer.headers.items()
        ]
        if answer.body:
            headers.append((b"content-type", b"application/json"))
        if answer.status != 204:
            headers.append((b"content-length", b"%d" % len(answer.body)))
        headers.append((REQUEST_ID, self.request_id.encode()))
        headers += security_headers()
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

        # 2. Count and log it. Successful calls are many: they are logged for debugging only.
        took_s = time.perf_counter() - self.began_s
        count_request(self.method, self.route, answer.status, took_s)
        level = logging.DEBUG if answer.status < 400 else logging.INFO
        if access_log.isEnabledFor(level):
            took_ms = round(took_s * 1000, 1)
            fields = {
                "method": self.method,
                "route": self.route,
                "status": answer.status,
                "ms": took_ms,
            }
            with self.bound():
                access_log.log(level, "request", extra={"loadmaster": fields})


@cache
def security_headers() -> tuple[tuple[bytes, bytes], ...]:
    """Return the security headers of the API's answers, as Django's middleware sets them."""
    handler: Callable[[HttpRequest], Any] = _empty
    for guard in reversed(GUARDS):
        handler = guard(handler)
    headers = []
    for name, value in handler(_ApiRequest()).headers.items():
        if name not in ("Content-Type", "Content-Length"):
            headers.append((name.lower().encode(), value.encode()))
    return tuple(headers)


def _empty(_: HttpRequest) -> HttpResponse:
    """Answer without headers of its own."""
    return HttpResponse()


class _ApiRequest(HttpRequest):
    """Request to the API over TLS, so that the answer has HSTS where TLS is on."""

    def __init__(self) -> None:
        super().__init__()
        self.path = self.path_info = "/api/"
        self.META = {"SERVER_NAME": "localhost", "SERVER_PORT": "443"}
        if settings.SECURE_PROXY_SSL_HEADER:
            name, value = settings.SECURE_PROXY_SSL_HEADER
            self.META[name] = value

    def _get_scheme(self) -> str:
        return "https"
