"""Requests one after another share a thread and its connection; those at the same time have one
each.
"""

import asyncio
import threading
from collections.abc import Callable
from traceback import walk_stack
from types import CodeType
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse

from controlplane.web.http.asgi import LastingThreads, ThreadedHandler
from controlplane.web.logs.middleware import RequestLog
from tests.builders_asgi import ask


def answering(act: Callable[[], object]) -> LastingThreads:
    """An application that answers with the number of the thread in which it has called `act`."""

    def whole() -> bytes:
        act()
        return str(threading.get_ident()).encode()

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        name = await sync_to_async(whole)()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": name})

    return LastingThreads(app, most=3)


async def threads_of(app: LastingThreads, count: int, *, at_once: bool) -> list[bytes]:
    """The threads that so many requests were answered in."""
    calls = [ask(app, "GET", "/", {}) for _ in range(count)]
    said = await asyncio.gather(*calls) if at_once else [await call for call in calls]
    return [one.body for one in said]


def test_requests_in_turn_share_a_thread() -> None:
    app = answering(lambda: None)
    assert len(set(asyncio.run(threads_of(app, 3, at_once=False)))) == 1
    app.close()


def test_simultaneous_requests_have_one_each() -> None:
    together = threading.Barrier(3)
    app = answering(lambda: together.wait(30) and None)
    assert len(set(asyncio.run(threads_of(app, 3, at_once=True)))) == 3
    app.close()


def test_more_requests_than_threads_share_them_and_all_threads_end() -> None:
    before = threading.active_count()
    app = answering(lambda: None)
    used = asyncio.run(threads_of(app, 100, at_once=True))
    assert (len(used), len(set(used))) == (100, 3)
    app.close()
    assert threading.active_count() <= before


def test_django_answers_a_request_in_one_visit_to_its_thread() -> None:
    callers = list[CodeType]()

    class Noting(ThreadedHandler):
        def _get_response(self, request: HttpRequest) -> HttpResponse:
            callers.extend(frame.f_code for frame, _ in walk_stack(None))
            return HttpResponse("noted")

    said = asyncio.run(ask(Noting(), "GET", "/healthz", {}))
    assert (said.status, said.body) == (200, b"noted")
    assert RequestLog.__call__.__code__ in callers, "the outermost middleware is in another thread"
