"""What every answer has that is given in front of Django's middleware: its guards' headers, an id,
a count, a line in the log.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.middleware.clickjacking import XFrameOptionsMiddleware
from django.middleware.security import SecurityMiddleware
from structlog.contextvars import bound_contextvars

from controlplane.web.http.guard import WHOLE
from controlplane.web.http.metrics import count_request
from controlplane.web.http.middleware import ContentSecurityPolicy, SecurityHeaders
from controlplane.web.logs.middleware import HEADER, SANE, log

Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]
Header = tuple[bytes, bytes]
Whole = Callable[[int, bytes, bytes], bool]

GUARDS = (SecurityMiddleware, ContentSecurityPolicy, SecurityHeaders, XFrameOptionsMiddleware)
ID = HEADER.lower().encode()


@dataclass(frozen=True, slots=True)
class Answering:
    """A request that is answered here. `route` is the pattern that Django's way counts it by; `ids`
    stand in its line. `whole` is the server's way to send an answer in one piece, where it has one.
    """

    method: str
    route: str
    quiet: bool
    request_id: str
    began_s: float
    ids: Mapping[str, str]
    whole: Whole | None = None

    @classmethod
    def of(cls, scope: Scope, route: str, *, quiet: bool = False, **ids: str) -> Answering:
        """Begin now. Of a `quiet` one what goes well is DEBUG in the log."""
        given = dict(scope["headers"]).get(ID, b"").decode("latin-1")
        request_id = given if SANE.fullmatch(given) else os.urandom(16).hex()
        whole = scope.get("extensions", {}).get(WHOLE, {}).get("answer")
        return cls(scope["method"], route, quiet, request_id, time.perf_counter(), ids, whole)

    async def answer(
        self,
        send: Send,
        status: int,
        body: bytes,
        more: Iterable[Header] = (),
        *,
        user: object = None,
    ) -> None:
        """Send it, JSON where there is a body, and tell of it; `user` is the key of who asked,
        where that is known.
        """
        content = [(b"content-type", b"application/json")] if body else []
        length = [] if status == 204 else [(b"content-length", str(len(body)).encode())]
        first, last = [*content, *length, (ID, self.request_id.encode())], list(more)
        if self.whole is None or not self.whole(
            status, _lines(first) + _same_lines() + _lines(last), body
        ):
            await send(
                {
                    "type": "http.response.start",
                    "status": status,
                    "headers": [*first, *_same(), *last],
                }
            )
            await send({"type": "http.response.body", "body": body})
        self._tell(status, user)

    def _tell(self, status: int, user: object) -> None:
        took_s = time.perf_counter() - self.began_s
        count_request(self.method, self.route, status, took_s)
        level = logging.DEBUG if self.quiet and status < 400 else logging.INFO
        if not log.isEnabledFor(level):
            return
        fields = {
            "method": self.method,
            "route": self.route,
            "status": status,
            "ms": round(took_s * 1000, 1),
        }
        with bound_contextvars(request_id=self.request_id, **self.ids):
            log.log(
                level,
                "request",
                extra={"loadmaster": fields if user is None else {**fields, "user": user}},
            )


@cache
def security_headers() -> tuple[Header, ...]:
    """What Django's middleware puts on an answer of the API, asked of itself once: so the two can
    never differ.
    """
    handler: Callable[[HttpRequest], Any] = _nothing
    for guard in reversed(GUARDS):
        handler = guard(handler)
    answer = handler(_Secure())
    return tuple(
        (n.lower().encode(), v.encode())
        for n, v in answer.headers.items()
        if n not in ("Content-Type", "Content-Length")
    )


@cache
def _same() -> tuple[Header, ...]:
    """What every answer has alike."""
    return (*security_headers(), (b"vary", b"Cookie"))


@cache
def _same_lines() -> bytes:
    return _lines(_same())


def _lines(headers: Iterable[Header]) -> bytes:
    return b"".join(b"%b: %b\r\n" % header for header in headers)


def _nothing(_: HttpRequest) -> HttpResponse:
    return HttpResponse()


class _Secure(HttpRequest):
    """A request to the API over TLS: the short ways take no other where TLS is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.path = self.path_info = "/api/"
        self.META = {"SERVER_NAME": "localhost", "SERVER_PORT": "443"}
        if settings.SECURE_PROXY_SSL_HEADER:
            name, value = settings.SECURE_PROXY_SSL_HEADER
            self.META[name] = value

    def _get_scheme(self) -> str:
        return "https"
