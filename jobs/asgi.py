"""The short way of submissions: past Django's middleware, many in one commit.

It takes what is plainly in order - a bearer token, a JSON body of declared size, an allowed host - and hands everything else to
Django untouched. Whatever is refused is refused there too, so there is one wording of every refusal.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from django.conf import settings
from django.db import DatabaseError
from django.http.request import split_domain_port, validate_host

from clusters.gathering import Overloaded
from controlplane.errors import error_body
from jobs.crowd import Crowd, Letter

log = logging.getLogger(__name__)

Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]

PATH = "/api/v1/jobs/"
TOKEN = re.compile(rb"[Bb]earer ([0-9a-f]{64})")
JSON = re.compile(rb"application/json(;\s*charset=utf-8)?", re.IGNORECASE)
KNOWN = frozenset({
    b"host", b"authorization", b"content-type", b"content-length", b"accept", b"accept-encoding", b"user-agent", b"connection",
    b"idempotency-key", b"x-forwarded-for", b"x-forwarded-proto", b"x-real-ip",
})  # fmt: skip
"""Headers that change nothing here. A request with any other one goes the long way."""
HEADERS = (
    (b"content-type", b"application/json"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"vary", b"Accept"),
)


class Submissions:
    """An ASGI application in front of another one."""

    def __init__(self, app: App, crowd: Crowd | None = None) -> None:
        self._app = app
        self._crowd = crowd or Crowd()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let Django answer."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] != PATH or not in_order(scope):
            await self._app(scope, receive, send)
            return
        body = await _read(receive)
        if body is None:
            return
        status, answer = await self._answer(dict(scope["headers"]), body)
        if answer is None:
            await self._app(scope, _again(body, receive), send)
            return
        length = (b"content-length", str(len(answer)).encode())
        await send({"type": "http.response.start", "status": status, "headers": [*HEADERS, length]})
        await send({"type": "http.response.body", "body": answer})

    async def _answer(self, headers: dict[bytes, bytes], body: bytes) -> tuple[int, bytes | None]:
        """(status, body) of the answer; no body where Django is to find one."""
        token = TOKEN.fullmatch(headers[b"authorization"])
        key = headers.get(b"idempotency-key")
        try:
            data = json.loads(body.decode(), parse_constant=_no_json)
            letter = Letter(token[1].decode() if token else "", data, None if key is None else key.decode("latin-1"))
            return 201, await self._crowd.take(letter)
        except (ValueError, RecursionError):
            return 400, None
        except Overloaded:
            return 503, _failure("overloaded", "too many jobs come in at once; send it again in a moment")
        except DatabaseError as error:
            # Whether the commit went through cannot be known, so Django must not write the job once more.
            log.warning("submissions were not taken in: %s", error)
            return 503, _failure("database", "the database did not answer; send the job again with the same Idempotency-Key")


def in_order(scope: Scope) -> bool:
    """Whether Django's middleware would have nothing to say to the request's head."""
    headers = dict(scope["headers"])
    if scope.get("root_path") or scope.get("query_string") or len(headers) != len(scope["headers"]) or not headers.keys() <= KNOWN:
        return False
    length = headers.get(b"content-length", b"")
    sized = length.isdigit() and len(length) < 10 and int(length) <= settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    typed = JSON.fullmatch(headers.get(b"content-type", b"")) and headers.get(b"accept", b"*/*") in (b"*/*", b"application/json")
    return bool(sized and typed and TOKEN.fullmatch(headers.get(b"authorization", b"")) and _welcome(scope, headers))


def _welcome(scope: Scope, headers: dict[bytes, bytes]) -> bool:
    """An allowed host, and safe transport where that is asked for."""
    if settings.SECURE_SSL_REDIRECT and not (settings.SECURE_PROXY_SSL_HEADER and headers.get(b"x-forwarded-proto") == b"https"):
        return False
    domain, _ = split_domain_port(headers.get(b"host", b"").decode("latin-1"))
    return bool(domain) and validate_host(domain, settings.ALLOWED_HOSTS)


def _no_json(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _failure(code: str, detail: str) -> bytes:
    return json.dumps(error_body(code, detail)).encode()


async def _read(receive: Receive) -> bytes | None:
    """The whole body, None if the client hung up."""
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += bytes(message.get("body", b""))
        if not message.get("more_body", False):
            return body


def _again(body: bytes, receive: Receive) -> Receive:
    """`receive` as if nobody had read the body yet."""
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def first_the_body() -> Message:
        return unread.pop() if unread else await receive()

    return first_the_body
