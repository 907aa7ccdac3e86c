"""One caller's requests at once are limited; threads are few, lasting, and shared by callers."""

import asyncio
import threading
from collections.abc import Awaitable, Sequence
from io import BytesIO
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.http import HttpRequest
from django.test import Client

from controlplane.web.credentials.users import Credential
from controlplane.web.http.asgi import ThreadedHandler
from controlplane.web.http.callers import PROBES, THREADS_EACH, CallerLimits, limited
from tests.builders import a_user
from tests.builders_asgi import Answering, Said, ask, named
from tests.builders_jobs import a_token

BODY = BytesIO()
COOKIE = django_settings.SESSION_COOKIE_NAME


class Slow(Answering):
    """Eight threads; /slow is answered once it may `go_on`. `begun`: paths that have a thread."""

    def __init__(self) -> None:
        super().__init__(self._begin, most=8)
        self.go_on, self.begun = threading.Event(), list[str]()

    def _begin(self, request: HttpRequest) -> None:
        self.begun.append(request.path)
        if request.path == "/slow":
            self.go_on.wait(30)


class Gate:
    """An application that keeps requests until it is opened."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.seen = 0

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self.seen += 1
        await self.opened.wait()
        kind = b"text/event-stream" if scope["path"] == "/live/" else b"text/plain"
        headers = [(b"content-type", kind)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"let in"})


def test_one_caller_takes_some_of_the_threads_and_others_find_one() -> None:
    statuses, other = asyncio.run(beside_a_flood("eve", "127.0.0.1"))
    assert (statuses, other) == ([200] * 20, 200)


def test_strangers_of_all_addresses_share_some_of_the_threads() -> None:
    statuses, other = asyncio.run(beside_a_flood("", "192.0.2.{}"))
    assert (statuses, other) == ([200] * 20, 200)


def test_who_hangs_up_keeps_no_more_threads_than_who_waits() -> None:
    slow = Slow()
    app = CallerLimits(slow, named)

    async def run() -> int:
        eve = {"authorization": "Bearer eve"}
        calls = [ask(app, "GET", "/slow", eve, leaves_after_s=0.02) for _ in range(20)]
        flood = [asyncio.ensure_future(call) for call in calls]
        while sum(call.done() for call in flood) < len(flood) - THREADS_EACH:
            await asyncio.sleep(0.01)  # the first ones have left too, but their threads are at work
        other = await asyncio.wait_for(ask(app, "GET", "/", {"authorization": "Bearer ada"}), 10)
        slow.go_on.set()
        assert {said.status for said in await asyncio.gather(*flood)} == {0}
        return other.status

    assert asyncio.run(run()) == 200
    assert slow.begun.count("/slow") == THREADS_EACH
    slow.close()


def test_a_user_with_new_tokens_keeps_no_stranger_waiting() -> None:
    slow = Slow()
    app = CallerLimits(slow, named)

    async def run() -> int:
        calls = [ask(app, "GET", "/slow", {"authorization": f"Bearer eve-{i}"}) for i in range(6)]
        flood = [asyncio.ensure_future(call) for call in calls]
        while slow.begun.count("/slow") < THREADS_EACH:
            await asyncio.sleep(0.01)
        login = await asyncio.wait_for(ask(app, "POST", "/login/", {}), 10)
        assert slow.begun.count("/slow") == THREADS_EACH
        slow.go_on.set()
        await asyncio.gather(*flood)
        return login.status

    assert asyncio.run(run()) == 200
    slow.close()


def test_slow_probes_do_not_delay_the_one_that_says_that_the_server_lives() -> None:
    slow = threading.Event()
    app = Answering(lambda request: request.path == "/healthz" or slow.wait(10))

    async def play() -> int:
        limits = limited(app)
        slowly = [ask(limits, "GET", "/readyz", {}, client=f"10.0.0.{i}") for i in range(3)]
        others = [asyncio.create_task(one) for one in slowly]
        await asyncio.sleep(0)
        said = await asyncio.wait_for(ask(limits, "GET", "/healthz", {}), 5)
        slow.set()
        await asyncio.gather(*others)
        return said.status

    assert asyncio.run(play()) == 200
    app.close()


def test_a_probe_is_answered_while_strangers_keep_their_threads() -> None:
    slow = Slow()
    app = CallerLimits(slow, named)

    async def run() -> list[int]:
        calls = [ask(app, "GET", "/slow", {}, client=f"192.0.2.{i}") for i in range(5)]
        flood = [asyncio.ensure_future(call) for call in calls]
        await asyncio.sleep(0.05)
        token = {"authorization": "Bearer of-prometheus"}
        probes = [await asyncio.wait_for(ask(app, "GET", path, token), 10) for path in PROBES]
        slow.go_on.set()
        await asyncio.gather(*flood)
        return [said.status for said in probes]

    assert asyncio.run(run()) == [200] * 3
    slow.close()


def test_unknown_credentials_of_one_address_keep_no_other_waiting() -> None:
    handler, known = Answering(lambda _: None), asyncio.Event()

    async def whose(credential: Credential) -> object:
        if credential.text.startswith("junk"):
            await known.wait()
            return None
        return credential.text

    app = CallerLimits(handler, whose)

    async def run() -> tuple[int, list[int]]:
        tokens = [{"authorization": f"Bearer junk-{i}"} for i in range(20)]
        calls = [ask(app, "GET", "/", token, client="192.0.2.1") for token in tokens]
        flood = [asyncio.ensure_future(call) for call in calls]
        await asyncio.sleep(0.05)
        ada = await asyncio.wait_for(ask(app, "GET", "/", {"authorization": "Bearer ada"}), 10)
        known.set()
        return ada.status, [said.status for said in await asyncio.gather(*flood)]

    assert asyncio.run(run()) == (200, [200] * 20)
    handler.close()


async def beside_a_flood(user: str, address: str) -> tuple[list[int], int]:
    """Statuses of a flood that keeps its threads until another user, ada, has been answered."""
    go_on, together = threading.Event(), threading.Barrier(THREADS_EACH)
    slow = Answering(lambda request: request.path == "/slow" and _wait(together, go_on), most=8)
    app = CallerLimits(slow, named)
    tokens = {name: {"authorization": f"Bearer {name}"} for name in ("ada", "eve")}
    calls = [
        ask(app, "GET", "/slow", tokens.get(user, {}), client=address.format(i)) for i in range(20)
    ]
    flood = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(0.05)
    other = await asyncio.wait_for(ask(app, "GET", "/", tokens["ada"]), 30)
    go_on.set()
    statuses = [said.status for said in await asyncio.gather(*flood)]
    slow.close()
    return statuses, other.status


def _wait(together: threading.Barrier, go_on: threading.Event) -> bool:
    """Wait until one caller has all the threads that it may have; later ones find it open."""
    if not go_on.is_set():
        together.wait(30)
    return go_on.wait(30)


async def flood(
    app: CallerLimits, gate: Gate, calls: Sequence[Awaitable[Said]], late: Sequence[Awaitable[Said]]
) -> tuple[list[Said], list[Said]]:
    """Answers to calls at once, and to later ones after which the gate opens."""
    first = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(0.05)
    others = [asyncio.ensure_future(call) for call in late]
    await asyncio.sleep(0.05)
    gate.opened.set()
    return await asyncio.gather(*first), await asyncio.gather(*others)


def test_an_address_is_refused_beyond_its_limit_and_another_is_not(settings: Any) -> None:
    settings.REQUESTS_PER_ADDRESS = 5

    async def run() -> tuple[list[Said], list[Said], int]:
        gate = Gate()
        app = CallerLimits(gate, named)
        calls = [ask(app, "GET", "/", {}) for _ in range(30)]
        late = [ask(app, "GET", "/", {}, client="192.0.2.7")]
        first, others = await flood(app, gate, calls, late)
        again = await ask(app, "GET", "/", {})
        return first, [*others, again], gate.seen

    first, others, seen = asyncio.run(run())
    assert sorted(said.status for said in first) == [200] * 5 + [429] * 25
    assert [said.status for said in others] == [200, 200]
    assert seen == 7
    refused = next(said for said in first if said.status == 429)
    assert refused.headers["retry-after"] == "1"
    assert b"LOADMASTER_REQUESTS_PER_ADDRESS" in refused.body
    assert int(refused.headers["content-length"]) == len(refused.body)


def test_a_user_with_many_tokens_is_one_caller_whatever_the_address(settings: Any) -> None:
    settings.REQUESTS_PER_USER = 4

    async def run() -> tuple[list[Said], list[Said]]:
        gate = Gate()
        app = CallerLimits(gate, named)
        calls = [
            ask(
                app,
                "POST",
                "/api/v1/x/",
                {"authorization": f"Bearer ada-{i % 6}"},
                client=f"192.0.2.{i}",
            )
            for i in range(30)
        ]
        late = [ask(app, "GET", "/", {"authorization": "Bearer eve-1"}) for _ in range(3)]
        return await flood(app, gate, calls, late)

    first, others = asyncio.run(run())
    assert sorted(said.status for said in first) == [200] * 4 + [429] * 26
    assert [said.status for said in others] == [200] * 3
    error = next(said for said in first if said.status == 429).json["error"]
    assert error["code"] == "too_many_requests"
    assert "LOADMASTER_REQUESTS_PER_USER" in error["detail"]


@pytest.mark.django_db(transaction=True)
def test_django_tells_whose_a_token_or_a_session_is() -> None:
    ada, eve = a_user("ada"), a_user("eve")
    client = Client()
    client.force_login(eve)
    session = {"cookie": f"{COOKIE}={client.session.session_key}"}
    token = {"authorization": f"Bearer {a_token(ada)}"}
    handler = ThreadedHandler()
    app = limited(handler)

    async def run() -> list[int]:
        calls = [("/api/v1/jobs/", token), ("/", session), ("/api/v1/jobs/", {"cookie": "a=b"})]
        calls.append(("/api/v1/jobs/", {"authorization": "Bearer of nobody"}))
        return [(await ask(app, "GET", path, headers)).status for path, headers in calls]

    assert asyncio.run(run()) == [200, 200, 401, 401]
    assert [user for user, _ in app._users._known.values()] == [f"user {ada.pk}", f"user {eve.pk}"]
    handler.close()


def test_a_stream_that_has_begun_is_no_request_any_more(settings: Any) -> None:
    settings.REQUESTS_PER_ADDRESS = 1

    async def run() -> list[int]:
        began, over = asyncio.Event(), asyncio.Event()

        async def streaming(scope: dict[str, Any], receive: Any, send: Any) -> None:
            headers = [(b"Content-Type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            began.set()
            await over.wait() if scope["path"] == "/live/" else None
            await send({"type": "http.response.body", "body": b""})

        app = CallerLimits(streaming, named)
        stream = asyncio.create_task(ask(app, "GET", "/live/", {}))
        await began.wait()
        second = await ask(app, "GET", "/", {})
        over.set()
        return [second.status, (await stream).status, len(app._callers)]

    assert asyncio.run(run()) == [200, 200, 0]


def test_a_failure_ends_the_visit_too() -> None:
    async def failing(scope: dict[str, Any], receive: Any, send: Any) -> None:
        raise OSError("the client is gone")

    app = CallerLimits(failing, named)
    with pytest.raises(OSError, match="gone"):
        asyncio.run(ask(app, "GET", "/", {}))
    assert not app._callers
