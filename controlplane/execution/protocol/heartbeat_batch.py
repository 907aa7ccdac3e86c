"""Heartbeats of one web process, taken in by batches; several processes do this side by side."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence

from clusters.agent_calls import AgentCallError
from clusters.intervals import clocks_of
from controlplane.execution.protocol.group_commit import GroupCommit
from controlplane.execution.protocol.refusals import database_refusal
from controlplane.execution.protocol.threads import Pools
from controlplane.execution.services.heartbeats import (
    Busy,
    Call,
    Outcome,
    heartbeat_alone,
    renew_all,
    restore_unknown,
)
from controlplane.web.http.storage_errors import failure_of
from loadmaster.protocol import HeartbeatReply, Intervals

log = logging.getLogger(__name__)

PAUSE_S = 0.03
"""Between two batches. Longer pauses cost less, and every heartbeat waits half of one."""

MOST = 400
WAITING = 5000
"""Heartbeats that may wait: those of a few seconds. More are answered 503."""

PER_NODE = 3
"""Heartbeats of one node that a batch takes; more are taken in by themselves."""

CLOCKS_LIVE_S = 2.0
"""How long intervals are kept: they change with the number of nodes and by an operator's hand."""


class Clocks:
    """Intervals by cluster, read again after a short while."""

    def __init__(self, live_s: float = CLOCKS_LIVE_S) -> None:
        self._live_s = live_s
        self._known: dict[int, Intervals] = {}
        self._since_s = 0.0

    def __call__(self, clusters: Iterable[int]) -> Mapping[int, Intervals]:
        """The intervals of these clusters."""
        if time.monotonic() - self._since_s > self._live_s:
            self._known, self._since_s = {}, time.monotonic()
        missing = [pk for pk in clusters if pk not in self._known]
        if missing:
            self._known |= clocks_of(missing)
        return self._known


class HeartbeatBatch:
    """Takes in the heartbeats of a web process."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._clocks = Clocks()
        self._commits = GroupCommit(self._together, pause_s=PAUSE_S, most=MOST, waiting=WAITING)

    async def take(self, call: Call) -> HeartbeatReply:
        """The reply. Raises AgentCallError, or OverloadedError if too many wait."""
        outcome = await self._commits.ask(call)
        if isinstance(outcome, AgentCallError):
            raise outcome
        if isinstance(outcome, Busy):
            return await self._pools.calls.run(heartbeat_alone, call)
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
        """A batch. A node's next heartbeat in it comes after the first ones of all others."""
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
            return renew_all(calls, clocks=self._clocks, wait=False)
        except Exception as error:
            if failure_of(error) is not None:
                raise
            # One of them is at fault, and the others must not pay for it.
            log.exception("a batch of %d heartbeats failed; each is taken alone", len(calls))
            return [Busy() for _ in calls]
