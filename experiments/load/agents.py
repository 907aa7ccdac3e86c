"""Simulated agents: each beats every `heartbeat_s`, evenly spread, from one process with hardly any
work per request.

The generator shares the machine with what it measures, so requests are bytes with holes and answers
are barely read. Latencies count from when a heartbeat was *due*: a generator or a server that lags
behind shows up in them instead of hiding it.
"""

import asyncio
import gc
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from operator import itemgetter
from typing import cast

from experiments.load.connection import answer_in
from experiments.load.fleet import SimulatedAgent

ANSWER_S = 30.0
GOLDEN = 0.6180339887498949
"""Multiples of it spread evenly over the unit interval, however many there are."""


@dataclass(slots=True)
class Traffic:
    """Latencies in seconds from due (and sent) to answered, and answers by status."""

    due_s: list[float] = field(default_factory=list)
    sent_s: list[float] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    leases: int = 0
    began_s: float = 0.0
    ended_s: float = 0.0

    def rate_per_s(self) -> float:
        """Answered heartbeats a second."""
        return len(self.due_s) / max(self.ended_s - self.began_s, 1e-9)

    def answered(self, due_s: float, sent_s: float, status: int, body: bytes) -> None:
        """Note an answer."""
        self.due_s.append(due_s)
        self.sent_s.append(sent_s)
        self.answers[str(status)] += 1
        self.leases += body.count(b'"ttl_s"')

    def forget(self) -> None:
        """Begin anew."""
        self.due_s.clear()
        self.sent_s.clear()
        self.answers.clear()
        self.leases = 0

    def summary(self) -> dict[str, object]:
        """Rate, percentiles in milliseconds, answers."""
        return {
            "rate_per_s": round(self.rate_per_s(), 1),
            **percentiles_ms(self.due_s),
            **percentiles_ms(self.sent_s, "sent_"),
            "answers": dict(self.answers),
            "leases": self.leases,
        }


