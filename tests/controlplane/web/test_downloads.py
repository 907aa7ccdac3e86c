"""Downloads: read as they are sent, in turns like requests, and ended with their client."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from django.conf import settings
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import Client

from controlplane.audit.models import Entry
from controlplane.web.http.asgi import ThreadedHandler
from controlplane.web.http.callers import THREADS_EACH, CallerLimits, limited
from tests.builders import a_user
from tests.builders_asgi import Answering, Said, ask, named

PIECE = b"x" * 65_536
SCOPE = {"type": "http", "method": "GET", "path": "/file", "headers": [], "query_string": b""}


class Sending(Answering):
    """Answers /file by these parts, all else by a short text."""

    def __init__(self, parts: Callable[[], Iterator[bytes]], most: int = 3) -> None:
        super().__init__(lambda _: None, most)
        self._parts = parts

    def get_response(self, request: HttpRequest) -> HttpResponse:
        if request.path != "/file":
            return super().get_response(request)
        return StreamingHttpResponse(self._parts())  # type: ignore[return-value]  # as views do


def test_others_are_answered_while_a_download_is_read() -> None:
    reads, go_on = threading.Event(), threading.Event()

    def parts() -> Iterator[bytes]:
        yield b"first, "
        reads.set()
        assert go_on.wait(30)
        yield b"last"

    app = Sending(parts)

    async def run() -> tuple[Said, Said]:
        download = asyncio.create_task(ask(app, "GET", "/file", {}))
        await asyncio.to_thread(reads.wait, 30)
        other = asyncio.create_task(ask(app, "GET", "/", {}))
        await asyncio.wait([other], timeout=10)
        was_answered = other.done()
        go_on.set()
        assert was_answered, "a page waits for a download"
        return await download, await other

    download, other = asyncio.run(run())
    assert (download.body, other.status) == (b"first, last", 200)
    app.close()


def test_no_more_is_read_than_is_sent() -> None:
    read = list[bytes]()

    def parts() -> Iterator[bytes]:
        for _ in range(100):
            read.append(PIECE)
            yield PIECE

    app = Sending(parts, most=1)

    async def run() -> Said:
        began, taken = asyncio.Event(), asyncio.Event()

        request = [{"type": "http.request"}]

        async def receive() -> Mapping[str, Any]:
            return request.pop() if request else await asyncio.Future()

        async def send(message: Mapping[str, Any]) -> None:
            if message["type"] == "http.response.body":
                began.set()
                await taken.wait()

        slow = asyncio.create_task(app(SCOPE, receive, send))
        await asyncio.wait_for(began.wait(), 10)
        other = await asyncio.wait_for(ask(app, "GET", "/", {}), 10)
        assert len(read) == 1
        taken.set()
        await slow
        return other

    assert asyncio.run(run()).status == 200
    assert len(read) == 100
    app.close()


def test_a_download_ends_when_its_client_leaves() -> None:
    ended = threading.Event()

    def parts() -> Iterator[bytes]:
        try:
            while True:
                yield PIECE
        finally:
            ended.set()

    app = Sending(parts, most=1)

    async def run() -> Said:
        left = ask(app, "GET", "/file", {}, leaves_after_s=0.05)
        await asyncio.wait_for(left, 10)
        return await asyncio.wait_for(ask(app, "GET", "/", {}), 10)

    assert asyncio.run(run()).status == 200
    assert ended.is_set()
    app.close()


def test_one_callers_downloads_leave_threads_to_others() -> None:
    go_on = threading.Event()

    def parts() -> Iterator[bytes]:
        yield PIECE
        assert go_on.wait(30)
        yield PIECE

    handler = Sending(parts, most=THREADS_EACH + 1)
    app = CallerLimits(handler, named)

    async def run() -> list[int]:
        eve, ada = {"authorization": "Bearer eve"}, {"authorization": "Bearer ada"}
        downloads = [asyncio.create_task(ask(app, "GET", "/file", eve)) for _ in range(4)]
        for _ in range(20):
            await asyncio.wait_for(ask(app, "GET", "/", ada), 10)
        go_on.set()
        return [len((await download).body) for download in downloads]

    assert asyncio.run(run()) == [2 * len(PIECE)] * 4
    handler.close()


@pytest.mark.django_db(transaction=True)
def test_pieces_of_a_large_audit_are_read_in_whichever_thread_is_idle() -> None:
    client = Client()
    client.force_login(a_user(operator=True))
    session = {"cookie": f"{settings.SESSION_COOKIE_NAME}={client.session.session_key}"}
    Entry.objects.bulk_create(Entry(action="job.hold", thing_id=f"{n:036}") for n in range(1200))
    handler = ThreadedHandler(2)
    app = limited(handler)

    async def run() -> list[Said]:
        calls = [ask(app, "GET", "/audit/audit.csv", session) for _ in range(4)]
        return await asyncio.gather(*calls)

    for said in asyncio.run(run()):
        lines = said.body.decode().splitlines()
        assert (said.status, lines[-1].split(",")[6]) == (200, f"{1199:036}")
        assert len(lines) > 1200
    handler.close()
