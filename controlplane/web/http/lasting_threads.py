"""Threads for what Django does synchronously in a request, which outlive the request, and with them
their database connection.

Django by itself gives every request under ASGI a thread of its own: each opens a connection that
nobody closes before the garbage collector comes by, and what CONN_MAX_AGE keeps is never used
again.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from asgiref.sync import ThreadSensitiveContext
from django.db import connections

from controlplane.web.http.asgi_types import App, Receive, Scope, Send

MOST_IDLE = 8
"""Threads, and so connections, kept for requests; live pages may need more for a while."""


class LastingThreads:
    """An ASGI application in front of Django's, that lends each request a thread for its time."""

    def __init__(self, app: App, most_idle: int = MOST_IDLE) -> None:
        self._app, self._most_idle = app, most_idle
        self._idle: list[ThreadPoolExecutor] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Django's answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # The one that was last used is the likeliest to have a connection that is still young
        # enough.
        thread = (
            self._idle.pop() if self._idle else ThreadPoolExecutor(1, thread_name_prefix="request")
        )
        try:
            async with ThreadSensitiveContext(executor=thread):
                await self._app(scope, receive, send)
        finally:
            self._give_back(thread)

    def _give_back(self, thread: ThreadPoolExecutor) -> None:
        if len(self._idle) < self._most_idle:
            self._idle.append(thread)
            return
        thread.submit(_close)
        thread.shutdown(wait=False)

    def close(self) -> None:
        """Close the connections of the threads that wait, and end them."""
        while self._idle:
            thread = self._idle.pop()
            thread.submit(_close)
            thread.shutdown(wait=True)


def _close() -> None:
    connections.close_all()