def percentiles_ms(values_s: Sequence[float], of: str = "") -> dict[str, float]:
    """Milliseconds that 50, 95 and 99% of the values do not exceed; {} without values."""
    ordered, count = sorted(values_s), len(values_s)
    return {
        f"{of}p{p}_ms": round(1000 * ordered[min(count - 1, count * p // 100)], 1)
        for p in (50, 95, 99)
        if ordered
    }


class Agent(asyncio.Protocol):
    """One simulated agent, which is its own connection. It has one heartbeat under way at a time,
    as a real one; what falls due meanwhile goes out right after.
    """

    def __init__(self, agent: SimulatedAgent, host: str, port: int, traffic: Traffic) -> None:
        self._place = (host, port)
        self._traffic = traffic
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._buffer = b""
        self._seq = 0
        self._due: deque[float] = deque()
        self._sent_s = 0.0
        self.waits = False
        self._head = (
            f"POST /api/agent/v1/nodes/{agent.node}/heartbeat HTTP/1.1\r\nHost: {host}:{port}\r\n"
            f"Authorization: Bearer {agent.token}\r\nLoadmaster-Protocol: 1\r\n"
            "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        ).encode()
        samples = ",".join(
            f'{{"uuid":"{uuid}","healthy":true,"gpu_fraction":0.5,"memory_used_gb":4.0,"power_w":120.0,'
            f'"power_source":"measured","temperature_c":55.0}}'
            for uuid in agent.devices
        )
        held = ",".join(
            f'{{"id":"{pk}","fence":{fence},"state":"running","container":""}}'
            for pk, fence in agent.held
        )
        self._body = (
            f'{{"epoch":{agent.epoch},"seq":%d,"sent_at_s":%.3f,"healthy":true,"devices":[{samples}],"assignments":[{held}],"cursor":0}}'
        ).encode()

    def beat(self, due_s: float) -> None:
        """Send the heartbeat that was due then; note it while an earlier one is unanswered."""
        self._due.append(due_s)
        if not self.waits:
            self._send_next()
        elif time.monotonic() - self._sent_s > ANSWER_S:
            if self._connecting is not None:
                self._connecting.cancel()
            self._give_up("TimeoutError")

    @property
    def unanswered(self) -> int:
        """Heartbeats that were due and have no answer, sent or not."""
        return len(self._due)

    def close(self) -> None:
        """Hang up; nothing is counted any more."""
        self.waits = False
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the heartbeat that waits for an answer."""
        self._transport, self._buffer = None, b""
        if self.waits:
            self._give_up(type(exc or ConnectionResetError()).__name__)

    def data_received(self, data: bytes) -> None:
        """Collect until the answer is whole, then note it."""
        now_s = time.monotonic()
        if not self.waits:
            return
        self._buffer += data
        found = answer_in(self._buffer)
        if found is None:
            return
        self._buffer, self.waits = b"", False
        status, body = found
        self._traffic.answered(now_s - self._due.popleft(), now_s - self._sent_s, status, body)
        if self._due:
            self._send_next()

    def _send_next(self) -> None:
        self.waits, self._sent_s = True, time.monotonic()
        if self._transport is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            return
        self._seq += 1
        body = self._body % (self._seq, time.time())
        self._transport.write((self._head % len(body)) + body)

    async def _connect(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self, *self._place)
        except OSError as error:
            self._give_up(type(error).__name__)
        else:
            self._send_next()

    def _give_up(self, why: str) -> None:
        """Count the waiting heartbeat as failed; reconnect for those that fell due since."""
        self._traffic.answers[why] += 1
        self._due.popleft()
        self.waits = False
        if self._transport is not None:
            self._transport.abort()
            self._transport = None


async def run_agents(
    agents: Sequence[SimulatedAgent],
    host: str,
    port: int,
    *,
    seconds: float,
    heartbeat_s: float = 10.0,
    warm_up_s: float = 0.0,
) -> Traffic:
    """Let all agents beat for so long, spread over the whole interval. Answers in the first
    `warm_up_s` are not counted; what was due before the end is, however late its answer.
    """
    # a generator that stops to look for garbage among 10,000 agents would seem a server that stops
    gc.disable()
    traffic, began_s = Traffic(), time.monotonic()
    traffic.began_s, traffic.ended_s = began_s + warm_up_s, began_s + warm_up_s + seconds
    speakers = [
        (n * GOLDEN % 1.0 * heartbeat_s, Agent(agent, host, port, traffic))
        for n, agent in enumerate(agents)
    ]
    speakers.sort(key=itemgetter(0))
    reset = asyncio.create_task(_forget(traffic, warm_up_s))
    await _beat_in_turn(speakers, began_s, heartbeat_s, warm_up_s + seconds)
    until_s = time.monotonic() + ANSWER_S
    while any(agent.waits for _, agent in speakers) and time.monotonic() < until_s:
        await asyncio.sleep(0.1)
    await reset
    gc.enable()
    if never := sum(agent.unanswered for _, agent in speakers):
        traffic.answers["never answered"] += never
    for _, agent in speakers:
        agent.close()
    return traffic


async def _beat_in_turn(
    speakers: Sequence[tuple[float, Agent]], began_s: float, period_s: float, seconds: float
) -> None:
    """One task lets all beat, by the order of when they are due: a task and a timer for each would
    cost more than the rest.

    Times are added up from 0, not from the clock's, whose size would decide by its rounding whether
    the last turn is one too many.
    """
    for turn in count():
        for first_s, agent in speakers:
            after_s = turn * period_s + first_s
            if after_s >= seconds:
                return
            due_s = began_s + after_s
            if (wait_s := due_s - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
            agent.beat(due_s)


async def _forget(traffic: Traffic, after_s: float) -> None:
    await asyncio.sleep(after_s)
    traffic.forget()
