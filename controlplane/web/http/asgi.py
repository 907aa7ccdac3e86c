"""ASGI: types of applications, and Django's handler with a bounded pool of threads."""

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from typing import Any, ParamSpec, TypeVar, cast

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.handlers.asgi import ASGIHandler, ASGIRequest
from django.db import close_old_connections, connections
from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase

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
"""Requests with larger bodies are answered one at a time: parsing takes up to fifty times as much
memory.
"""

TURN = "loadmaster.turn"
"""Key of a scope for a function that returns a context, in which the request takes a thread."""


class ThreadedHandler(ASGIHandler):
    """Django's handler that runs all middleware and the view at once, in a thread of a pool.

    Django's own handler has a thread for each request, and changes to it and back for each
    middleware, which took a sixth of the processor time of a submission. Here a request that waits
    for a thread holds no database connection. It gets the thread that was used last, as the caches
    of that thread's connection are the warmest.
    """

    def __init__(self, thread_count: int = MOST_THREADS) -> None:
        super().__init__()
        self._threads = []
        for _ in range(thread_count):
            self._threads.append(ThreadPoolExecutor(1, thread_name_prefix="request"))
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
        """Answer in a thread of the pool; Django calls this for each request."""
        scope = cast(Scope, cast(ASGIRequest, request).scope)

        # 1. Large bodies are worked on one at a time.
        length = request.META.get("CONTENT_LENGTH") or ""
        is_large = length.isdecimal() and int(length) > LARGE_BYTES
        one_at_a_time = self._large if is_large else nullcontext()

        # 2. Answer in a thread, once the caller may have one.
        turn = scope.get(TURN, nullcontext)
        async with turn(), one_at_a_time:
            answer = await self.call(_connected, self.get_response, request)

        # 3. A download is read as it is sent.
        if isinstance(answer, StreamingHttpResponse) and not answer.is_async:
            parts = cast(Iterator[bytes], answer.streaming_content)
            answer.streaming_content = self._pieces(parts, scope)
        return answer

    async def _pieces(self, parts: Iterator[bytes], scope: Scope) -> AsyncIterator[bytes]:
        """Read a download as it is sent, each piece in a turn and a thread as a request has.

        Django would read it whole, in the thread that each request needs at its start. Between
        pieces a download has no thread, so `parts` must hold no cursor and no transaction.
        """
        turn = scope.get(TURN, nullcontext)
        while True:
            async with turn():
                piece = await self.call(_connected, _joined, parts, self.chunk_size)
            if not piece:
                return
            yield piece

    async def call(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that may ask the database, in a thread of the pool."""
        thread = await self._idle.get()
        act_in_thread = sync_to_async(act, thread_sensitive=False, executor=thread)
        work = asyncio.ensure_future(act_in_thread(*args, **kwargs))
        try:
            return await asyncio.shield(work)
        finally:
            # If the client has gone, its request still waits for the end of the work: else it would
            # take one thread after another.
            with suppress(Exception):
                await work
            self._idle.put_nowait(thread)

    def close(self) -> None:
        """Close the connections of the threads, and end them."""
        for thread in self._threads:
            thread.submit(connections.close_all)
            thread.shutdown(wait=True)
        self._signals.shutdown(wait=True)


def _connected(act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `act` with a live connection to the database."""
    close_old_connections()
    return act(*args, **kwargs)


def _joined(parts: Iterable[bytes], least: int) -> bytes:
    """Return the next parts, of at least so many bytes together; fewer only at the end."""
    piece = bytearray()
    for part in parts:
        piece += part
        if len(piece) >= least:
            break
    return bytes(piece)
