"""ASGI: types of applications, and lasting threads for what Django does synchronously."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.db import connections
from django.http import HttpRequest
from django.http.response import HttpResponseBase

Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]


class ThreadedHandler(ASGIHandler):
    """Django's handler with all middleware and the view in one visit to the request's thread.

    Django's own goes to the thread and back for each middleware, which took a sixth of the
    processor time of a submission.
    """

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware(is_async=False)

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        return await sync_to_async(self.get_response)(request)


MOST_THREADS = 16
"""Most threads; more simultaneous requests share them."""


@dataclass(slots=True)
class _Thread:
    """Thread, and its number of requests."""

    executor: ThreadPoolExecutor
    requests: int = 0


class LastingThreads:
    """ASGI application in front of Django's that gives each request one of a few threads."""

    def __init__(self, app: App, most: int = MOST_THREADS) -> None:
        self._app, self._most = app, most
        self._threads: list[_Thread] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        thread = self._least_busy()
        thread.requests += 1
        try:
            async with ThreadSensitiveContext(executor=thread.executor):
                await self._app(scope, receive, send)
        finally:
            thread.requests -= 1

    def _least_busy(self) -> _Thread:
        """Return an idle thread, a new one, or the least busy one if there are enough."""
        found = min(self._threads, key=lambda thread: thread.requests, default=None)
        if found is None or (found.requests and len(self._threads) < self._most):
            found = _Thread(ThreadPoolExecutor(1, thread_name_prefix="request"))
            self._threads.append(found)
        return found

    def close(self) -> None:
        """Close the connections of the threads, and end them."""
        while self._threads:
            executor = self._threads.pop().executor
            executor.submit(connections.close_all)
            executor.shutdown(wait=True)
