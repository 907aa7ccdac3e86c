"""Limits of one caller: requests at once, of which a few have threads and the others wait.

A caller is a user, or an address while nobody is known to be logged in.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from django.conf import settings
from django.http import parse_cookie

from controlplane.web.http.asgi import TURNS, USER, App, Message, Receive, Scope, Send
from controlplane.web.http.middleware import refused
from controlplane.web.http.pace import STRANGERS, Pace
from controlplane.web.http.request_metrics import count_request
from controlplane.web.http.throttling import network_of

log = logging.getLogger(__name__)

THREADS_EACH, THREADS_OF_STRANGERS = 2, 2
"""Threads that one caller has at once, and all together of whom no user is known."""

MOST_KNOWN = 10_000
"""Credentials whose users are remembered."""

PROBES = frozenset({"/healthz", "/readyz", "/metrics"})
"""Addresses that other programs ask, for which a late answer is none: they have a thread."""

RETRY_S = "1"
ROUTE = "refused"
"""Route of refused requests in the metrics."""


@dataclass(slots=True)
class Caller:
    """Requests of one caller that are not answered yet; `told`: a refusal is logged already."""

    requests: int = 0
    told: bool = False
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(THREADS_EACH))


@dataclass(slots=True)
class Visit:
    """One request of a caller, from before its body is read to the end of its answer."""

    callers: dict[str, Caller]
    name: str

    def leave(self) -> None:
        """End it, once: a stream ends its visit when it begins."""
        caller = self.callers.get(self.name)
        if caller is not None:
            caller.requests -= 1
            if not caller.requests:
                del self.callers[self.name]
        self.name = ""


class CallerLimits:
    """ASGI application in front of Django's that answers 429 beyond a caller's limit."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._callers: dict[str, Caller] = {}
        self._strangers = asyncio.Semaphore(THREADS_OF_STRANGERS)
        self._probes = asyncio.Semaphore(1)
        self._pace = Pace()
        self._users: OrderedDict[bytes, str] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        credential = credential_of(scope)
        user = self._users.get(credential)
        name = user or f"address {network_of((scope.get('client') or ('',))[0])}"
        caller = self._callers.setdefault(name, Caller())
        if caller.requests >= _most(of_user=user is not None):
            if not caller.told:
                caller.told = True
                log.warning("requests are refused: %s has %d at once", name, caller.requests)
            await _refuse(scope, send, of_user=user is not None)
            return
        caller.requests += 1
        scope[TURNS] = [caller.turns, self._turn(credential, scope)]
        visit = Visit(self._callers, name)

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._learn(credential, scope.get(USER))
                if is_stream(message):
                    visit.leave()
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            visit.leave()

    @asynccontextmanager
    async def _turn(self, credential: bytes, scope: Scope) -> AsyncIterator[None]:
        """Wait for the turn of who is known by now: of many requests at once with a new credential,
        the first answer tells whose the others are.
        """
        if user := self._users.get(credential):
            async with self._pace.turn(user, scope):
                yield
        elif scope["path"] in PROBES:
            async with self._probes:
                yield
        else:
            async with self._strangers, self._pace.turn(STRANGERS, scope):
                yield

    def _learn(self, credential: bytes, user: object) -> None:
        """Remember whose credential this is, so that the next request counts for the user."""
        if not credential or user is None:
            return
        self._users[credential] = f"user {user}"
        self._users.move_to_end(credential)
        if len(self._users) > MOST_KNOWN:
            self._users.popitem(last=False)


def credential_of(scope: Scope) -> bytes:
    """Digest of the session or token that the request names; empty without one."""
    headers = dict(scope["headers"])
    given = headers.get(b"authorization", b"")
    if not given:
        cookies = parse_cookie(headers.get(b"cookie", b"").decode("latin-1"))
        given = cookies.get(settings.SESSION_COOKIE_NAME, "").encode()
    return hashlib.sha256(given).digest() if given else b""


def is_stream(head: Message) -> bool:
    """Return True for the head of an event stream, which has limits of its own."""
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in head["headers"]
    )


def _most(*, of_user: bool) -> int:
    return settings.REQUESTS_PER_USER if of_user else settings.REQUESTS_PER_ADDRESS


async def _refuse(scope: Scope, send: Send, *, of_user: bool) -> None:
    """Answer at once, before the body is read."""
    name, whose = ("USER", "you") if of_user else ("ADDRESS", "your address")
    count_request(scope["method"], ROUTE, 429, 0.0)
    text = (
        f"{_most(of_user=of_user)} requests of {whose} are being answered already; wait for"
        f" them, or ask an operator to raise LOADMASTER_REQUESTS_PER_{name}"
    )
    answer = refused(scope["path"], 429, "too_many_requests", text)
    said = {**answer.headers, "Retry-After": RETRY_S, "Content-Length": str(len(answer.content))}
    headers = [(key.lower().encode(), value.encode()) for key, value in said.items()]
    await send({"type": "http.response.start", "status": 429, "headers": headers})
    await send({"type": "http.response.body", "body": answer.content})
