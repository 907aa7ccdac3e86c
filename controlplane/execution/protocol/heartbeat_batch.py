"""Heartbeats of one web process, taken in by batches. The database is the truth: several processes
do this side by side.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence

from django.db import OperationalError

from clusters.agents.errors import AgentCallError
from clusters.selectors import clocks_of
from controlplane.execution.services.heartbeats import (
    Busy,
    Call,
    Outcome,
    Renewed,
    heartbeat_alone,
    renew_all,
    restore_sight,
)
from controlplane.web.http.group_commit import Gatherer, OverloadedError, Threads
from loadmaster.protocol import HeartbeatReply, Intervals

log = logging.getLogger(__name__)

PAUSE_S = 0.03
"""Between two batches. Longer ones cost less, and every heartbeat waits half of it."""

MOST = 400
WAITING = 5000
"""Heartbeats that may wait: what is taken in within a few seconds. More are answered 503."""

TURNS = 3
"""Heartbeats of one node that a batch takes."""

CLOCKS_LIVE_S = 2.0
"""How long a clockwork is believed: it changes with the number of nodes and by an operator's hand,
both seldom.
"""

TOGETHER = Threads("heartbeats", 1, trusted_s=1.0)
ALONE = Threads("heartbeat-alone", 3)


class Clocks:
    """Clockworks by cluster, read again after a short while."""

    def __init__(self, live_s: float = CLOCKS_LIVE_S) -> None:
        self._live_s = live_s
        self._known: dict[int, Intervals] = {}
        self._since_s = 0.0

    def __call__(self, clusters: Iterable[int]) -> Mapping[int, Intervals]:
        """The clockworks of these clusters."""
        if time.monotonic() - self._since_s > self._live_s:
            self._known, self._since_s = {}, time.monotonic()
        missing = [pk for pk in clusters if pk not in self._known]
        if missing:
            self._known |= clocks_of(missing)
        return self._known


class Beats:
    """The way of a heartbeat through a web process."""

    def __init__(self) -> None:
        self._clocks = Clocks()
        self._gatherer = Gatherer(self._together, pause_s=PAUSE_S, most=MOST, waiting=WAITING)

    async def take(self, call: Call) -> HeartbeatReply:
        """The reply. Raises AgentCallError, 503 where too many wait or the database is away."""
        try:
            outcome = await self._gatherer.ask(call)
            if isinstance(outcome, Busy):
                return await ALONE.run(heartbeat_alone, call)
            if isinstance(outcome, Renewed) and outcome.unknown:
                return await ALONE.run(restore_sight, outcome)
        except OverloadedError:
            raise AgentCallError(
                503, "overloaded", "too many heartbeats wait; send it again in a moment"
            ) from None
        except OperationalError as error:
            log.warning("a heartbeat was not taken in: %s", error)
            raise AgentCallError(
                503, "database", "the database did not answer; send the heartbeat again"
            ) from error
        if isinstance(outcome, AgentCallError):
            raise outcome
        return outcome.reply

    async def _together(self, calls: Sequence[Call]) -> list[Outcome]:
        return await TOGETHER.run(self._take_in, calls)

    def _take_in(self, calls: Sequence[Call]) -> list[Outcome]:
        """A batch. A node's second heartbeat in it comes after the others, and of more than a few
        the rest are taken alone.
        """
        outcomes: list[Outcome] = [Busy() for _ in calls]
        left = dict(enumerate(calls))
        for _ in range(TURNS):
            first = {call.node: index for index, call in reversed(left.items())}
            for index, outcome in zip(
                first.values(),
                self._renew([left.pop(index) for index in first.values()]),
                strict=True,
            ):
                outcomes[index] = outcome
            if not left:
                break
        return outcomes

    def _renew(self, calls: Sequence[Call]) -> list[Outcome]:
        try:
            return renew_all(calls, clocks=self._clocks, wait=False)
        except OperationalError:
            raise
        except Exception:  # one of them is at fault, and the others must not pay for it
            log.exception("a batch of %d heartbeats failed; each is taken alone", len(calls))
            return [Busy() for _ in calls]
