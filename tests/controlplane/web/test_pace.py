"""Who took much of a processor waits while others are there, and not for long."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from django.http import HttpRequest, HttpResponse

from controlplane.web.http.asgi import SPENT_S, TURN, USER, ThreadedHandler
from controlplane.web.http.callers import CallerLimits
from controlplane.web.http.pace import (
    ACTIVE_S,
    FREE_S,
    LONGEST_S,
    SHARE,
    STRANGERS,
    Pace,
)
from tests.builders_asgi import ask, named


class Clock:
    """Seconds that pass when told to, and a little at each look."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """The time, which passes in steps that are short beside those of the pace."""
        self.now_s += 0.001
        return self.now_s


async def waited_s(pace: Pace, clock: Clock, caller: str, spent_s: float = 0.0) -> float:
    """For how long the caller waits for a turn, in which its request takes so much."""
    began_s = clock.now_s
    async with pace.turn(caller, {SPENT_S: spent_s}):
        return clock.now_s - began_s


async def _others_keep_coming(pace: Pace, clock: Clock) -> None:
    while True:
        await waited_s(pace, clock, "ada")
        clock.now_s += 0.05
        await asyncio.sleep(0)


def test_who_takes_little_never_waits() -> None:
    async def run() -> list[float]:
        clock = Clock()
        pace = Pace(clock)
        found = []
        for _ in range(200):
            clock.now_s += 0.3
            found.append(await waited_s(pace, clock, "eve", 0.03))
            await waited_s(pace, clock, "ada", 0.03)
        return found

    assert max(asyncio.run(run())) < 0.05


def test_who_took_much_waits_while_others_come_but_not_for_long(monkeypatch: Any) -> None:
    monkeypatch.setattr("controlplane.web.http.pace.POLL_S", 0.0)

    async def run() -> list[float]:
        clock = Clock()
        pace = Pace(clock)
        others = asyncio.create_task(_others_keep_coming(pace, clock))
        await asyncio.sleep(0)
        waits = [await waited_s(pace, clock, "eve", 1.2 * FREE_S)]
        waits.append(await waited_s(pace, clock, "eve", 100.0))
        waits.append(await waited_s(pace, clock, "eve"))
        others.cancel()
        return waits

    first, second, third = asyncio.run(run())
    assert first < 0.1
    assert 0.2 * FREE_S / SHARE - 0.1 < second < 0.2 * FREE_S / SHARE + 0.2
    assert LONGEST_S - 0.1 < third < LONGEST_S + 0.2


def test_a_strangers_request_that_is_a_users_is_charged_to_the_user() -> None:
    async def run() -> dict[str, float]:
        pace = Pace(Clock())
        scope = {SPENT_S: 0.2}
        async with pace.turn(STRANGERS, scope):
            scope[USER] = 7
        return {name: account.spent_s for name, account in pace._accounts.items()}

    assert asyncio.run(run()) == {STRANGERS: 0.0, "user 7": 0.2}


def test_a_users_login_does_not_count_as_somebody_else() -> None:
    async def run() -> float:
        clock = Clock()
        pace = Pace(clock)
        await waited_s(pace, clock, "user 7", 5.0)
        scope: dict[str, Any] = {}
        async with pace.turn(STRANGERS, scope):
            scope[USER] = 7
        return await waited_s(pace, clock, "user 7")

    assert asyncio.run(run()) < 0.1


def test_who_took_much_does_not_wait_alone(monkeypatch: Any) -> None:
    monkeypatch.setattr("controlplane.web.http.pace.POLL_S", 0.0)

    async def run() -> list[float]:
        clock = Clock()
        pace = Pace(clock)
        await waited_s(pace, clock, "ada")
        clock.now_s += ACTIVE_S
        return [await waited_s(pace, clock, "eve", 5.0) for _ in range(10)]

    assert max(asyncio.run(run())) < 0.1


def test_nobody_waits_where_all_take_much() -> None:
    async def run() -> list[float]:
        clock = Clock()
        pace = Pace(clock)
        for name in ("ada", "eve"):
            await waited_s(pace, clock, name, 5.0)
        clock.now_s += ACTIVE_S  # until then both took little
        return [await waited_s(pace, clock, name, 5.0) for name in ("ada", "eve") * 5]

    assert max(asyncio.run(run())) < 0.1


def test_who_took_much_has_one_thread_at_a_time_beside_others(monkeypatch: Any) -> None:
    monkeypatch.setattr("controlplane.web.http.pace.LONGEST_S", 0.5)

    async def run() -> int:
        pace, now, most = Pace(), 0, 0
        async with pace.turn("ada", {}), pace.turn("eve", {SPENT_S: 100.0}):
            pass

        async def one() -> None:
            nonlocal now, most
            async with pace.turn("eve", {}):
                now += 1
                most = max(most, now)
                await asyncio.sleep(0.01)
                now -= 1

        await asyncio.gather(*(one() for _ in range(5)))
        return most

    assert asyncio.run(run()) == 1


def test_a_request_is_charged_the_processor_time_of_its_thread() -> None:
    class Working(ThreadedHandler):
        def get_response(self, request: HttpRequest) -> HttpResponse:
            until_s = time.thread_time() + (0.2 if request.path == "/work" else 0.0)
            while time.thread_time() < until_s:
                pass
            time.sleep(0.2 if request.path == "/rest" else 0.0)
            return HttpResponse("done")

    handler = Working()
    app = CallerLimits(handler, named)

    async def run() -> None:
        await ask(app, "GET", "/rest", {"authorization": "Bearer ada"})
        await ask(app, "GET", "/work", {"authorization": "Bearer eve"})

    asyncio.run(run())
    spent_s = {name: account.spent_s for name, account in app._pace._accounts.items()}
    assert spent_s["user ada"] < 0.05
    assert 0.2 <= spent_s["user eve"] < 0.25
    handler.close()


def test_a_users_requests_are_paced_as_the_users_from_the_first_one_on() -> None:
    paced = list[str]()

    class Noting(Pace):
        @asynccontextmanager
        async def turn(self, user: str, scope: Any) -> AsyncIterator[None]:
            paced.append(user)
            async with super().turn(user, scope):
                yield

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        async with scope[TURN]():
            await send({"type": "http.response.start", "status": 200, "headers": []})

    app = CallerLimits(answer, named)
    app._pace = Noting()

    async def run() -> None:
        tokens = [{"authorization": f"Bearer ada-{i}"} for i in range(4)]
        await asyncio.gather(*(ask(app, "GET", "/", token) for token in tokens + tokens))

    asyncio.run(run())
    assert paced == ["user ada"] * 8
