"""Long polls of one web process: one query serves all that wait.

A poll that misses a wish (its transaction was open for RECENT_S) is made up by the next heartbeat.
"""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Q
from django.utils import timezone

from clusters.agent_errors import AgentCallError
from clusters.models import Node
from controlplane.execution.directives import cursor_of, directives
from controlplane.execution.protocol.answers import overloaded, refusal_of
from controlplane.execution.protocol.threads import Pools
from controlplane.execution.services.sessions import token_refusals
from jobs.assignment_lifecycle import LIVE
from jobs.models import Assignment
from loadmaster.protocol import AssignmentState, Directives

LONGEST_WAIT_S = 25.0
LOOK_EVERY_S = 0.25
LOOK_SOON_S, SOON_FOR_S = 0.05, 2.0
"""Time between looks for so long after one that had news: more follows in a queue that moves."""

NEW_WAIT_S = 0.02
"""Time for which a new poll waits for others."""

BUSY_FRACTION = 0.1
"""Fraction of the time that queries may take: longer ones come less often."""

RECENT_S = 60.0
"""Age up to which wishes are looked for."""

TERMS_RECENT_S = 15.0
"""Age up to which changed terms are looked for: a round changes thousands."""

MOST_WAITING = 25_000


@dataclass(slots=True, eq=False)
class _Poll:
    """Waiting poll; `is_new` until the first look."""

    node: UUID
    token_sha256: str
    cursor: int
    answer: asyncio.Future[Directives]
    is_new: bool = True


@dataclass(frozen=True, slots=True)
class Found:
    """Result of a look: wishes by node, and refusals by node and token."""

    wishes: dict[UUID, tuple[float, list[Assignment]]]
    refused: dict[tuple[UUID, str], AgentCallError]


class LongPolls:
    """Polls that wait in this process."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._waiting: set[_Poll] = set()
        self._work: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._news_s = float("-inf")

    async def wait(self, node: UUID, token_sha256: str, cursor: int, wait_s: float) -> Directives:
        """Wait for wishes newer than the cursor; none when time is up. Raises AgentCallError."""
        loop = asyncio.get_running_loop()
        if self._work is None or self._work.done() or self._work.get_loop() is not loop:
            self._waiting, self._woken = set(), asyncio.Event()
            self._work = loop.create_task(self._run())
        if len(self._waiting) >= MOST_WAITING:
            raise overloaded("too many polls wait; heartbeats bring the same directives")
        poll = _Poll(node, token_sha256, cursor, loop.create_future())
        self._waiting.add(poll)
        self._woken.set()
        timer = loop.call_later(min(wait_s, LONGEST_WAIT_S), self._give_up, poll)
        try:
            return await poll.answer
        finally:
            timer.cancel()
            self._waiting.discard(poll)

    def _give_up(self, poll: _Poll) -> None:
        if poll.is_new:
            asyncio.get_running_loop().call_later(NEW_WAIT_S, self._give_up, poll)
        elif not poll.answer.done():
            poll.answer.set_result(Directives(cursor=poll.cursor))

    async def _run(self) -> None:
        while self._waiting:
            self._woken.clear()
            polls = list(self._waiting)
            began_s = time.monotonic()
            try:
                await self._look(polls)
            except Exception as error:  # whatever it is, everyone who waits must hear of it
                refusal = refusal_of(error)
                for poll in polls:
                    if not poll.answer.done():
                        poll.answer.set_exception(refusal)
            took_s = time.monotonic() - began_s
            # Until a new poll has come, but at least and at most so long.
            least_s = max(NEW_WAIT_S, took_s / BUSY_FRACTION)
            moves = began_s < self._news_s + SOON_FOR_S
            every_s = LOOK_SOON_S if moves else LOOK_EVERY_S
            most_s = max(every_s, took_s / BUSY_FRACTION)
            await asyncio.sleep(least_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), max(0.0, most_s - least_s))

    async def _look(self, polls: Sequence[_Poll]) -> None:
        new = {(poll.node, poll.token_sha256) for poll in polls if poll.is_new}
        found = await self._pools.polls.run(look, new)
        for poll in polls:
            refusal = found.refused.get((poll.node, poll.token_sha256)) if poll.is_new else None
            poll.is_new = False
            if poll.answer.done():
                continue
            if refusal is not None:
                poll.answer.set_exception(refusal)
            elif poll.node in found.wishes and _answer_newer(poll, *found.wishes[poll.node]):
                self._news_s = time.monotonic()


def _answer_newer(poll: _Poll, grace_s: float, wishes: Sequence[Assignment]) -> bool:
    newer = [assignment for assignment in wishes if cursor_of([assignment]) > poll.cursor]
    if newer:
        poll.answer.set_result(
            Directives(directives(newer, grace_s), max(poll.cursor, cursor_of(newer)))
        )
    return bool(newer)


def look(new: Iterable[tuple[UUID, str]], now: datetime | None = None) -> Found:
    """Find wishes of new polls (node, token's sha256) and recent ones of all; check tokens."""
    callers = list(new)
    nodes = Node.objects.filter(pk__in={node for node, _ in callers})
    own = dict(nodes.values_list("pk", "token_sha256")) if callers else {}
    strange = [(node, token) for node, token in callers if own.get(node) != token]
    refusals = token_refusals(token for _, token in strange)
    refused = {(node, token): refusals[token] for node, token in strange}
    now = now or timezone.now()
    since, changed = now - timedelta(seconds=RECENT_S), now - timedelta(seconds=TERMS_RECENT_S)
    concerned = (
        Q(created_at__gt=since)
        | Q(desired_at__gt=since)
        | Q(term_at__gt=changed)
        | Q(quota_at__gt=changed)
        | Q(node__in=list(own))
    )
    changes = Q(term_at__isnull=False) | Q(quota_at__isnull=False)
    wanted = Q(state=AssignmentState.OFFERED) | ~Q(desired="run") | changes
    wishes: dict[UUID, tuple[float, list[Assignment]]] = {}
    by_node: defaultdict[UUID, list[Assignment]] = defaultdict(list)
    rows = (
        Assignment.objects.filter(concerned, wanted, state__in=LIVE)
        .select_related("node__cluster", "job")
        .only(*_SHOWN)
    )
    for assignment in rows.order_by("pk"):
        by_node[assignment.node_id].append(assignment)
        wishes[assignment.node_id] = (assignment.node.cluster.grace_s, by_node[assignment.node_id])
    return Found(wishes, refused)


_SHOWN = (
    "id", "node_id", "fence", "state", "desired", "desired_at", "created_at", "term_until",
    "term_at",
    "steps_quota", "cpu_quota", "quota_at", "units", "job__cores", "node__cluster_id",
    "node__cluster__grace_s",
)  # fmt: skip  # a long list of names
