"""Group commit: requests that come in while a batch is worked on form the next batch.

Under little load a request is worked on at once and alone. Under much, batches grow and the cost
of each request shrinks: so one process takes in heartbeats by the thousand.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from controlplane.execution.protocol.threads import OverloadedError

Q = TypeVar("Q")
A = TypeVar("A")


class GroupCommit(Generic[Q, A]):
    """Answers requests in batches, one batch at a time, at least `pause_s` apart.

    `answer` answers each of up to `most` requests; more than `waiting` of them are too many.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Q]], Awaitable[Sequence[A]]],
        *,
        pause_s: float,
        most: int,
        waiting: int,
    ) -> None:
        self._answer = answer
        self._pause_s, self._most, self._limit = pause_s, most, waiting
        self._waiting: deque[tuple[Q, asyncio.Future[A]]] = deque()
        self._work: asyncio.Task[None] | None = None

    async def ask(self, request: Q) -> A:
        """The answer, or the error of its batch. Raises OverloadedError if too many wait."""
        loop = asyncio.get_running_loop()
        if self._work is None or self._work.done() or self._work.get_loop() is not loop:
            self._waiting.clear()
            self._work = loop.create_task(self._run())
        elif len(self._waiting) >= self._limit:
            raise OverloadedError
        future: asyncio.Future[A] = loop.create_future()
        self._waiting.append((request, future))
        return await future

    async def _run(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
            await self._settle(batch)
            if len(self._waiting) < self._most:
                await asyncio.sleep(self._pause_s)

    async def _settle(self, batch: Sequence[tuple[Q, asyncio.Future[A]]]) -> None:
        try:
            answers = await self._answer([request for request, _ in batch])
        except Exception as error:  # whatever it is, everyone who waits must hear of it
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
