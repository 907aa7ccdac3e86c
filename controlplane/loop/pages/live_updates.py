"""Live pages: server-sent events name changed topics, and pages reload their parts."""

import asyncio
import contextvars
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar, cast

from django.conf import settings
from django.contrib.auth.models import User
from django.core.handlers.asgi import ASGIRequest
from django.db import connection
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_GET

from controlplane.loop.pages.live_changes import Cursors, Reader, look, newest
from controlplane.web.http.middleware import refused

T = TypeVar("T")
log = logging.getLogger(__name__)
TURN_S = 1.0
QUIET_TURNS = 15
STREAM_TURNS = 300
RETRY_MS, RETRY_FULL_MS = 3_000, 30_000


@dataclass(slots=True, eq=False)
class Following:
    """One stream's part of the looks: topics that it has not told yet; `over` at its end."""

    reader: Reader
    topics: set[str] = field(default_factory=set)
    turned: asyncio.Event = field(default_factory=asyncio.Event)
    over: bool = False

    async def turn(self) -> set[str] | None:
        """Wait for the next look; None at the end."""
        await self.turned.wait()
        self.turned.clear()
        topics, self.topics = self.topics, set()
        return None if self.over else topics


class LiveStreams:
    """Event streams of one process: one look a turn, in one thread, serves all."""

    def __init__(self, turn_s: float = TURN_S) -> None:
        self._turn_s = turn_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="live")
        self._all: set[Following] = set()
        self._of_user: Counter[int] = Counter()
        self._work: asyncio.Task[None] | None = None
        self._began: asyncio.Event = asyncio.Event()

    def is_full(self, user: int) -> bool:
        """Return True if the user has as many streams as one may have."""
        return self._of_user[user] >= settings.STREAMS_PER_USER

    async def stream(self, reader: Reader, *, turns: int = STREAM_TURNS) -> AsyncIterator[str]:
        """Yield the events of one stream, which ends after some minutes or with its login.

        The browser reconnects. Streams that begin at the same time may find no room here.
        """
        if self.is_full(reader.user):
            yield f"retry: {RETRY_FULL_MS}\n\n"
            return
        mine = Following(reader)
        self._enter(mine)
        try:
            await self._began.wait()
            yield f"retry: {RETRY_MS}\n: welcome\n\n"
            quiet = 0
            for _ in range(turns):
                if (topics := await mine.turn()) is None:
                    return
                quiet = 0 if topics else quiet + 1
                if topics:
                    yield f"data: {json.dumps(sorted(topics))}\n\n"
                elif quiet % QUIET_TURNS == 0:
                    # A comment now and then tells proxies, and us, that the other side is still
                    # there.
                    yield ": still here\n\n"
        finally:
            self._leave(mine)

    def _enter(self, mine: Following) -> None:
        loop = asyncio.get_running_loop()
        if self._work is None or self._work.done() or self._work.get_loop() is not loop:
            self._all, self._of_user, self._began = set(), Counter(), asyncio.Event()
            # Outside of the request's context, which ends before this work does.
            self._work = loop.create_task(self._run(), context=contextvars.Context())
        self._all.add(mine)
        self._of_user[mine.reader.user] += 1

    def _leave(self, mine: Following) -> None:
        if mine in self._all:
            self._all.discard(mine)
            self._of_user[mine.reader.user] -= 1

    async def _run(self) -> None:
        """Look once a turn while there are streams; a failure ends them all."""
        try:
            cursors = await self._in_thread(newest)
            self._began.set()
            while self._all:
                await asyncio.sleep(self._turn_s)
                cursors = await self._turn(cursors)
        except Exception:
            log.exception("live pages are not told of changes; they ask again")
        finally:
            self._began.set()
            for following in self._all:
                following.over = True
                following.turned.set()

    async def _turn(self, cursors: Cursors) -> Cursors:
        readers = {following.reader for following in self._all}
        found, after = await self._in_thread(partial(look, readers, cursors))
        for following in self._all:
            if following.reader in readers:
                following.over = following.reader not in found
                following.topics |= found.get(following.reader, frozenset())
                following.turned.set()
        return after

    async def _in_thread(self, act: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, partial(_read, act))


def _read(act: Callable[[], T]) -> T:
    """Read without holding a database connection afterwards."""
    try:
        return act()
    finally:
        if not connection.in_atomic_block:
            connection.close()


STREAMS = LiveStreams()


@require_GET
def live(request: HttpRequest) -> HttpResponseBase:
    """Event stream. Under WSGI the answer is 204, so that the browser does not retry."""
    user, session = cast(User, request.user), request.session.session_key
    if not isinstance(request, ASGIRequest) or user.pk is None or session is None:
        return HttpResponse(status=204)
    if STREAMS.is_full(user.pk):
        text = (
            f"you have {settings.STREAMS_PER_USER} live pages open, the most of one user; this"
            " page is refreshed less often; close some, or ask an operator to raise"
            " LOADMASTER_STREAMS_PER_USER"
        )
        answer: HttpResponseBase = refused(request.path, 429, "too_many_streams", text)
        answer["Retry-After"] = str(RETRY_FULL_MS // 1000)
        return answer
    reader = Reader.of(user, session)
    answer = StreamingHttpResponse(STREAMS.stream(reader), content_type="text/event-stream")
    answer["Cache-Control"] = "no-cache"
    answer["X-Accel-Buffering"] = "no"
    return answer
