"""Simulated agents: each beats every `heartbeat_s`, evenly spread, from one process with hardly any work per request.

The generator shares the machine with what it measures, so requests are bytes with holes and answers are barely read. Latencies
count from when a heartbeat was *due*: a generator or a server that lags behind shows up in them instead of hiding it.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from load.fleet import SimulatedAgent

ANSWER_S = 30.0
GOLDEN = 0.6180339887498949
"""Multiples of it spread evenly over the unit interval, however many there are."""


@dataclass(slots=True)
class Traffic:
    """What the agents have seen: latencies in seconds from due (and from sent) to answered, answers by status, failures by name."""

    due_s: list[float] = field(default_factory=list)
    sent_s: list[float] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    leases: int = 0
    began_s: float = 0.0
    ended_s: float = 0.0

    def rate_per_s(self) -> float:
        """Answered heartbeats a second."""
        return len(self.due_s) / max(self.ended_s - self.began_s, 1e-9)

    def summary(self) -> dict[str, object]:
        """Rate, percentiles in milliseconds, answers."""
        names = {"": self.due_s, "sent_": self.sent_s}
        figures = {f"{n}p{p}_ms": round(percentile(v, p) * 1000, 1) for n, v in names.items() for p in (50, 95, 99)}
        return {"rate_per_s": round(self.rate_per_s(), 1), **figures, "answers": dict(self.answers), "leases": self.leases}


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of them do not exceed; 0.0 without any."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection that is kept while the server keeps it: a request out, an answer with its Content-Length back."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self.open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport, self.open = cast(asyncio.Transport, transport), True  # uvloop's is none by class

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail whoever waits."""
        self.open = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        """Collect until the answer is whole."""
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if found and len(body) >= _length(head) and self._answer is not None and not self._answer.done():
            self._buffer = b""
            self._answer.set_result((int(head[9:12]), body))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send the bytes of a request; the answer's status and body. Raises OSError where the connection breaks."""
        if self._transport is None or not self.open:
            raise ConnectionResetError("the connection is closed")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()


def _length(head: bytes) -> int:
    at = head.lower().find(b"content-length:")
    return int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0


class Agent:
    """One simulated agent with its connection."""

    def __init__(self, agent: SimulatedAgent, host: str, port: int, traffic: Traffic) -> None:
        self._host, self._port = host, port
        self._traffic = traffic
        self._connection: Connection | None = None
        self._seq = 0
        path = f"/api/agent/v1/nodes/{agent.node}"
        common = f"Host: {host}:{port}\r\nAuthorization: Bearer {agent.token}\r\nLoadmaster-Protocol: 1\r\n"
        self._head = (
            f"POST {path}/heartbeat HTTP/1.1\r\n{common}Content-Type: application/json\r\nContent-Length: %d\r\n\r\n".encode()
        )
        self.poll = f"GET {path}/directives?cursor=0&wait=25 HTTP/1.1\r\n{common}\r\n".encode()
        samples = ",".join(
            f'{{"uuid":"{uuid}","healthy":true,"gpu_fraction":0.5,"memory_used_gb":4.0,"power_w":120.0,'
            f'"power_source":"measured","temperature_c":55.0}}'
            for uuid in agent.devices
        )
        held = ",".join(f'{{"id":"{pk}","fence":{fence},"state":"running","container":""}}' for pk, fence in agent.held)
        self._body = (
            f'{{"epoch":{agent.epoch},"seq":%d,"sent_at_s":%.3f,"healthy":true,"devices":[{samples}],"assignments":[{held}],"cursor":0}}'
        ).encode()

    async def beat(self, due_s: float) -> None:
        """Send one heartbeat that was due then, on a new connection if the server has closed the last one."""
        self._seq += 1
        body = self._body % (self._seq, time.time())
        sent_s = time.monotonic()
        status, answer = await self.send((self._head % len(body)) + body)
        now_s = time.monotonic()
        self._traffic.due_s.append(now_s - due_s)
        self._traffic.sent_s.append(now_s - sent_s)
        self._traffic.answers[str(status)] += 1
        self._traffic.leases += answer.count(b'"ttl_s"')

    async def send(self, request: bytes) -> tuple[int, bytes]:
        """The answer's status and body."""
        connection = self._connection
        if connection is None or not connection.open:
            connection = await self._connect()
        return await connection.ask(request)

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, self._connection = await loop.create_connection(Connection, self._host, self._port)
        return self._connection

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.close()


async def run_agents(
    agents: Sequence[SimulatedAgent],
    host: str,
    port: int,
    *,
    seconds: float,
    heartbeat_s: float = 10.0,
    warm_up_s: float = 0.0,
    polls: int = 0,
) -> Traffic:
    """Let all agents beat for so long, spread over the whole interval; heartbeats of the first `warm_up_s` are not counted.

    `polls` of them also hold a long poll all the time, on a second connection as real agents do.
    """
    gc.disable()  # a generator that stops to look for garbage among 10,000 tasks would seem a server that stops
    measured, ignored = Traffic(), Traffic()
    began_s = time.monotonic()
    measured.began_s, ends_s = began_s + warm_up_s, began_s + warm_up_s + seconds
    speakers = [(Agent(agent, host, port, measured), n * GOLDEN % 1.0 * heartbeat_s) for n, agent in enumerate(agents)]
    tasks = [_every(agent.beat, began_s + first, heartbeat_s, ends_s, measured) for agent, first in speakers]
    waiting = [_poll(Agent(agent, host, port, ignored), ends_s, measured) for agent in agents[:polls]]
    reset = asyncio.create_task(_forget(measured, warm_up_s))
    await asyncio.gather(*tasks, *waiting)
    await reset
    gc.enable()
    measured.ended_s = ends_s
    for agent, _ in speakers:
        agent.close()
    return measured


async def _forget(traffic: Traffic, after_s: float) -> None:
    await asyncio.sleep(after_s)
    traffic.due_s.clear()
    traffic.sent_s.clear()
    traffic.answers.clear()
    traffic.leases = 0


async def _every(
    beat: Callable[[float], Awaitable[None]], first_s: float, period_s: float, ends_s: float, traffic: Traffic
) -> None:
    due_s = first_s
    while due_s < ends_s:
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        try:
            await asyncio.wait_for(beat(due_s), ANSWER_S)
        except (OSError, TimeoutError) as error:
            traffic.answers[type(error).__name__] += 1
        due_s += period_s


async def _poll(agent: Agent, ends_s: float, traffic: Traffic) -> None:
    while time.monotonic() < ends_s:
        try:
            status, _ = await asyncio.wait_for(agent.send(agent.poll), max(0.1, ends_s - time.monotonic()))
        except (OSError, TimeoutError) as error:
            if time.monotonic() < ends_s:
                traffic.answers[f"poll {type(error).__name__}"] += 1
            agent.close()
            continue
        traffic.answers[f"poll {status}"] += 1
        await asyncio.sleep(0.1)
    agent.close()
