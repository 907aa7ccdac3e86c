"""Requests to ASGI applications, and a test client that knows the agent protocol."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http.client import responses
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import async_to_sync, sync_to_async
from django.core.wsgi import get_wsgi_application
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.test import Client

from controlplane.execution.protocol.app import AgentProtocol
from controlplane.execution.protocol.calls import PREFIX
from controlplane.execution.protocol.threads import Pools, Threads
from controlplane.web.credentials.users import Credential
from controlplane.web.http.asgi import App, ThreadedHandler

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Said:
    """An answer. Names of headers are lower case; one that comes twice is joined by a comma."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


async def named(credential: Credential) -> object:
    """Whose a token is: the user's name, up to a hyphen."""
    return credential.text.partition("-")[0]


async def ask(
    app: App,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes = b"",
    *,
    client: str = "127.0.0.1",
    leaves_after_s: float | None = None,
) -> Said:
    """The application's answer, of status 0 if the client has left before. A body comes in two
    pieces, its length is declared unless a header of that name (or "") says otherwise.
    """
    path, _, query = path.partition("?")
    length = {} if method == "GET" else {"content-length": str(len(body))}
    declared = {"host": "localhost", **length, **headers}
    raw = [
        (name.lower().encode(), value.encode("latin-1"))
        for name, value in declared.items()
        if value
    ]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
        "path": path, "raw_path": path.encode(), "query_string": query.encode(), "headers": raw,
        "scheme": "http", "client": (client, 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    sent: list[Mapping[str, Any]] = []
    pieces = [body[5:], body[:5]]

    async def receive() -> Mapping[str, Any]:
        if pieces:
            return {"type": "http.request", "body": pieces.pop(), "more_body": bool(pieces)}
        if leaves_after_s is None:
            await asyncio.get_running_loop().create_future()  # as a client that waits
        else:
            await asyncio.sleep(leaves_after_s)
        return {"type": "http.disconnect"}

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    if not sent:
        return Said(0, {}, b"")
    found: dict[str, str] = {}
    for name, value in sent[0]["headers"]:
        key = name.decode().lower()
        found[key] = f"{found[key]}, {value.decode()}" if key in found else value.decode()
    return Said(sent[0]["status"], found, b"".join(m.get("body", b"") for m in sent[1:]))


class SameThread(Threads):
    """Works in the thread that called `async_to_sync`, within the test's transaction."""

    async def run(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `act` returns or raises."""
        return await sync_to_async(act)(*args, **kwargs)


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    """The application behind the protocol, where nobody gets."""
    raise AssertionError(scope["path"])


def protocol() -> AgentProtocol:
    """The agent protocol, working in the thread of the test."""
    same = SameThread("unused", 1)
    return AgentProtocol(nothing, Pools(same, same, same, same))


def said_to(environ: dict[str, Any], app: App) -> Said:
    """The protocol's answer to a request as WSGI describes it."""
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): str(value)
        for name, value in environ.items()
        if name.startswith("HTTP_") or name in ("CONTENT_TYPE", "CONTENT_LENGTH")
    }
    headers.setdefault("host", environ["SERVER_NAME"])
    body = environ["wsgi.input"].read()
    path = environ["PATH_INFO"].encode("latin-1").decode("utf-8", "replace")
    query = environ.get("QUERY_STRING", "")
    address = f"{path}?{query}" if query else path
    method, client = environ["REQUEST_METHOD"], environ.get("REMOTE_ADDR", "127.0.0.1")
    return async_to_sync(ask)(app, method, address, headers, body, client=client)


class SiteClient(Client):
    """Django's test client; calls of agents get to the agent protocol."""

    def __init__(self, **defaults: Any) -> None:
        super().__init__(**defaults)
        self.protocol = protocol()

    def request(self, **request: Any) -> Any:
        """The answer."""
        environ = self._base_environ(**request)  # type: ignore[attr-defined]  # unknown to the stubs
        if not environ["PATH_INFO"].startswith(PREFIX):
            return super().request(**request)
        said = said_to(environ, self.protocol)
        answer: Any = HttpResponse(said.body, status=said.status, headers=said.headers)
        answer.json = lambda: said.json
        return answer


def site() -> Callable[..., Iterable[bytes]]:
    """The whole site as a WSGI application: Django, with the agent protocol in front."""
    django, agents = get_wsgi_application(), protocol()

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if not environ["PATH_INFO"].startswith(PREFIX):
            return django(environ, start_response)
        said = said_to(environ, agents)
        start_response(f"{said.status} {responses[said.status]}", list(said.headers.items()))
        return [said.body]

    return answer


def close_threads(*pools: Threads) -> None:
    """Close the connections of these threads: each has its own."""
    for threads in pools:
        _close(threads)


def _close(threads: Threads) -> None:
    together = threading.Barrier(threads.workers)

    def close() -> None:
        together.wait(30)
        connections.close_all()

    for waiting in [threads.pool.submit(close) for _ in range(threads.workers)]:
        waiting.result()
    threads.pool.shutdown()


class Answering(ThreadedHandler):
    """Django's handler that answers by a function, with the number of its thread."""

    def __init__(self, act: Callable[[HttpRequest], object], most: int = 3) -> None:
        super().__init__(most)
        self._act = act

    def get_response(self, request: HttpRequest) -> HttpResponse:
        self._act(request)
        return HttpResponse(str(threading.get_ident()))
