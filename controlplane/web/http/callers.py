"""Limits of one caller: requests at once, of which a few have threads and the others wait.

A caller is the user whose session or token a request names, else an address. A request waits for
its turn as its user's from the first one on, so nobody keeps those of strangers, logins among them,
waiting by new sessions and tokens.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from django.db import DatabaseError, close_old_connections
from django.http import parse_cookie
from rest_framework.exceptions import AuthenticationFailed

from controlplane.web.http.asgi import TURNS, App, Message, Receive, Scope, Send
from controlplane.web.http.middleware import refused
from controlplane.web.http.pace import STRANGERS, Pace
from controlplane.web.http.request_metrics import count_request
from controlplane.web.http.throttling import network_of
from controlplane.web.rest.defaults import BearerAuthentication

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
    name: str = ""

    def leave(self) -> None:
        """End it, if it is counted: a stream ends its visit when it begins."""
        caller = self.callers.get(self.name)
        if caller is not None:
            caller.requests -= 1
            if not caller.requests:
                del self.callers[self.name]
        self.name = ""


class CallerLimits:
    """ASGI application in front of Django's that answers 429 beyond a caller's limit.

    `whose` returns the id of the user whose credential a request names, None for nobody's.
    """

    def __init__(self, app: App, whose: Callable[[Scope], Awaitable[object]]) -> None:
        self._app, self._whose = app, whose
        self._callers: dict[str, Caller] = {}
        self._asking = asyncio.Semaphore(1)
        self._strangers = asyncio.Semaphore(THREADS_OF_STRANGERS)
        self._probes = asyncio.Semaphore(1)
        self._pace = Pace()
        self._users: OrderedDict[bytes, str] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        visit = Visit(self._callers)

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start" and is_stream(message):
                visit.leave()
            await send(message)

        try:
            user = await self._entered(visit, scope)
            if visit.name:
                scope[TURNS] = [self._callers[visit.name].turns, self._turn(user, scope)]
                await self._app(scope, receive, watched)
            else:
                await _refuse(scope, send, of_user=user is not None)
        finally:
            visit.leave()

    async def _entered(self, visit: Visit, scope: Scope) -> str | None:
        """Return the request's user, if any; count it where its caller has not too many already."""
        credential = credential_of(scope)
        user = self._users.get(credential)
        self._count(visit, scope, user)
        if visit.name and not user and credential and scope["path"] not in PROBES:
            user = await self._ask(credential, scope)
            if user:
                visit.leave()
                self._count(visit, scope, user)
        return user

    def _count(self, visit: Visit, scope: Scope, user: str | None) -> None:
        name = user or f"address {network_of((scope.get('client') or ('',))[0])}"
        caller = self._callers.setdefault(name, Caller())
        if caller.requests < _most(of_user=user is not None):
            caller.requests += 1
            visit.name = name
        elif not caller.told:
            caller.told = True
            log.warning("requests are refused: %s has %d at once", name, caller.requests)

    @asynccontextmanager
    async def _turn(self, user: str | None, scope: Scope) -> AsyncIterator[None]:
        """Wait for the turn of the caller."""
        if user:
            async with self._pace.turn(user, scope):
                yield
        elif scope["path"] in PROBES:
            async with self._probes:
                yield
        else:
            async with self._strangers, self._pace.turn(STRANGERS, scope):
                yield

    async def _ask(self, credential: bytes, scope: Scope) -> str | None:
        """Ask whose a credential is, and remember it if it is anybody's."""
        async with self._asking:
            user = None if credential in self._users else await self._whose(scope)
        if user is not None:
            self._users[credential] = f"user {user}"
            if len(self._users) > MOST_KNOWN:
                self._users.popitem(last=False)
        return self._users.get(credential)


def credential_of(scope: Scope) -> bytes:
    """Digest of the session or token that the request names; empty without one."""
    given = "".join(_given(scope))
    return hashlib.sha256(given.encode()).digest() if given else b""


def _given(scope: Scope) -> tuple[str, str]:
    """Authorization that a request names, else session."""
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    if given := headers.get(b"authorization", ""):
        return given, ""
    cookies = parse_cookie(headers.get(b"cookie", ""))
    return "", cookies.get(settings.SESSION_COOKIE_NAME, "")


def user_of(scope: Scope) -> object:
    """Id of the user whose token or session the request names; None if it is nobody's."""
    authorization, session = _given(scope)
    try:
        close_old_connections()
        if not authorization:
            return SessionStore(session).get(SESSION_KEY)
        token = authorization.partition(" ")[2].encode()
        return BearerAuthentication().authenticate_credentials(token)[0].pk
    except (AuthenticationFailed, DatabaseError):
        return None  # the answer says what is wrong


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
