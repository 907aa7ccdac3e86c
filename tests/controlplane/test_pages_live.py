"""The stream of live pages: it names what has changed, to those who may see it, and ends."""

import asyncio
import json

import pytest
from django.contrib.auth.models import User
from django.http import StreamingHttpResponse
from django.test import AsyncClient, Client

from clusters.models import NodeEvent
from controlplane.loop.models import Round
from controlplane.loop.pages import live_updates as live
from jobs.models import JobEvent
from tests.builders import a_cluster, a_job, a_team, a_user
from tests.builders_pages import Demo, a_busy_cluster, a_log, losses

pytestmark = pytest.mark.django_db


@pytest.fixture(name="demo")
def _demo() -> Demo:
    return a_busy_cluster()


def topics(user: User, since: live.Cursors) -> set[str]:
    found = live.changes_since(user.pk, since)
    assert found is not None
    return set(found[0])


def test_nothing_is_told_of_what_was_there_before(demo: Demo) -> None:
    assert topics(demo.user, live.newest()) == set()


def test_a_change_of_a_job_is_told_once(demo: Demo) -> None:
    start = live.newest()
    JobEvent.objects.create(job=demo.waiting, event="place")
    found = live.changes_since(demo.user.pk, start)
    assert found is not None
    told, cursors = found
    assert told == {"jobs", f"job:{demo.waiting.pk}"}
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
    first = live.changes_since(demo.user.pk, start)
    assert first is not None
    second = live.changes_since(demo.user.pk, first[1])
    assert second is not None
    assert "jobs" in second[0]
    assert topics(demo.user, second[1]) == set()


def test_who_may_no_longer_log_in_is_told_nothing(demo: Demo) -> None:
    User.objects.filter(pk=demo.user.pk).update(is_active=False)
    assert live.changes_since(demo.user.pk, live.newest()) is None


@pytest.mark.django_db(transaction=True)
def test_the_stream_tells_of_a_change_and_ends_by_itself() -> None:
    demo = a_busy_cluster()

    async def listen() -> list[str]:
        said: list[str] = []
        async for words in live.stream(demo.user.pk, turn_s=0.001, turns=4):
            if not said:
                await JobEvent.objects.acreate(job=demo.waiting, event="place")
            said.append(words)
        return said

    said = asyncio.run(listen())
    assert said[0].startswith("retry: ")
    assert json.loads(said[1].removeprefix("data: ")) == sorted(["jobs", f"job:{demo.waiting.pk}"])
    assert len(said) == 2


@pytest.mark.django_db(transaction=True)
def test_a_stream_ends_when_its_reader_is_locked_out() -> None:
    user = a_user()

    async def listen() -> list[str]:
        said = []
        async for words in live.stream(user.pk, turn_s=0.001, turns=100_000):
            said.append(words)
            await User.objects.filter(pk=user.pk).aupdate(is_active=False)
        return said

    assert len(asyncio.run(listen())) == 1


@pytest.mark.django_db(transaction=True)
def test_the_stream_is_served_as_events_that_nobody_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    user = a_user()
    monkeypatch.setattr(live, "TURN_S", 0.001)

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
