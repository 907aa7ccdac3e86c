"""Limits of one caller: requests at once, of which a few have threads and the others wait.

A caller is the user whose token or session a request names, else an address. Whose a new one is, is
asked before the request waits for its turn, so that it takes none of those that logins need.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from django.conf import settings
from django.http import HttpResponse

from controlplane.web.credentials.whose import Credential, Users, credentials_of, user_of
from controlplane.web.http.asgi import (
    TURN,
    App,
    Message,
    Receive,
    Scope,
    Send,
    ThreadedHandler,
)
from controlplane.web.http.middleware import refused, refused_body
from controlplane.web.http.pace import STRANGERS, Pace
from controlplane.web.http.request_metrics import count_request
from controlplane.web.http.throttling import network_of

log = logging.getLogger(__name__)

THREADS_EACH, THREADS_OF_STRANGERS = 2, 2
"""Threads that one caller has at once, and all together of whom no user is known."""

NOBODY_S = 0.05
"""Time after which an address is asked about again whose credential was nobody's."""

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
    asks: asyncio.Lock = field(default_factory=asyncio.Lock)


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
    """ASGI application in front of Django's that answers 429 beyond a caller's limit, and refuses
    bodies that are too large: Django reads a body before its middleware.

    `whose` returns the id of the user whose credential this is, None for nobody's.
    """

    def __init__(self, app: App, whose: Callable[[Credential], Awaitable[object]]) -> None:
        self._app, self._users = app, Users(whose)
        self._callers: dict[str, Caller] = {}
        self._strangers = asyncio.Semaphore(THREADS_OF_STRANGERS)
        # One of each: what is asked of /readyz and /metrics delays no /healthz.
        self._probes = {path: asyncio.Semaphore(1) for path in PROBES}
        self._pace = Pace()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if (refusal := _refused_body(scope)) is not None:
            await _refuse(scope, send, refusal)
            return
        visit = Visit(self._callers)

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start" and is_stream(message):
                visit.leave()
            await send(message)

        try:
            credentials = [] if scope["path"] in PROBES else credentials_of(scope)
            user = self._users.known(credentials)
            is_in = self._enter(visit, scope, user)
            if is_in and credentials and not user:
                user = await self._ask(self._callers[visit.name], credentials)
                if user:
                    visit.leave()
                    is_in = self._enter(visit, scope, user)
            if is_in:
                scope[TURN] = partial(self._turn, self._callers[visit.name], user, scope)
                await self._app(scope, receive, watched)
            else:
                await _refuse(scope, send, _too_many(scope, of_user=user is not None))
        finally:
            visit.leave()

    def _enter(self, visit: Visit, scope: Scope, user: str | None) -> bool:
        """Count a visit, unless its caller has too many."""
        name = user or f"address {network_of((scope.get('client') or ('',))[0])}"
        caller = self._callers.setdefault(name, Caller())
        if caller.requests < _most(of_user=user is not None):
            caller.requests += 1
            visit.name = name
            return True
        if not caller.told:
            caller.told = True
            log.warning("requests are refused: %s has %d at once", name, caller.requests)
        return False

    async def _ask(self, address: Caller, credentials: Sequence[Credential]) -> str | None:
        """Ask whose credentials these are: one question of an address at a time."""
        async with address.asks:
            user = await self._users.asked(credentials)
            if user is None:
                await asyncio.sleep(NOBODY_S)
            return user

    @asynccontextmanager
    async def _turn(self, caller: Caller, user: str | None, scope: Scope) -> AsyncIterator[None]:
        """Wait for the turn of the caller, of whom a few requests have threads."""
        async with caller.turns:
            if user:
                async with self._pace.turn(user, scope):
                    yield
            elif scope["path"] in PROBES:
                async with self._probes[scope["path"]]:
                    yield
            else:
                async with self._strangers, self._pace.turn(STRANGERS, scope):
                    yield


def limited(handler: ThreadedHandler) -> CallerLimits:
    """Django's handler behind the limits; one of its threads asks whose a credential is."""
    return CallerLimits(handler, lambda credential: handler.call(user_of, credential))


def is_stream(head: Message) -> bool:
    """Return True for the head of an event stream, which has limits of its own."""
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in head["headers"]
    )


def _most(*, of_user: bool) -> int:
    return settings.REQUESTS_PER_USER if of_user else settings.REQUESTS_PER_ADDRESS


def _refused_body(scope: Scope) -> HttpResponse | None:
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    named = (b"content-length", b"transfer-encoding", b"content-type")
    return refused_body(scope["path"], *(headers.get(name, "") for name in named))


def _too_many(scope: Scope, *, of_user: bool) -> HttpResponse:
    name, whose = ("USER", "you") if of_user else ("ADDRESS", "your address")
    text = (
        f"{_most(of_user=of_user)} requests of {whose} are being answered already; wait for"
        f" them, or ask an operator to raise LOADMASTER_REQUESTS_PER_{name}"
    )
    answer = refused(scope["path"], 429, "too_many_requests", text)
    answer["Retry-After"] = RETRY_S
    return answer


async def _refuse(scope: Scope, send: Send, answer: HttpResponse) -> None:
    """Answer at once, before the body is read."""
    count_request(scope["method"], ROUTE, answer.status_code, 0.0)
    said = {**answer.headers, "Content-Length": str(len(answer.content))}
    headers = [(key.lower().encode(), value.encode()) for key, value in said.items()]
    await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": answer.content})
