"""Threads of a web process: few, lasting, and given to the request that waits longest."""

import asyncio
import threading
from io import BytesIO
from traceback import walk_stack
from types import CodeType

import pytest
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse

from controlplane.web.http.asgi import LARGE_BYTES, ThreadedHandler
from controlplane.web.logs.middleware import RequestLog
from tests.builders_asgi import Answering, Said, ask

BODY = BytesIO()


async def threads_of(app: ThreadedHandler, count: int, *, at_once: bool) -> list[bytes]:
    """The threads that so many requests were answered in."""
    calls = [ask(app, "GET", "/", {}) for _ in range(count)]
    said = await asyncio.gather(*calls) if at_once else [await call for call in calls]
    return [one.body for one in said]


def test_requests_in_turn_share_a_thread() -> None:
    app = Answering(lambda _: None)
    assert len(set(asyncio.run(threads_of(app, 3, at_once=False)))) == 1
    app.close()


def test_simultaneous_requests_have_one_each() -> None:
    together = threading.Barrier(3)
    app = Answering(lambda _: together.wait(30))
    assert len(set(asyncio.run(threads_of(app, 3, at_once=True)))) == 3
    app.close()


def test_after_a_burst_requests_in_turn_share_a_thread_again() -> None:
    app = Answering(lambda _: None)

    async def burst_and_turns() -> list[bytes]:
        await threads_of(app, 30, at_once=True)
        return await threads_of(app, 9, at_once=False)

    assert len(set(asyncio.run(burst_and_turns()))) == 1
    app.close()


@pytest.mark.parametrize("begun", [True, False])
def test_a_request_that_is_given_up_frees_its_thread_once_that_is_idle(begun: bool) -> None:
    at_work, go_on = threading.Event(), threading.Event()

    def act(request: HttpRequest | None = None) -> None:
        if request is None or request.path == "/slow":
            at_work.set()
            go_on.wait(30)

    app = Answering(act, most=1)

    async def one_is_given_up() -> Said:
        if not begun:
            app._threads[0].submit(act)
        slow = ASGIRequest({"type": "http", "method": "GET", "path": "/slow", "headers": []}, BODY)
        given_up = asyncio.create_task(app.get_response_async(slow))
        await asyncio.to_thread(at_work.wait, 30)
        given_up.cancel()  # as Django does when the client has gone
        next_one = asyncio.create_task(ask(app, "GET", "/", {}))
        await asyncio.sleep(0.1)
        assert not next_one.done(), "the only thread is at work"
        go_on.set()
        return await asyncio.wait_for(next_one, 10)

    assert asyncio.run(one_is_given_up()).status == 200
    app.close()


def test_more_requests_than_threads_share_them_and_all_threads_end() -> None:
    before = threading.active_count()
    app = Answering(lambda _: None)
    used = asyncio.run(threads_of(app, 100, at_once=True))
    assert len(used) == 100
    assert len(set(used)) <= 3
    app.close()
    assert threading.active_count() <= before


def test_a_request_takes_the_next_thread_that_is_free() -> None:
    go_on = threading.Event()
    app = Answering(lambda request: request.path == "/slow" and go_on.wait(30))

    async def beside_a_slow_one() -> list[Said]:
        slow = asyncio.create_task(ask(app, "GET", "/slow", {}))
        quick = [await ask(app, "GET", "/", {}) for _ in range(10)]
        go_on.set()
        await slow
        return quick

    assert [said.status for said in asyncio.run(beside_a_slow_one())] == [200] * 10
    app.close()


def test_large_bodies_are_worked_on_one_at_a_time_beside_small_ones() -> None:
    now, most, small = [0], [0], threading.Event()

    def act(request: HttpRequest) -> None:
        if request.path == "/small":
            small.set()
            return
        now[0] += 1
        most[0] = max(most[0], now[0])
        assert small.wait(30), "a small one waits for a large one"
        now[0] -= 1

    app = Answering(act)

    async def run() -> list[int]:
        body = b"x" * (LARGE_BYTES + 1)
        calls = [ask(app, "POST", "/large", {}, body) for _ in range(6)]
        said = await asyncio.gather(*calls, ask(app, "POST", "/small", {}, b"x"))
        return [one.status for one in said]

    assert asyncio.run(run()) == [200] * 7
    assert most == [1]
    app.close()


def test_django_answers_a_request_in_one_visit_to_its_thread() -> None:
    callers = list[CodeType]()

    class Noting(ThreadedHandler):
        def _get_response(self, request: HttpRequest) -> HttpResponse:
            callers.extend(frame.f_code for frame, _ in walk_stack(None))
            return HttpResponse("noted")

    app = Noting()
    said = asyncio.run(ask(app, "GET", "/healthz", {}))
    assert (said.status, said.body) == (200, b"noted")
    assert RequestLog.__call__.__code__ in callers, "the outermost middleware is in another thread"
    app.close()
