"""Limits of one caller: requests at once, of which a few have threads and the others wait.

A caller is the user whose token or session a request names, else an address. The user of a new
token is looked up before the request is queued, so that a flood of new tokens does not use the
threads that logins need.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from django.conf import settings
from django.http import HttpResponse

from controlplane.web.credentials.users import Credential, Users, credentials_of, user_of
from controlplane.web.http.asgi import TURN, App, Message, Receive, Scope, Send, ThreadedHandler
from controlplane.web.http.middleware import refused, refused_body
from controlplane.web.http.request_metrics import count_request
from controlplane.web.http.throttling import network_of

log = logging.getLogger(__name__)

THREADS_EACH = 2
"""Threads that one caller has at once."""

THREADS_OF_STRANGERS = 2
"""Threads that all callers without a known user have together."""

NOBODY_S = 0.05
"""Pause of an address in seconds after the look-up of a credential that had no user."""

PROBES = frozenset({"/healthz", "/readyz", "/metrics"})
"""Paths that monitoring programs ask. They have threads of their own, as late answers count as
failures."""

RETRY_S = "1"
"""Retry-After of refused requests."""

ROUTE = "refused"
"""Route of refused requests in the metrics."""


@dataclass(slots=True)
class Caller:
    """Requests of one caller that are in flight.

    `refusal_logged`: True if a refusal has been logged since the first of them. `lookup_lock`:
    lets one look-up of its credentials run at a time.
    """

    requests: int = 0
    refusal_logged: bool = False
    threads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(THREADS_EACH))
    lookup_lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class InFlightRequest:
    """One request, from before its body is read to the end of its answer.

    `name`: of the caller as whose request it counts; "" while it is not counted.
    """

    callers: dict[str, Caller]
    name: str = ""

    def end(self) -> None:
        """Stop counting it. A stream stops when it begins, as streams have limits of their own."""
        caller = self.callers.get(self.name)
        if caller is not None:
            caller.requests -= 1
            if not caller.requests:
                del self.callers[self.name]
        self.name = ""


class CallerLimits:
    """ASGI application in front of Django's, which answers 429 beyond a caller's limit.

    It also refuses bodies that are too large, as Django reads a body before its middleware runs.
    `look_up` returns the id of a credential's user, None without one.
    """

    def __init__(self, app: App, look_up: Callable[[Credential], Awaitable[object]]) -> None:
        self._app = app
        self._users = Users(look_up)
        self._callers: dict[str, Caller] = {}
        self._strangers = asyncio.Semaphore(THREADS_OF_STRANGERS)
        # One thread for each path: requests of /readyz and /metrics do not delay /healthz.
        self._probes = {path: asyncio.Semaphore(1) for path in PROBES}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = _refused_body(scope)
        if refusal is not None:
            await _refuse(scope, send, refusal)
            return
        request = InFlightRequest(self._callers)

        async def send_and_end_streams(message: Message) -> None:
            if message["type"] == "http.response.start" and is_stream(message):
                request.end()
            await send(message)

        try:
            # 1. Count the request as one of its user, if the credential is remembered, else of
            #    its address.
            credentials = [] if scope["path"] in PROBES else credentials_of(scope)
            user = self._users.remembered(credentials)
            is_counted = self._count(request, scope, user)

            # 2. Look a new credential up, and count the request as its user's from then on.
            if is_counted and credentials and not user:
                user = await self._look_up(self._callers[request.name], credentials)
                if user:
                    request.end()
                    is_counted = self._count(request, scope, user)

            # 3. Answer it, or refuse it. The application takes a thread in the context TURN.
            if is_counted:
                caller = self._callers[request.name]
                scope[TURN] = partial(self._thread, caller, user, scope["path"])
                await self._app(scope, receive, send_and_end_streams)
            else:
                await _refuse(scope, send, _too_many(scope, of_user=user is not None))
        finally:
            request.end()

    def _count(self, request: InFlightRequest, scope: Scope, user: str | None) -> bool:
        """Count a request as one of its caller; return False if the caller has too many."""
        name = user
        if name is None:
            host, *_ = scope.get("client") or ("",)
            name = f"address {network_of(host)}"
        caller = self._callers.setdefault(name, Caller())
        if caller.requests < _most(of_user=user is not None):
            caller.requests += 1
            request.name = name
            return True
        if not caller.refusal_logged:
            caller.refusal_logged = True
            log.warning("requests are refused: %s has %d at once", name, caller.requests)
        return False

    async def _look_up(self, address: Caller, credentials: Sequence[Credential]) -> str | None:
        """Look up the user of these credentials: one look-up of an address at a time."""
        async with address.lookup_lock:
            user = await self._users.look_up(credentials)
            if user is None:
                await asyncio.sleep(NOBODY_S)
            return user

    @asynccontextmanager
    async def _thread(self, caller: Caller, user: str | None, path: str) -> AsyncIterator[None]:
        """Wait until the caller may take a thread, of which it has few at once."""
        async with caller.threads:
            if user:
                yield
            elif path in PROBES:
                async with self._probes[path]:
                    yield
            else:
                async with self._strangers:
                    yield


def limited(handler: ThreadedHandler) -> CallerLimits:
    """Return Django's handler behind the limits; its threads look up the users of credentials."""
    return CallerLimits(handler, lambda credential: handler.call(user_of, credential))


def is_stream(head: Message) -> bool:
    """Return True for the head of an event stream, which has limits of its own."""
    for name, value in head["headers"]:
        if name.lower() == b"content-type" and value.startswith(b"text/event-stream"):
            return True
    return False


def _most(*, of_user: bool) -> int:
    """Return the most requests at once of a user, or of an address."""
    return settings.REQUESTS_PER_USER if of_user else settings.REQUESTS_PER_ADDRESS


def _refused_body(scope: Scope) -> HttpResponse | None:
    """Return the refusal of a body by the request's headers; None if it may be read."""
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    length = headers.get(b"content-length", "")
    encoding = headers.get(b"transfer-encoding", "")
    media_type = headers.get(b"content-type", "")
    return refused_body(scope["path"], length, encoding, media_type)


def _too_many(scope: Scope, *, of_user: bool) -> HttpResponse:
    """Return the refusal of a request whose caller has too many."""
    if of_user:
        caller = "you"
        setting = "LOADMASTER_REQUESTS_PER_USER"
    else:
        caller = "your address"
        setting = "LOADMASTER_REQUESTS_PER_ADDRESS"
    text = (
        f"{_most(of_user=of_user)} requests of {caller} are being answered already; wait for"
        f" them, or ask an operator to raise {setting}"
    )
    answer = refused(scope["path"], 429, "too_many_requests", text)
    answer["Retry-After"] = RETRY_S
    return answer


async def _refuse(scope: Scope, send: Send, answer: HttpResponse) -> None:
    """Send a refusal, before the body is read."""
    count_request(scope["method"], ROUTE, answer.status_code, 0.0)
    fields = {**answer.headers, "Content-Length": str(len(answer.content))}
    headers = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": answer.content})
