"""The long poll: at once, soon, or not at all."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.utils import timezone

from clusters.models import Node
from controlplane.execution.protocol.app import AgentProtocol
from controlplane.execution.protocol.threads import Pools
from controlplane.execution.services.stops import stop_assignment
from jobs.models import Assignment
from loadmaster.protocol import StopReason
from tests.builders_agents import (
    NODE_TOKEN,
    a_heartbeat,
    a_node_with_agent,
    a_running_assignment,
    an_offer,
    heartbeat,
)
from tests.builders_asgi import Said, ask, close_threads, nothing

pytestmark = pytest.mark.django_db(transaction=True)
HEADERS = {"Loadmaster-Protocol": "1", "Authorization": f"Bearer {NODE_TOKEN}"}


PATH = "/api/agent/v1/nodes/{0}/directives?cursor={1}&wait={2}"


@pytest.fixture
def pools() -> Iterator[Pools]:
    pools = Pools()
    yield pools
    close_threads(pools.polls)


def _poll(node: Node, *, cursor: Any = 0, wait: Any = 0, headers: dict[str, str] = HEADERS) -> Said:
    pools = Pools()
    app, path = AgentProtocol(nothing, pools), PATH.format(node.pk, cursor, wait)
    said = asyncio.run(ask(app, "GET", path, headers))
    close_threads(pools.polls)
    return said


def test_what_is_wanted_already_is_answered_at_once() -> None:
    node = a_node_with_agent()
    offer = an_offer(node)
    answer = _poll(node, wait=25).json
    assert [(d["id"], d["action"]) for d in answer["directives"]] == [(str(offer.pk), "start")]
    assert answer["cursor"] > 0


def test_nothing_wanted_is_204() -> None:
    assert _poll(a_node_with_agent()).status == 204


def test_what_the_cursor_knows_is_not_told_again() -> None:
    node = a_node_with_agent()
    assignment = a_running_assignment(node)
    stop_assignment(assignment, StopReason.PREEMPT)
    cursor = _poll(node).json["cursor"]
    assert _poll(node, cursor=cursor).status == 204
    assert heartbeat(node.pk, a_heartbeat(assignment)).cursor == cursor
    stop_assignment(assignment, StopReason.CANCEL)
    (directive,) = _poll(node, cursor=cursor).json["directives"]
    assert directive["stop_reason"] == "cancel"


def test_a_cursor_from_before_the_clock_went_back_hides_nothing() -> None:
    node = a_node_with_agent()
    assignment = a_running_assignment(node)
    ahead = int((timezone.now() + timedelta(hours=1)).timestamp() * 1_000_000)
    stop_assignment(assignment, StopReason.PREEMPT)
    assert _poll(node, cursor=ahead).status == 204
    cursor = heartbeat(node.pk, replace(a_heartbeat(assignment), cursor=ahead)).cursor
    assert cursor < ahead
    stop_assignment(assignment, StopReason.CANCEL)
    (directive,) = _poll(node, cursor=cursor).json["directives"]
    assert directive["stop_reason"] == "cancel"


def test_a_wish_that_comes_up_while_the_agent_waits_is_answered_soon(pools: Pools) -> None:
    node = a_node_with_agent()
    assignment = a_running_assignment(node)

    async def wait_and_wish() -> Any:
        app, path = AgentProtocol(nothing, pools), PATH.format(node.pk, 0, 20)
        poll = asyncio.create_task(ask(app, "GET", path, HEADERS))
        await asyncio.sleep(0.3)
        assert not poll.done()
        await sync_to_async(_wish, thread_sensitive=False)(assignment)
        return await asyncio.wait_for(poll, 15)

    (directive,) = asyncio.run(wait_and_wish()).json["directives"]
    assert (directive["id"], directive["action"]) == (str(assignment.pk), "stop")


def _wish(assignment: Assignment) -> None:
    stop_assignment(assignment, StopReason.PREEMPT)
    connections.close_all()


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ({"headers": {**HEADERS, "Loadmaster-Protocol": "2"}}, 426),
        ({"headers": {"Loadmaster-Protocol": "1"}}, 401),
        ({"headers": {**HEADERS, "Authorization": "Bearer nobody's"}}, 401),
        ({"cursor": "abc"}, 400),
        ({"wait": "-5"}, 400),
        ({"wait": "nan"}, 400),
    ],
)
def test_a_poll_that_cannot_be_right_is_refused(values: dict[str, Any], status: int) -> None:
    answer = _poll(a_node_with_agent(), **values)
    assert answer.status == status
    assert answer.json["error"]["detail"]


def test_a_poll_for_another_node_is_refused() -> None:
    node = a_node_with_agent(token="the other's")
    a_node_with_agent(node.cluster)
    assert _poll(node).status == 403
