"""The short way of the calls that agents make all the time: heartbeats and long polls, past
Django's middleware.

It takes what is plainly in order and hands everything else to Django untouched, whose views then
refuse it in full: another version, no token, a strange host, a body that does not fit. So there is
one wording of every refusal.
"""

from __future__ import annotations

import json
import re
from uuid import UUID

from django.conf import settings
from django.http.request import split_domain_port, validate_host

from clusters.agents.errors import AgentCallError
from clusters.services.enrolment import sha256
from controlplane.execution.protocol.base import LARGEST_BODY, time_header
from controlplane.execution.protocol.heartbeat_batch import Beats
from controlplane.execution.protocol.polls import POLLS
from controlplane.execution.services.heartbeats import Call
from controlplane.web.http.fast_path import Answering, App, Message, Receive, Scope, Send
from loadmaster.protocol import PROTOCOL_HEADER, PROTOCOL_VERSION, TIME_HEADER, Heartbeat
from loadmaster.wire import WireError, dumps, loads

NODES = "/api/agent/v1/nodes/"
HEARTBEAT, DIRECTIVES = "/heartbeat", "/directives"
ENDS = {"POST": HEARTBEAT, "GET": DIRECTIVES}
UUID_LENGTH = 36
VERSION_HEADER, VERSION = PROTOCOL_HEADER.lower().encode(), str(PROTOCOL_VERSION).encode()
TIME = TIME_HEADER.lower().encode()
ROUTES = {end: f"{NODES}<uuid:node_id>{end}" for end in ENDS.values()}
"""As Django's routes are written, by which its way counts requests."""

MOST_HOSTS = 100


class ShortWay:
    """An ASGI application in front of Django's."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._beats = Beats()
        self._polls = POLLS
        self._hosts: set[bytes] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let Django answer."""
        end = ENDS.get(scope["method"], "") if scope["type"] == "http" else ""
        if not end or not scope["path"].endswith(end):
            await self._app(scope, receive, send)
            return
        node, headers = _node_in(scope["path"], end), _headers(scope)
        if node is None or headers is None or not self._in_order(scope, headers):
            await self._app(scope, receive, send)
            return
        asked = Answering.of(scope, ROUTES[end], quiet=True, node=str(node))
        if end == HEARTBEAT and _fits(headers):
            await self._heartbeat(node, _token(headers), asked, scope, receive, send)
        elif end == DIRECTIVES and (since := _since(scope["query_string"])) is not None:
            await self._directives(node, _token(headers), since, asked, send)
        else:
            await self._app(scope, receive, send)

    async def _heartbeat(
        self, node: UUID, token: str, asked: Answering, scope: Scope, receive: Receive, send: Send
    ) -> None:
        body = await _read(receive)
        if body is None:
            return
        try:
            beat = loads(Heartbeat, body)
        except WireError:
            await self._app(scope, _again(body, receive), send)
            return
        try:
            reply = await self._beats.take(Call(node, beat, sha256(token)))
        except AgentCallError as refusal:
            await _refuse(asked, send, refusal)
            return
        await asked.answer(send, 200, dumps(reply), [(TIME, time_header().encode())])

    async def _directives(
        self, node: UUID, token: str, since: tuple[int, float], asked: Answering, send: Send
    ) -> None:
        try:
            found = await self._polls.wait(node, sha256(token), *since)
        except AgentCallError as refusal:
            await _refuse(asked, send, refusal)
            return
        if found.directives:
            await asked.answer(send, 200, dumps(found))
        else:
            await asked.answer(send, 204, b"")

    def _in_order(self, scope: Scope, headers: dict[bytes, bytes]) -> bool:
        """Whether Django's middleware would have nothing to say: an allowed host, safe transport
        where that is asked for.
        """
        if scope.get("root_path") or headers.get(VERSION_HEADER) != VERSION or not _token(headers):
            return False
        if settings.USE_X_FORWARDED_HOST and b"x-forwarded-host" in headers:
            return False
        if settings.SECURE_SSL_REDIRECT and not _is_secure(scope, headers):
            return False
        return self._is_allowed(headers.get(b"host", b""))

    def _is_allowed(self, host: bytes) -> bool:
        if host in self._hosts:
            return True
        domain, _ = split_domain_port(host.decode("latin-1"))
        allowed = bool(domain) and validate_host(domain, settings.ALLOWED_HOSTS)
        if allowed and len(self._hosts) < MOST_HOSTS:
            self._hosts.add(host)
        return allowed


def _is_secure(scope: Scope, headers: dict[bytes, bytes]) -> bool:
    if scope.get("scheme") == "https" and not settings.SECURE_PROXY_SSL_HEADER:
        return True
    if not settings.SECURE_PROXY_SSL_HEADER:
        return False
    name, value = settings.SECURE_PROXY_SSL_HEADER
    return (
        headers.get(name.removeprefix("HTTP_").replace("_", "-").lower().encode()) == value.encode()
    )


def _headers(scope: Scope) -> dict[bytes, bytes] | None:
    """The headers, None where one comes twice."""
    headers = dict(scope["headers"])
    return headers if len(headers) == len(scope["headers"]) else None


def _node_in(path: str, end: str) -> UUID | None:
    """The node of an address, None unless it is written as Django's routes take it."""
    text = path[len(NODES) : -len(end)]
    if len(text) != UUID_LENGTH or not path.startswith(NODES):
        return None
    try:
        node = UUID(text)
    except ValueError:
        return None
    return node if str(node) == text else None


def _token(headers: dict[bytes, bytes]) -> str:
    scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _since(query: bytes) -> tuple[int, float] | None:
    """Cursor and seconds to wait, None unless they are written plainly."""
    found = re.fullmatch(rb"cursor=(\d{1,19})&wait=(\d{1,4}(?:\.\d{1,9})?)", query)
    return (int(found[1]), float(found[2])) if found else None


def _fits(headers: dict[bytes, bytes]) -> bool:
    """Whether the body says how large it is, and is small enough."""
    length = headers.get(b"content-length", b"")
    return (
        length.isdigit()
        and len(length) < 10
        and int(length) <= LARGEST_BODY
        and b"transfer-encoding" not in headers
    )


async def _read(receive: Receive) -> bytes | None:
    """The whole body, None if the client hung up."""
    body: bytes = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return body


def _again(body: bytes, receive: Receive) -> Receive:
    """`receive` as if nobody had read the body yet."""
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def first_the_body() -> Message:
        return unread.pop() if unread else await receive()

    return first_the_body


async def _refuse(asked: Answering, send: Send, refusal: AgentCallError) -> None:
    more = [(name.lower().encode(), value.encode()) for name, value in refusal.headers().items()]
    await asked.answer(
        send, refusal.status, json.dumps(refusal.body(), separators=(",", ":")).encode(), more
    )
