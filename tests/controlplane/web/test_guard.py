"""A connection may cost a web process only so much: headers, bytes of head, time for head and
body.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from controlplane.web.http import guard as http_guard
from controlplane.web.http.guard import LARGEST_HEAD, MOST_HEADERS, GuardedProtocol, Phase


class App:
    """Answers the number of bytes of the body, once it is there; notes who left before."""

    def __init__(self) -> None:
        self.lost = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        size, message = 0, {"more_body": True}
        while message.get("more_body"):
            message = await receive()
            if message["type"] == "http.disconnect":
                self.lost += 1
                return
            size += len(message["body"])
        words = str(size).encode()
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-length", str(len(words)).encode())],
            }
        )
        await send({"type": "http.response.body", "body": words})


@asynccontextmanager
async def serving(app: App) -> AsyncIterator[int]:
    """The port of a server in this process."""
    config = uvicorn.Config(
        app, http=GuardedProtocol, port=0, lifespan="off", log_config=None, timeout_keep_alive=60
    )
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    server.server_state.default_headers = [
        (b"date", b"today")
    ]  # as the server's own loop sets it every second
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        await server.shutdown()


async def said(port: int, *pieces: bytes) -> bytes:
    """What comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    answer = await reader.read()
    writer.close()
    return answer


def run(play: Callable[[int], Awaitable[None]], app: App | None = None) -> App:
    app = app or App()

    async def with_server() -> None:
        async with serving(app) as port:
            await asyncio.wait_for(play(port), 30)

    asyncio.run(with_server())
    return app


def get(*headers: bytes, path: bytes = b"/") -> bytes:
    return b"\r\n".join(
        [b"GET %b HTTP/1.1" % path, b"Host: x", b"Connection: close", *headers, b"", b""]
    )


POST = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 5\r\n\r\n"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_guard, "PATIENCE_S", {Phase.HEAD: 0.2, Phase.BODY: 0.2})


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (get(), b"200"),
        (get(*[b"X-%d: y" % number for number in range(MOST_HEADERS - 2)]), b"200"),
        (get(*[b"X-%d: y" % number for number in range(MOST_HEADERS - 1)]), b"431"),
        (get(b"X: " + b"y" * (LARGEST_HEAD - 200)), b"200"),
        (get(b"X: " + b"y" * LARGEST_HEAD), b"431"),
        (get(path=b"/" + b"y" * LARGEST_HEAD), b"431"),
        (get(*[b"X-%d: %b" % (number, b"y" * 1000) for number in range(70)]), b"431"),
        (POST + b"whole", b"200"),
        (b"no http at all\r\n\r\n", b"400"),
    ],
    ids=[
        "plain",
        "100 headers",
        "101 headers",
        "a large header",
        "too large a header",
        "a long address",
        "much in all",
        "body",
        "no",
    ],
)
def test_so_much_head_is_taken_and_no_more(request_: bytes, status: bytes) -> None:
    async def play(port: int) -> None:
        assert (await said(port, request_)).split()[1] == status

    run(play)


def test_a_head_without_end_is_refused_while_it_still_comes() -> None:
    async def play(port: int) -> None:
        answer = await said(port, b"GET / HTTP/1.1\r\nX: ", b"y" * LARGEST_HEAD)
        assert answer.split()[1] == b"431"

    run(play)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HTTP/1.1\r\nHost: x\r\n", POST + b"par"],
    ids=["nothing", "half a head", "half a body"],
)
def test_what_does_not_arrive_is_not_waited_for(sent: bytes) -> None:
    async def play(port: int) -> None:
        assert (await said(port, sent)).split()[1] == b"408"

    app = run(play)
    assert app.lost == (b"POST" in sent)


@pytest.mark.usefixtures("hasty")
def test_who_sends_a_body_for_too_long_still_reads_an_answer_that_came_before() -> None:
    class Early(App):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            head = {"type": "http.response.start", "status": 429}
            await send({**head, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

    def send_late(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
            client.sendall(POST.replace(b"close", b"keep-alive") + b"wh")
            for piece in (b"o", b"l"):
                time.sleep(0.4)
                client.sendall(piece)
            return client.recv(100)

    async def play(port: int) -> None:
        assert (await asyncio.to_thread(send_late, port)).split()[1] == b"429"

    run(play, Early())


@pytest.mark.usefixtures("hasty")
def test_an_answer_that_takes_its_time_is_not_cut_off() -> None:
    class Slow(App):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await asyncio.sleep(0.6)
            await super().__call__(scope, receive, send)

    async def play(port: int) -> None:
        assert (await said(port, POST + b"whole")).split()[1] == b"200"

    run(play, Slow())


@pytest.mark.usefixtures("hasty")
def test_a_connection_that_is_kept_serves_one_request_after_another() -> None:
    async def play(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            writer.write(POST.replace(b"close", b"keep-alive") + b"whole")
            assert b"200" in await reader.readuntil(b"\r\n\r\n5")
            await asyncio.sleep(
                0.3
            )  # longer than a head may take: between requests none is waited for
        writer.close()

    run(play)
