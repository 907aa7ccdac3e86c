"""The load generator's agents, against a server that is steered: what they count is what
happened.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest

from experiments.load import agents as generator
from experiments.load.agents import Traffic, run_agents
from experiments.load.connection import answer_in
from experiments.load.fleet import SimulatedAgent

ANSWER = b'HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n{"leases":["ttl_s":1]'
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def beaten(serve: Serve, *, agents: int = 3, seconds: float = 1.0) -> Traffic:
    """What agents that beat ten times a second have seen of a server."""
    fleet = [SimulatedAgent(f"node-{n}", "token", 1, (f"GPU-{n}",)) for n in range(agents)]

    async def play() -> Traffic:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            traffic = await run_agents(fleet, "127.0.0.1", port, seconds=seconds, heartbeat_s=0.1)
        await asyncio.sleep(0.1)  # both ends hear that the other has hung up
        return traffic

    return asyncio.run(play())


async def request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    return await reader.readexactly(int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]))


async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """All of them, each in two pieces."""
    while not reader.at_eof():
        try:
            await request(reader)
        except asyncio.IncompleteReadError:
            break
        writer.write(ANSWER[:30])
        await writer.drain()
        await asyncio.sleep(0.001)
        writer.write(ANSWER[30:])
    writer.close()


def test_every_heartbeat_is_counted_with_its_leases() -> None:
    traffic = beaten(answers)
    assert dict(traffic.answers) == {"200": 30}
    assert len(traffic.due_s) == len(traffic.sent_s) == traffic.leases == 30
    assert all(0.0 <= sent <= due for sent, due in zip(traffic.sent_s, traffic.due_s, strict=True))


@pytest.mark.parametrize("starts_s", [0.3, 1159.369523254, 2.0**24 / 10])
def test_how_many_heartbeats_are_due_does_not_hang_on_the_clocks_rounding(
    monkeypatch: pytest.MonkeyPatch, starts_s: float
) -> None:
    now_s = time.monotonic()
    clock = SimpleNamespace(monotonic=lambda: starts_s + time.monotonic() - now_s, time=time.time)
    monkeypatch.setattr(generator, "time", clock)
    assert dict(beaten(answers).answers) == {"200": 30}


async def first_only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One answer, then the connection ends: the next heartbeat needs another one."""
    await request(reader)
    writer.write(ANSWER)
    await writer.drain()
    writer.close()


def test_a_connection_that_was_closed_is_opened_again() -> None:
    assert dict(beaten(first_only).answers) == {"200": 30}


async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await request(reader)
    writer.close()


def test_a_heartbeat_whose_connection_ends_has_failed() -> None:
    assert dict(beaten(hangs_up).answers) == {"ConnectionResetError": 30}


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(-1)
    writer.close()


def test_what_is_never_answered_is_counted_whether_it_was_sent_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(generator, "ANSWER_S", 0.45)
    traffic = beaten(silent)
    assert traffic.due_s == []
    assert set(traffic.answers) == {"TimeoutError", "never answered"}
    assert sum(traffic.answers.values()) == 30


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nab", (200, b"ab")),
        (b"HTTP/1.1 204 No Content\r\n\r\n", (204, b"")),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na", None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", None),
    ],
)
def test_an_answer_is_taken_when_it_is_whole(data: bytes, found: tuple[int, bytes] | None) -> None:
    assert answer_in(data) == found
