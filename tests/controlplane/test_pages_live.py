"""The stream of live pages: it names what has changed, to those who may see it, and ends."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.http import StreamingHttpResponse
from django.test import AsyncClient, Client
from django.utils import timezone

from clusters.models import NodeEvent
from controlplane.loop.models import Round
from controlplane.loop.pages import live_changes as live
from controlplane.loop.pages import live_updates
from controlplane.loop.pages.live_updates import LiveStreams
from jobs.models import JobEvent
from tests.builders import a_cluster, a_job, a_team, a_user
from tests.builders_pages import Demo, a_busy_cluster, a_log, losses

pytestmark = pytest.mark.django_db


@pytest.fixture(name="demo")
def _demo() -> Demo:
    return a_busy_cluster()


def a_reader(user: User) -> live.Reader:
    """A reader with a session of their own."""
    client = Client()
    client.force_login(user)
    return live.Reader.of(user, str(client.session.session_key))


def told(user: User, since: live.Cursors) -> tuple[set[str], live.Cursors]:
    reader = a_reader(user)
    found, after = live.look([reader], since)
    return set(found[reader]), after


def topics(user: User, since: live.Cursors) -> set[str]:
    return told(user, since)[0]


def heard(
    streams: LiveStreams, reader: live.Reader, turns: int, act: Any = None
) -> Coroutine[Any, Any, list[str]]:
    """Events of a stream in so many turns, `act` being done once it has begun."""

    async def listen() -> list[str]:
        said = list[str]()
        async for words in streams.stream(reader, turns=turns):
            if not said and act is not None:
                await act()
            said.append(words)
        return said

    return listen()


def test_nothing_is_told_of_what_was_there_before(demo: Demo) -> None:
    assert topics(demo.user, live.newest()) == set()


def test_a_change_of_a_job_is_told_once(demo: Demo) -> None:
    start = live.newest()
    JobEvent.objects.create(job=demo.waiting, event="place")
    found, cursors = told(demo.user, start)
    assert found == {"jobs", f"job:{demo.waiting.pk}"}
    assert topics(demo.user, cursors) == set()


def test_progress_and_logs_are_told(demo: Demo) -> None:
    running = demo.running.assignments.get(state="running")
    start = live.newest()
    a_log(running, "more\n", offset=10**6)
    assert topics(demo.user, start) == {f"job:{demo.running.pk}"}
    losses(running, count=2)
    assert topics(demo.user, start) == {"jobs", f"job:{demo.running.pk}"}


def test_another_teams_jobs_are_told_to_operators_only(demo: Demo) -> None:
    other = a_job(a_cluster(), team=a_team())
    start = live.newest()
    JobEvent.objects.create(job=other, event="place")
    assert topics(demo.user, start) == set()
    assert topics(demo.operator, start) == {"jobs", f"job:{other.pk}"}


def test_rounds_and_nodes_are_told_to_everybody(demo: Demo) -> None:
    start = live.newest()
    Round.objects.create(cluster=demo.cluster, number=99, policy="fifo", seed=1)
    NodeEvent.objects.create(node=demo.nodes[0], event="cordoned")
    assert topics(a_user(), start) == {"rounds", "nodes"}


def test_a_burst_is_told_in_turns(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_ROWS", 2)
    start = live.newest()
    JobEvent.objects.bulk_create(JobEvent(job=demo.waiting, event="place") for _ in range(3))
    _, cursors = told(demo.user, start)
    second, cursors = told(demo.user, cursors)
    assert "jobs" in second
    assert topics(demo.user, cursors) == set()


def locked_out(user: User) -> None:
    User.objects.filter(pk=user.pk).update(is_active=False)


def logged_out(user: User) -> None:
    Session.objects.all().delete()


def with_another_password(user: User) -> None:
    user.set_password("another long password")
    user.save()


def expired(user: User) -> None:
    Session.objects.update(expire_date=timezone.now())


ENDS = [locked_out, logged_out, with_another_password, expired]


@pytest.mark.parametrize("end", ENDS)
def test_who_is_no_longer_logged_in_is_told_nothing(demo: Demo, end: Any) -> None:
    reader = a_reader(demo.user)
    end(demo.user)
    assert live.look([reader], live.newest())[0] == {}


def test_one_look_serves_all_readers(demo: Demo, django_assert_max_num_queries: Any) -> None:
    start = live.newest()
    JobEvent.objects.create(job=demo.waiting, event="place")
    strangers = [a_reader(a_user()) for _ in range(5)]
    readers = [*(a_reader(demo.user) for _ in range(5)), a_reader(demo.operator), *strangers]
    with django_assert_max_num_queries(9):
        found, _ = live.look(readers, start)
    about = {"jobs", f"job:{demo.waiting.pk}"}
    assert [set(found[reader]) for reader in readers] == [about] * 6 + [set()] * 5


@pytest.mark.django_db(transaction=True)
def test_the_stream_tells_of_a_change_and_ends_by_itself() -> None:
    demo = a_busy_cluster()
    reader = a_reader(demo.user)

    async def change() -> None:
        await JobEvent.objects.acreate(job=demo.waiting, event="place")

    said = asyncio.run(heard(LiveStreams(turn_s=0.1), reader, 4, change))
    assert said[0].startswith("retry: ")
    assert json.loads(said[1].removeprefix("data: ")) == sorted(["jobs", f"job:{demo.waiting.pk}"])
    assert len(said) == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("end", ENDS)
def test_a_stream_ends_with_its_login(end: Any) -> None:
    user = a_user()

    async def stop() -> None:
        await sync_to_async(end)(user)

    streams = LiveStreams(turn_s=0.1)
    said = asyncio.run(heard(streams, a_reader(user), 100_000, stop))
    assert len(said) == 1
    assert not streams.is_full(user.pk)


@pytest.mark.django_db(transaction=True)
def test_many_streams_share_the_looks(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.STREAMS_PER_USER = 100
    looks = list[int]()

    def counted(readers: Any, cursors: Any) -> Any:
        looks.append(len(readers))
        return live.look(readers, cursors)

    monkeypatch.setattr(live_updates, "look", counted)
    readers = [a_reader(user) for user in (a_user(), a_user()) for _ in range(20)]
    streams = LiveStreams(turn_s=0.05)

    async def listen() -> list[list[str]]:
        return await asyncio.gather(*(heard(streams, reader, 5) for reader in readers))

    assert [len(said) for said in asyncio.run(listen())] == [1] * 40
    assert len(looks) <= 7
    assert max(looks) == 40


@pytest.mark.django_db(transaction=True)
def test_a_user_has_so_many_streams_and_others_have_theirs(settings: Any) -> None:
    settings.STREAMS_PER_USER = 3
    greedy, other = a_reader(a_user()), a_reader(a_user())
    streams = LiveStreams(turn_s=0.05)

    async def listen() -> list[list[str]]:
        return await asyncio.gather(
            *(heard(streams, reader, 2) for reader in [*[greedy] * 10, other])
        )

    said = asyncio.run(listen())
    assert [one[0] for one in said].count("retry: 30000\n\n") == 7
    assert said[-1][0].startswith("retry: 3000\n: welcome")


@pytest.mark.django_db(transaction=True)
def test_a_failed_look_ends_the_streams_and_the_next_one_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, streams = a_reader(a_user()), LiveStreams(turn_s=0.01)

    def fail(*_: object) -> None:
        raise OSError("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(live_updates, "look", fail)
        assert len(asyncio.run(heard(streams, reader, 100))) == 1
    assert len(asyncio.run(heard(streams, reader, 2))) == 1


@pytest.mark.django_db(transaction=True)
def test_a_stream_too_many_is_refused_with_the_limit_named(settings: Any) -> None:
    settings.STREAMS_PER_USER = 1
    user = a_user()

    async def ask() -> tuple[int, int, str, str]:
        client = AsyncClient()
        await client.aforce_login(user)
        first = await client.get("/live/")
        assert isinstance(first, StreamingHttpResponse)
        content = aiter(first.streaming_content)
        await anext(content)
        second = await client.get("/live/")
        first.close()
        return first.status_code, second.status_code, second["Retry-After"], second.content.decode()

    first, second, retry_s, words = asyncio.run(ask())
    assert (first, second, retry_s) == (200, 429, "30")
    assert "LOADMASTER_STREAMS_PER_USER" in words


@pytest.mark.django_db(transaction=True)
def test_the_stream_is_served_as_events_that_nobody_stores() -> None:
    user = a_user()

    async def ask() -> tuple[str, str, str, bytes]:
        client = AsyncClient()
        await client.aforce_login(user)
        answer = await client.get("/live/")
        assert isinstance(answer, StreamingHttpResponse)
        begin = await anext(aiter(answer.streaming_content))
        answer.close()
        return answer["Content-Type"], answer["Cache-Control"], answer["X-Accel-Buffering"], begin

    kind, caching, buffering, begin = asyncio.run(ask())
    assert (kind, caching, buffering) == ("text/event-stream", "no-cache", "no")
    assert begin.startswith(b"retry: ")


def test_a_server_that_cannot_stream_tells_browsers_not_to_ask_again(client: Client) -> None:
    client.force_login(a_user())
    assert client.get("/live/").status_code == 204
