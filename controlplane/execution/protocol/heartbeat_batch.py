"""Group commit of heartbeats in a web process: those that arrive during a batch form the next."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from clusters.agent_errors import AgentCallError
from clusters.intervals import intervals_by_cluster
from controlplane.execution.protocol.answers import database_refusal
from controlplane.execution.protocol.threads import OverloadedError, Pools
from controlplane.execution.services.heartbeats import (
    Busy,
    Call,
    Outcome,
    renew_all,
    renew_one,
    restore_unknown,
)
from controlplane.web.http.storage_errors import failure_of
from loadmaster.protocol import HeartbeatReply, Intervals

Q = TypeVar("Q")
A = TypeVar("A")


class GroupCommit(Generic[Q, A]):
    """Batches of up to `most` requests, `pause_s` apart; at most `waiting` may wait."""

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
        """Answer `request`. Raises its batch's error, or OverloadedError if too many wait."""
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


log = logging.getLogger(__name__)

PAUSE_S = 0.03
"""Pause between two batches. Longer ones cost less, and every heartbeat waits half of one."""

MOST = 400
WAITING = 5000
"""Most waiting heartbeats, those of a few seconds; more are answered 503."""

PER_NODE = 3
"""Heartbeats per node and batch; more are renewed one by one."""

INTERVALS_LIVE_S = 2.0
"""Lifetime of cached intervals, which change with the number of nodes and by operators."""


class CachedIntervals:
    """Intervals by cluster, cached for a short while."""

    def __init__(self, live_s: float = INTERVALS_LIVE_S) -> None:
        self._live_s = live_s
        self._known: dict[int, Intervals] = {}
        self._since_s = 0.0

    def __call__(self, clusters: Iterable[int]) -> Mapping[int, Intervals]:
        if time.monotonic() - self._since_s > self._live_s:
            self._known, self._since_s = {}, time.monotonic()
        missing = [pk for pk in clusters if pk not in self._known]
        if missing:
            self._known |= intervals_by_cluster(missing)
        return self._known


class HeartbeatBatch:
    """Heartbeats of a web process."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._intervals = CachedIntervals()
        self._commits = GroupCommit(self._together, pause_s=PAUSE_S, most=MOST, waiting=WAITING)

    async def take(self, call: Call) -> HeartbeatReply:
        """Renew the leases. Raises AgentCallError, or OverloadedError if too many wait."""
        outcome = await self._commits.ask(call)
        if isinstance(outcome, AgentCallError):
            raise outcome
        if isinstance(outcome, Busy):
            return await self._pools.calls.run(renew_one, call)
        if outcome.unknown:
            return await self._pools.calls.run(restore_unknown, outcome)
        return outcome.reply

    async def _together(self, calls: Sequence[Call]) -> list[Outcome]:
        try:
            return await self._pools.heartbeats.run(self._take_in, calls)
        except Exception as error:
            refusal = database_refusal(error)
            if refusal is None:
                raise
            return [refusal for _ in calls]

    def _take_in(self, calls: Sequence[Call]) -> list[Outcome]:
        """Take each node's first heartbeat, then its next: a node's order is kept."""
        outcomes: list[Outcome] = [Busy() for _ in calls]
        left = dict(enumerate(calls))
        for _ in range(PER_NODE):
            first = {call.node: index for index, call in reversed(left.items())}
            renewed = self._renew([left.pop(index) for index in first.values()])
            for index, outcome in zip(first.values(), renewed, strict=True):
                outcomes[index] = outcome
            if not left:
                break
        return outcomes

    def _renew(self, calls: Sequence[Call]) -> list[Outcome]:
        try:
            return renew_all(calls, intervals_of=self._intervals, wait=False)
        except Exception as error:
            if failure_of(error) is not None:
                raise
            # One of them is at fault, and the others must not pay for it.
            log.exception("a batch of %d heartbeats failed; each is taken alone", len(calls))
            return [Busy() for _ in calls]
