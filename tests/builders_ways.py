"""Requests as an ASGI server hands them on, to the whole application or to a part of it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import connections

from controlplane.web.http.group_commit import Threads

App = Callable[[dict[str, Any], Any, Any], Coroutine[Any, Any, None]]


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


async def ask(
    app: App, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
) -> Said:
    """What the application says. The length of a body is declared, unless a header of that name (or
    "") says otherwise.
    """
    path, _, query = path.partition("?")
    declared = {
        "host": "localhost",
        **({"content-length": str(len(body))} if method == "POST" else {}),
    }
    raw = [
        (name.encode(), value.encode("latin-1"))
        for name, value in {**declared, **headers}.items()
        if value
    ]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
        "path": path,
        "raw_path": path.encode(), "query_string": query.encode(), "headers": raw, "scheme": "http",
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }  # fmt: skip
    sent: list[Mapping[str, Any]] = []
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Mapping[str, Any]:
        if messages:
            return messages.pop()
        answer: Mapping[
            str, Any
        ] = (
            await asyncio.get_running_loop().create_future()
        )  # as a client that waits for the answer
        return answer

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    found: dict[str, str] = {}
    for name, value in sent[0]["headers"]:
        key = name.decode().lower()
        found[key] = f"{found[key]}, {value.decode()}" if key in found else value.decode()
    return Said(sent[0]["status"], found, b"".join(m.get("body", b"") for m in sent[1:]))


def close_threads(*pools: Threads) -> None:
    """Close the connections of the threads that the short ways work in: each has its own."""
    for threads in pools:
        _close(threads)


def _close(threads: Threads) -> None:
    together = threading.Barrier(threads.workers)

    def close() -> None:
        together.wait(30)
        connections.close_all()

    for waiting in [threads.pool.submit(close) for _ in range(threads.workers)]:
        waiting.result()
