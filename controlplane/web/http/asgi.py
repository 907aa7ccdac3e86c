"""ASGI: types of applications, and a bounded pool of threads for what Django does synchronously."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from time import thread_time
from typing import Any, ParamSpec, TypeVar, cast

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.handlers.asgi import ASGIHandler, ASGIRequest
from django.db import close_old_connections, connections
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from controlplane.web.logs.middleware import user_id_of

P = ParamSpec("P")
T = TypeVar("T")
Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]

MOST_THREADS = 16
"""Threads of a web process that answer pages and the API, each with one database connection."""

LARGE_BYTES = 256 * 1024
"""Size from which bodies are worked on one at a time: parsing takes up to fifty times as much."""

TURNS, USER, SPENT_S = "loadmaster.turns", "loadmaster.user", "loadmaster.spent_s"
"""Keys of a scope: contexts that a thread is taken in; then the user's id and processor time."""


class ThreadedHandler(ASGIHandler):
    """Django's handler with all middleware and the view in one visit to a thread of a pool.

    Django's own goes to the thread and back for each middleware, which took a sixth of the
    processor time of a submission, and has a thread for each request. A request that waits for a
    thread holds no connection. It gets the thread that was used last, whose connection knows most
    of the database.
    """

    def __init__(self, most: int = MOST_THREADS) -> None:
        super().__init__()
        self._threads = [ThreadPoolExecutor(1, thread_name_prefix="request") for _ in range(most)]
        self._idle: asyncio.LifoQueue[ThreadPoolExecutor] = asyncio.LifoQueue()
        for thread in reversed(self._threads):
            self._idle.put_nowait(thread)
        self._signals = ThreadPoolExecutor(1, thread_name_prefix="request-signals")
        self._large = asyncio.Semaphore(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with ThreadSensitiveContext(executor=self._signals):
            await super().__call__(scope, receive, send)

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware(is_async=False)

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        scope = cast(Scope, cast(ASGIRequest, request).scope)
        length = request.META.get("CONTENT_LENGTH") or ""
        large = [self._large] if length.isdecimal() and int(length) > LARGE_BYTES else []
        async with AsyncExitStack() as turns:
            for turn in (*scope.get(TURNS, ()), *large):
                await turns.enter_async_context(turn)
            try:
                return await self.call(self._answer, request)
            finally:
                scope[USER] = user_id_of(request)

    async def call(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do something that may ask the database in a thread of the pool."""
        thread = await self._idle.get()
        do = sync_to_async(act, thread_sensitive=False, executor=thread)
        work = asyncio.ensure_future(do(*args, **kwargs))
        try:
            return await asyncio.shield(work)
        finally:
            # A client that has gone keeps its turn while the thread is still at work, or it would
            # take one thread after another.
            with suppress(Exception):
                await work
            self._idle.put_nowait(thread)

    def _answer(self, request: HttpRequest) -> HttpResponseBase:
        began_s = thread_time()
        try:
            close_old_connections()
            return self.get_response(request)
        finally:
            cast(Scope, cast(ASGIRequest, request).scope)[SPENT_S] = thread_time() - began_s

    def close(self) -> None:
        """Close the connections of the threads, and end them."""
        for thread in self._threads:
            thread.submit(connections.close_all)
            thread.shutdown(wait=True)
        self._signals.shutdown(wait=True)
