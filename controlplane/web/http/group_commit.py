"""Group commit: questions that come in while the last batch is worked on form the next batch. Knows
nothing of what they ask.

Under little load a question is worked on at once and alone. Under much, batches grow and the cost
of each question shrinks; that is what lets one process take in heartbeats by the thousand.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, ParamSpec, TypeVar

from django.db import close_old_connections

Q = TypeVar("Q")
A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")


class OverloadedError(Exception):
    """More questions wait than can be answered in time."""


class Threads:
    """A few threads for the database, each with its connection; fresh before and given back after
    each call, as for a request.

    `trusted_s`: for so long a connection is kept and believed to live without being asked, which
    spares calls that come all the time a question each. One that has died meanwhile fails its call,
    and the next call has another.
    """

    def __init__(self, name: str, workers: int, trusted_s: float = 0.0) -> None:
        self.workers = workers
        self._trusted_s = trusted_s
        self._here = threading.local()
        self.pool = ThreadPoolExecutor(workers, thread_name_prefix=name)

    async def run(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `act` returns or raises, in one of the threads."""

        def whole() -> T:
            if time.monotonic() >= getattr(self._here, "trusted_until_s", 0.0):
                close_old_connections()
                self._here.trusted_until_s = time.monotonic() + self._trusted_s
            try:
                return act(*args, **kwargs)
            except BaseException:
                self._here.trusted_until_s = 0.0
                raise
            finally:
                if not self._trusted_s:
                    close_old_connections()

        # Not by sync_to_async: it brings a context along, to which Django binds connections of the
        # cache, one for each batch.
        return await asyncio.get_running_loop().run_in_executor(self.pool, whole)


class Gatherer(Generic[Q, A]):
    """Answers questions in batches. At most one batch is under way; between two of them are at
    least `pause_s`.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Q]], Awaitable[Sequence[A]]],
        *,
        pause_s: float,
        most: int,
        waiting: int,
    ) -> None:
        """`answer` gives an answer to each of up to `most` questions; more than `waiting` of them
        are too many.
        """
        self._answer = answer
        self._pause_s, self._most, self._limit = pause_s, most, waiting
        self._waiting: deque[tuple[Q, asyncio.Future[A]]] = deque()
        self._work: asyncio.Task[None] | None = None

    async def ask(self, question: Q) -> A:
        """The answer, or what `answer` raised for its batch. Raises OverloadedError at once where
        too many wait.
        """
        loop = asyncio.get_running_loop()
        if self._work is None or self._work.done() or self._work.get_loop() is not loop:
            self._waiting.clear()
            self._work = loop.create_task(self._run())
        elif len(self._waiting) >= self._limit:
            raise OverloadedError
        future: asyncio.Future[A] = loop.create_future()
        self._waiting.append((question, future))
        return await future

    async def _run(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
            await self._settle(batch)
            if len(self._waiting) < self._most:
                await asyncio.sleep(self._pause_s)

    async def _settle(self, batch: Sequence[tuple[Q, asyncio.Future[A]]]) -> None:
        try:
            answers = await self._answer([question for question, _ in batch])
        except Exception as error:  # whatever it is, those who wait must hear of it
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
