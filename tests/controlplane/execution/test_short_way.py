"""The short way of heartbeats and long polls: what it takes, what it leaves to Django, and that
both answer alike.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.test import AsyncClient

from clusters.models import Node
from controlplane.execution.protocol import heartbeat_batch as beats
from controlplane.execution.protocol.asgi import ShortWay
from controlplane.execution.protocol.polls import LOOKS
from controlplane.web.http.fast_path import Message, Receive, Scope, Send
from jobs.models import Assignment
from loadmaster.wire import dumps
from tests.builders_agents import (
    NODE_TOKEN,
    a_heartbeat,
    a_node_with_agent,
    a_running_assignment,
    an_offer,
)
from tests.builders_ways import close_threads

pytestmark = pytest.mark.django_db(transaction=True)

Headers = dict[str, str]
HEADERS = {"host": "localhost", "loadmaster-protocol": "1", "authorization": f"Bearer {NODE_TOKEN}"}
LEFT_TO_DJANGO = 299


@pytest.fixture(autouse=True)
def _close_connections() -> Iterator[None]:
    yield
    close_threads(beats.TOGETHER, beats.ALONE, LOOKS)


async def _django(scope: Scope, receive: Receive, send: Send) -> None:
    """Stands for Django: says that it was asked, and for what."""
    body = (await receive())["body"]
    await send({"type": "http.response.start", "status": LEFT_TO_DJANGO, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def _send(
    way: ShortWay, method: str, path: str, headers: Headers, body: bytes = b""
) -> tuple[int, Any, Headers]:
    """The answer's status, its body (parsed where it is ours) and headers. The body comes in two
    pieces.
    """
    path, _, query = path.partition("?")
    pieces = [body[:5], body[5:]]
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message: Message) -> None:
        sent.append(message)

    declared = {"content-length": str(len(body))} if method == "POST" else {}
    raw = [
        (name.encode(), value.encode()) for name, value in {**declared, **headers}.items() if value
    ]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": raw,
        "scheme": "http",
    }
    await way(scope, receive, send)
    status, text = sent[0]["status"], sent[1]["body"]
    said = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return status, json.loads(text) if text and status != LEFT_TO_DJANGO else text, said


def _beat(
    node: Node,
    *assignments: Assignment,
    headers: Headers = HEADERS,
    body: bytes | None = None,
    **words: Any,
) -> Any:
    path = f"/api/agent/v1/nodes/{node.pk}/heartbeat"
    return _send(
        ShortWay(_django),
        "POST",
        path,
        headers,
        body if body is not None else dumps(a_heartbeat(*assignments, **words)),
    )


def test_a_heartbeat_in_order_is_answered_as_django_would_and_never_gets_there() -> None:
    node = a_node_with_agent()
    assignment, offer = a_running_assignment(node), an_offer(node)
    status, answer, headers = asyncio.run(_beat(node, assignment))
    assert (status, headers["content-type"], headers["x-content-type-options"]) == (
        200,
        "application/json",
        "nosniff",
    )
    assert [lease["id"] for lease in answer["leases"]] == [str(assignment.pk)]
    assert [(d["id"], d["action"]) for d in answer["directives"]] == [(str(offer.pk), "start")]
    path = f"/api/agent/v1/nodes/{node.pk}/heartbeat"
    django = asyncio.run(_by_django("POST", path, HEADERS, dumps(a_heartbeat(assignment, seq=2))))
    assert django == (200, answer)


async def _by_django(
    method: str, path: str, headers: Headers, body: bytes = b""
) -> tuple[int, Any]:
    own = {name: value for name, value in headers.items() if name != "host"}
    answer = await AsyncClient().generic(
        method, path, body, content_type="application/json", headers=own
    )
    await sync_to_async(connections.close_all)()  # of the thread in which Django has answered
    return answer.status_code, json.loads(answer.content)


@pytest.mark.parametrize(
    ("headers", "epoch", "status"),
    [
        ({"authorization": "Bearer nobody's"}, 1, 401),
        ({"authorization": "Bearer another's"}, 1, 403),
        ({}, 7, 409),
        ({}, 0, 409),
    ],
)
def test_what_the_short_way_refuses_itself_is_worded_as_django_words_it(
    headers: Headers, epoch: int, status: int
) -> None:
    node = a_node_with_agent()
    a_node_with_agent(node.cluster, token="another's")
    sent = {**HEADERS, **headers}
    short, answer, _ = asyncio.run(_beat(node, headers=sent, epoch=epoch))
    path = f"/api/agent/v1/nodes/{node.pk}/heartbeat"
    assert (short, answer) == asyncio.run(
        _by_django("POST", path, sent, dumps(a_heartbeat(epoch=epoch)))
    )
    assert short == status


@pytest.mark.parametrize(
    "headers",
    [
        {"loadmaster-protocol": "2"},
        {"loadmaster-protocol": ""},
        {"authorization": ""},
        {"authorization": "Basic abc"},
        {"host": "evil.example"},
        {"host": ""},
        {"content-length": ""},
        {"content-length": "99999999"},
        {"content-length": "-1"},
        {"transfer-encoding": "chunked"},
    ],
)
def test_what_is_not_plainly_in_order_is_left_to_django_untouched(headers: Headers) -> None:
    status, _, _ = asyncio.run(_beat(a_node_with_agent(), headers={**HEADERS, **headers}))
    assert status == LEFT_TO_DJANGO


@pytest.mark.parametrize(
    "body", [b"", b"no JSON", b"{}", b'{"epoch": "one", "seq": 1, "sent_at_s": 0}', b"[" * 100_000]
)
def test_a_body_that_does_not_fit_goes_to_django_whole(body: bytes) -> None:
    status, seen, _ = asyncio.run(_beat(a_node_with_agent(), body=body))
    assert (status, seen) == (LEFT_TO_DJANGO, body)


@pytest.mark.parametrize(
    "path", ["{0}/session", "{0}/heartbeat/", "{1}/heartbeat", "x/heartbeat", "{0}/x/heartbeat"]
)
def test_other_addresses_are_djangos(path: str) -> None:
    node = a_node_with_agent()
    address = "/api/agent/v1/nodes/" + path.format(node.pk, str(node.pk).upper())
    status, _, _ = asyncio.run(_send(ShortWay(_django), "POST", address, HEADERS, b"123456"))
    assert status == LEFT_TO_DJANGO


def test_a_request_without_tls_is_left_to_djangos_redirect(settings: Any) -> None:
    settings.SECURE_SSL_REDIRECT = True
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    node = a_node_with_agent()
    assert asyncio.run(_beat(node))[0] == LEFT_TO_DJANGO
    assert asyncio.run(_beat(node, headers={**HEADERS, "x-forwarded-proto": "https"}))[0] == 200


def test_many_that_arrive_together_are_taken_together_and_one_refused_harms_nobody() -> None:
    first = a_node_with_agent(token="0")
    nodes = [first, *(a_node_with_agent(first.cluster, token=str(n)) for n in range(1, 5))]
    way = ShortWay(_django)

    async def all_at_once() -> list[Any]:
        words = [a_heartbeat(epoch=9 if n == 2 else 1) for n in range(5)]
        heads = [{**HEADERS, "authorization": f"Bearer {n}"} for n in range(5)]
        paths = [f"/api/agent/v1/nodes/{node.pk}/heartbeat" for node in nodes]
        calls = [
            _send(way, "POST", path, head, dumps(word))
            for path, head, word in zip(paths, heads, words, strict=True)
        ]
        return list(await asyncio.gather(*calls))

    assert [status for status, _, _ in asyncio.run(all_at_once())] == [200, 200, 409, 200, 200]


def test_a_nodes_heartbeats_that_arrive_together_are_all_answered() -> None:
    node = a_node_with_agent()
    way, path = ShortWay(_django), f"/api/agent/v1/nodes/{node.pk}/heartbeat"

    async def all_at_once() -> list[Any]:
        return list(
            await asyncio.gather(
                *(_send(way, "POST", path, HEADERS, dumps(a_heartbeat(seq=n))) for n in (1, 2, 3))
            )
        )

    assert [status for status, _, _ in asyncio.run(all_at_once())] == [200, 200, 200]
    assert Node.objects.get().heartbeat_seq == 3


def test_a_batch_that_fails_is_taken_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise ValueError("a row nobody thought of")

    monkeypatch.setattr(beats, "renew_all", fail)
    node = a_node_with_agent()
    assignment = a_running_assignment(node)
    status, answer, _ = asyncio.run(_beat(node, assignment))
    assert (status, len(answer["leases"])) == (200, 1)


def test_more_than_can_be_answered_in_time_are_told_to_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(beats, "WAITING", 0)
    node = a_node_with_agent()
    way, path = ShortWay(_django), f"/api/agent/v1/nodes/{node.pk}/heartbeat"

    async def two() -> list[Any]:
        return list(
            await asyncio.gather(
                *(_send(way, "POST", path, HEADERS, dumps(a_heartbeat(seq=n))) for n in (1, 2))
            )
        )

    (taken, _, _), (status, answer, headers) = asyncio.run(two())
    assert (taken, status, answer["error"]["code"], headers["retry-after"]) == (
        200,
        503,
        "overloaded",
        "1",
    )


def test_a_long_poll_takes_the_short_way_too() -> None:
    node = a_node_with_agent()
    way, path = ShortWay(_django), f"/api/agent/v1/nodes/{node.pk}/directives?cursor=0&wait=0"
    status, nothing, headers = asyncio.run(_send(way, "GET", path, HEADERS))
    assert (status, nothing, "content-length" in headers) == (204, b"", False)
    offer = an_offer(node)
    status, answer, _ = asyncio.run(_send(way, "GET", path, HEADERS))
    assert (status, [d["id"] for d in answer["directives"]]) == (200, [str(offer.pk)])


def test_a_poll_that_is_written_otherwise_is_djangos() -> None:
    path = f"/api/agent/v1/nodes/{a_node_with_agent().pk}/directives?wait=5&cursor=-1"
    assert asyncio.run(_send(ShortWay(_django), "GET", path, HEADERS))[0] == LEFT_TO_DJANGO
