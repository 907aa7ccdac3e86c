"""The short way of submissions: past Django's middleware, many in one commit.

It takes what is plainly in order - a bearer token, a JSON body of declared size, an allowed host -
and hands everything else to Django untouched. Whatever is refused is refused there too, so there is
one wording of every refusal.
"""

from __future__ import annotations

import json
import logging
import re

from django.conf import settings
from django.db import DatabaseError
from django.http.request import split_domain_port, validate_host

from controlplane.web.http.fast_path import Answering, App, Message, Receive, Scope, Send
from controlplane.web.http.group_commit import OverloadedError
from controlplane.web.http.storage_errors import FULL, READS_ONLY, failure_of
from controlplane.web.rest.errors import error_body
from jobs.rest.batcher import Crowd, Letter, Taken

log = logging.getLogger(__name__)

PATH = "/api/v1/jobs/"
ROUTE = f"{PATH}$"
"""As Django's route is written, by which its way counts requests."""

TOKEN = re.compile(rb"[Bb]earer ([0-9a-f]{64})")
JSON = re.compile(rb"application/json(;\s*charset=utf-8)?", re.IGNORECASE)
KNOWN = frozenset({
    b"host", b"authorization", b"content-type", b"content-length", b"accept", b"accept-encoding",
    b"user-agent", b"connection",
    b"idempotency-key", b"x-forwarded-for", b"x-forwarded-proto", b"x-real-ip", b"x-request-id",
})  # fmt: skip
"""Headers that change nothing here. A request with any other one goes the long way."""


class Submissions:
    """An ASGI application in front of another one."""

    def __init__(self, app: App, crowd: Crowd | None = None) -> None:
        self._app = app
        self._crowd = crowd or Crowd()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let Django answer."""
        if (
            scope["type"] != "http"
            or scope["method"] != "POST"
            or scope["path"] != PATH
            or not in_order(scope)
        ):
            await self._app(scope, receive, send)
            return
        asked = Answering.of(scope, ROUTE)
        body = await _read(receive)
        if body is None:
            return
        taken = await self._taken(dict(scope["headers"]), body)
        if taken is None:
            await self._app(scope, _again(body, receive), send)
        elif isinstance(taken, Taken):
            await asked.answer(send, 201, taken.body, user=taken.user)
        else:
            await asked.answer(send, 503, taken, [(b"retry-after", b"1")])

    async def _taken(self, headers: dict[bytes, bytes], body: bytes) -> Taken | bytes | None:
        """What came of it: taken, the body of a 503, or None where Django is to find the answer."""
        token = TOKEN.fullmatch(headers[b"authorization"])
        key = headers.get(b"idempotency-key")
        try:
            data = json.loads(body.decode(), parse_constant=_no_json)
            letter = Letter(
                token[1].decode() if token else "",
                data,
                None if key is None else key.decode("latin-1"),
            )
            return await self._crowd.take(letter)
        except (ValueError, RecursionError):
            return None
        except OverloadedError:
            return _failure(
                "overloaded", "too many jobs come in at once; send it again in a moment"
            )
        except DatabaseError as error:
            if failure_of(error) in (FULL, READS_ONLY):
                return None  # nothing was written, and the long way says so
            # Whether the commit went through cannot be known, so Django must not write the job once
            # more.
            log.warning("submissions were not taken in: %s", error)
            return _failure(
                "database",
                "the database did not answer; send the job again with the same Idempotency-Key",
            )


def in_order(scope: Scope) -> bool:
    """Whether Django's middleware would have nothing to say to the request's head."""
    headers = dict(scope["headers"])
    if (
        scope.get("root_path")
        or scope.get("query_string")
        or len(headers) != len(scope["headers"])
        or not headers.keys() <= KNOWN
    ):
        return False
    length = headers.get(b"content-length", b"")
    sized = (
        length.isdigit()
        and len(length) < 10
        and int(length) <= settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    )
    typed = JSON.fullmatch(headers.get(b"content-type", b"")) and headers.get(
        b"accept", b"*/*"
    ) in (b"*/*", b"application/json")
    return bool(
        sized
        and typed
        and TOKEN.fullmatch(headers.get(b"authorization", b""))
        and _welcome(scope, headers)
    )


MOST_HOSTS = 100
_hosts: set[bytes] = set()
"""Allowed hosts that were asked for."""


def _welcome(scope: Scope, headers: dict[bytes, bytes]) -> bool:
    """An allowed host, and safe transport where that is asked for."""
    if settings.SECURE_SSL_REDIRECT and not (
        settings.SECURE_PROXY_SSL_HEADER and headers.get(b"x-forwarded-proto") == b"https"
    ):
        return False
    host = headers.get(b"host", b"")
    if host in _hosts:
        return True
    domain, _ = split_domain_port(host.decode("latin-1"))
    allowed = bool(domain) and validate_host(domain, settings.ALLOWED_HOSTS)
    if allowed and len(_hosts) < MOST_HOSTS:
        _hosts.add(host)
    return allowed


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
