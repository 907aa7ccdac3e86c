"""Guards, answers and traces of the agent protocol, for whatever call."""

import asyncio
import json
import logging
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync
from django.conf import settings
from django.core.cache import cache
from django.db import OperationalError
from django.test import Client
from pydantic import ValidationError

from clusters.models import Node
from clusters.services.enrolment import issue_enrolment_token
from controlplane.execution.protocol.app import AgentProtocol
from controlplane.execution.protocol.calls import ENDPOINTS, LARGEST_REGISTRATION, Endpoint
from controlplane.execution.protocol.threads import OverloadedError, Pools, Threads
from controlplane.execution.services import assignments
from controlplane.web.http.request_metrics import http_registry
from controlplane.web.logs.middleware import log
from jobs.moves import LostRaceError
from loadmaster.protocol import Accept, Heartbeat, Registration, SessionRequest
from loadmaster.samples import MetricsBatch
from loadmaster.wire import dumps, form
from tests.builders import a_cluster, a_gpu_type
from tests.builders_agents import (
    NODE_TOKEN,
    a_heartbeat,
    a_node_with_agent,
    a_registration,
    a_running_assignment,
    an_offer,
)
from tests.builders_asgi import SameThread, SiteClient, ask, nothing, protocol

pytestmark = pytest.mark.django_db
HEADERS = {"Authorization": f"Bearer {NODE_TOKEN}", "Loadmaster-Protocol": "1"}


def beat(
    node: Node, body: bytes | None = None, headers: Mapping[str, str] | None = None, **words: Any
) -> Any:
    """The answer to a heartbeat; a header of "" is left out."""
    path = f"/api/agent/v1/nodes/{node.pk}/heartbeat"
    sent = {name: text for name, text in {**HEADERS, **(headers or {})}.items() if text}
    data = dumps(a_heartbeat(**words)) if body is None else body
    return SiteClient().generic("POST", path, data, headers=sent)


def test_a_heartbeat_is_answered_with_leases_and_wishes_and_the_time() -> None:
    node = a_node_with_agent()
    run, offer = a_running_assignment(node), an_offer(node)
    answer = beat(node, dumps(a_heartbeat(run)))
    assert (answer.status_code, answer["Content-Type"]) == (200, "application/json")
    assert float(answer["Loadmaster-Time"]) > 1.7e9
    assert [lease["id"] for lease in answer.json()["leases"]] == [str(run.pk)]
    assert [(d["id"], d["action"]) for d in answer.json()["directives"]] == [
        (str(offer.pk), "start")
    ]


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b" " * 3_000_000, {}, 413, "too_large"),
        (b"{}", {"Content-Length": "9" * 30}, 413, "too_large"),
        (b"{}", {"Content-Length": "-1"}, 400, "invalid"),
        (b"", {}, 400, "invalid"),
        (b"{", {}, 400, "invalid"),
        (b"[]", {}, 400, "invalid"),
        (b"[" * 100_000, {}, 400, "invalid"),
        (b"\xff\xfe\x00", {}, 400, "invalid"),
        (b'{"epoch": "one", "seq": 1, "sent_at_s": 0}', {}, 400, "invalid"),
        (dumps(a_heartbeat(epoch=7)), {}, 409, "stale_epoch"),
        (dumps(a_heartbeat(epoch=0)), {}, 409, "stale_epoch"),
        (None, {"Loadmaster-Protocol": "2"}, 426, "protocol"),
        (None, {"Loadmaster-Protocol": ""}, 426, "protocol"),
        (None, {"Authorization": ""}, 401, "token"),
        (None, {"Authorization": NODE_TOKEN}, 401, "token"),
        (None, {"Authorization": f"Basic {NODE_TOKEN}"}, 401, "token"),
        (None, {"Authorization": "Bearer"}, 401, "token"),
        (None, {"Authorization": f"Bearer {NODE_TOKEN} x"}, 401, "token"),
        (None, {"Authorization": "Bearer \x01\x02"}, 401, "token"),
        (None, {"Authorization": "Bearer \xe9"}, 401, "token"),
        (None, {"Host": "elsewhere.example"}, 400, "host"),
        (None, {"Host": "a b"}, 400, "host"),
    ],
)
def test_a_heartbeat_that_is_not_in_order_is_refused_in_one_form(
    body: bytes | None, headers: Mapping[str, str], status: int, code: str
) -> None:
    node = a_node_with_agent()
    answer = beat(node, body, headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.json()["error"]["detail"]
    assert ("WWW-Authenticate" in answer) == (status == 401)
    assert Node.objects.get().heartbeat_seq == 0


@pytest.mark.django_db(transaction=True)
def test_a_body_in_pieces_must_say_how_long_it_is_and_is_not_read_beyond_the_limit() -> None:
    path = f"/api/agent/v1/nodes/{a_node_with_agent().pk}/session"
    chunked = {**HEADERS, "Transfer-Encoding": "chunked"}

    async def play() -> list[int]:
        unsized = await ask(protocol(), "POST", path, {**chunked, "content-length": ""}, b"{}")
        large = await ask(
            protocol(), "POST", path, {**chunked, "content-length": "2"}, b" " * 10**7
        )
        return [unsized.status, large.status]

    assert asyncio.run(play()) == [411, 413]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("endpoint", [e for e in ENDPOINTS if not e.enrols], ids=lambda e: e.name)
def test_nothing_is_read_of_a_body_whose_sender_has_no_nodes_token(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_node_with_agent()
    path = re.sub(r"<uuid:\w+>", str(uuid4()), endpoint.path).replace("<str:stream>", "stdout")
    read = list[int]()

    async def read_body(receive: object, limit: int) -> bytes:
        read.append(limit)
        return b""

    monkeypatch.setattr("controlplane.execution.protocol.app.read_body", read_body)
    for token in ("nobody's", NODE_TOKEN):
        headers = {**HEADERS, "Authorization": f"Bearer {token}"}
        status = asyncio.run(ask(protocol(), endpoint.method, path, headers)).status
        assert (status == 401) is (token != NODE_TOKEN)
        assert bool(read) is (token == NODE_TOKEN and endpoint.takes is not None)


async def of_fifty_agents() -> set[int]:
    """Statuses of the first calls of fifty agents at once."""
    app, path = protocol(), f"/api/agent/v1/nodes/{uuid4()}/directives"
    tokens = [{**HEADERS, "Authorization": f"Bearer {number}"} for number in range(50)]
    said = await asyncio.gather(*(ask(app, "GET", path, headers) for headers in tokens))
    return {one.status for one in said}


def test_the_first_calls_of_many_agents_are_asked_for_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = list[int]()

    def known_tokens(tokens: Sequence[str]) -> set[str]:
        asked.append(len(tokens))
        return set()

    monkeypatch.setattr("controlplane.execution.protocol.app.known_tokens", known_tokens)
    assert asyncio.run(of_fifty_agents()) == {401}
    assert sum(asked) == 50
    assert len(asked) <= 3


def test_a_database_that_is_away_is_noted_once_for_the_agents_that_ask_together(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    away = Mock(side_effect=OperationalError("unable to open database file"))
    monkeypatch.setattr("controlplane.execution.protocol.app.known_tokens", away)
    assert asyncio.run(of_fifty_agents()) == {503}
    assert len([one for one in caplog.records if one.levelno >= logging.WARNING]) <= 3


def test_tokens_are_asked_for_while_other_calls_keep_their_threads_busy() -> None:
    node, busy = a_node_with_agent(), Threads("agent-calls", 1)
    same, done = SameThread("unused", 1), threading.Event()
    app = AgentProtocol(nothing, Pools(busy, same, same, same))

    async def play() -> int:
        kept = asyncio.create_task(busy.run(done.wait, 60))
        await asyncio.sleep(0)
        path = f"/api/agent/v1/nodes/{node.pk}/heartbeat"
        said = await ask(app, "POST", path, HEADERS, dumps(a_heartbeat()))
        assert not kept.done()
        done.set()
        await kept
        return said.status

    assert async_to_sync(play)() == 200


@pytest.mark.parametrize("of", [Heartbeat, MetricsBatch, SessionRequest, Registration])
def test_reading_a_list_ends_at_its_first_wrong_item(of: type[object]) -> None:
    fields = form(of).schema("", 1)["properties"]
    lists = [name for name, field in fields.items() if field.get("type") == "array"]
    assert lists
    for name in lists:
        with pytest.raises(ValidationError) as refused:
            form(of).adapter.validate_json(json.dumps({name: [None] * 1000}))
        assert sum(error["loc"][0] == name for error in refused.value.errors()) == 1


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "nodes/{0}/heartbeat/", 404),
        ("POST", "nodes/{1}/heartbeat", 404),
        ("POST", "nodes/x/heartbeat", 404),
        ("POST", "nodes/{0}/x/heartbeat", 404),
        ("GET", "", 404),
        ("GET", "nodes/{0}/heartbeat", 405),
        ("POST", "nodes/{0}/directives", 405),
        ("HEAD", "nodes/{0}/directives", 405),
        ("OPTIONS", "register", 405),
    ],
)
def test_other_addresses_and_methods_are_refused(method: str, path: str, status: int) -> None:
    node = a_node_with_agent()
    address = "/api/agent/v1/" + path.format(node.pk, str(node.pk).upper())
    answer = SiteClient().generic(method, address, b"", headers=HEADERS)
    assert answer.status_code == status
    assert ("Allow" in answer) == (status == 405)


def test_with_tls_on_a_request_without_it_is_sent_to_the_same_address(settings: Any) -> None:
    settings.SECURE_SSL_REDIRECT = True
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    node = a_node_with_agent()
    answer = beat(node)
    assert answer.status_code == 301
    assert answer["Location"] == f"https://testserver/api/agent/v1/nodes/{node.pk}/heartbeat"
    assert beat(node, headers={"X-Forwarded-Proto": "https"}).status_code == 200
    settings.SECURE_PROXY_SSL_HEADER = None
    assert beat(node, headers={"X-Forwarded-Proto": "https"}).status_code == 301


def test_answers_have_the_security_headers_of_the_rest_of_the_api() -> None:
    agents, people = beat(a_node_with_agent()), Client().get("/api/v1/jobs/")
    own = {"content-length", "x-request-id", "vary", "allow", "www-authenticate"}
    expected = {k.lower(): v for k, v in people.headers.items() if k.lower() not in own}
    assert "content-security-policy" in expected
    assert {k.lower(): v for k, v in agents.headers.items()}.items() >= expected.items()


@pytest.mark.parametrize("given", ["a-clients-own-id", "x", ""])
def test_a_sane_request_id_is_sent_back_and_another_one_replaced(given: str) -> None:
    found = beat(a_node_with_agent(), headers={"X-Request-ID": given})["X-Request-ID"]
    assert found == given if given == "a-clients-own-id" else len(found) == 32


def counted(route: str, status: int) -> float:
    """How often /metrics has seen that by now."""
    labels = {"method": "POST", "route": route, "status": str(status)}
    return http_registry().get_sample_value("loadmaster_http_requests_total", labels) or 0.0


@pytest.mark.parametrize(("token", "status"), [(NODE_TOKEN, 200), ("nobody's", 401)])
def test_answers_are_counted_and_logged_by_route(
    caplog: pytest.LogCaptureFixture, token: str, status: int
) -> None:
    caplog.set_level(logging.DEBUG, log.name)
    route = "/api/agent/v1/nodes/<uuid:node_id>/heartbeat"
    before = counted(route, status)
    beat(a_node_with_agent(), headers={"Authorization": f"Bearer {token}"})
    assert counted(route, status) == before + 1
    (line,) = [record for record in caplog.records if record.name == log.name]
    assert line.levelno == (logging.DEBUG if status < 400 else logging.INFO)
    fields = dict(line.__dict__["loadmaster"])
    assert fields.pop("ms") >= 0
    assert fields == {"method": "POST", "route": route, "status": status}


class Failing:
    """A service that fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "status", "code", "retry_after"),
    [
        (OperationalError("database or disk is full"), 507, "disk_full", "10"),
        (OperationalError("unable to open database file"), 503, "database_away", "10"),
        (OverloadedError(), 503, "overloaded", "1"),
        (LostRaceError("a row"), 503, "race", "1"),
        (ValueError("nobody thought of it"), 500, "server_error", None),
    ],
)
def test_a_call_that_fails_is_answered_with_the_cause_and_when_to_come_back(
    monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, code: str, retry_after: str
) -> None:
    monkeypatch.setattr(assignments, "accept", Failing(error))
    offer = an_offer(a_node_with_agent())
    path = f"/api/agent/v1/assignments/{offer.pk}/accept"
    answer = SiteClient().put(path, dumps(Accept(1, offer.fence)), headers=HEADERS)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.get("Retry-After") == retry_after


def test_an_agent_with_a_wrong_token_is_never_throttled() -> None:
    node = a_node_with_agent()
    tries = max(failures for failures, _ in settings.THROTTLES.values()) + 1
    wrong = {"Authorization": "Bearer nobody's"}
    assert {beat(node, headers=wrong).status_code for _ in range(tries)} == {401}


def test_only_wrong_tokens_count_at_the_door(settings: Any) -> None:
    settings.THROTTLES = {**settings.THROTTLES, "enrolment:address": (2, 300)}
    cache.clear()
    a_gpu_type()
    token = issue_enrolment_token(a_cluster())

    def enrol(token: str, body: bytes) -> Any:
        headers = {"Loadmaster-Protocol": "1", "Authorization": f"Bearer {token}"}
        return SiteClient().generic("POST", "/api/agent/v1/register", body, headers=headers)

    good = dumps(a_registration())
    assert [enrol(token, b"{}").status_code for _ in range(5)] == [400] * 5
    assert enrol(token, b" " * LARGEST_REGISTRATION + b"{}").status_code == 413
    assert [enrol("a guess", body).status_code for body in (good, b"{}", b"{}")] == [401, 401, 429]
    refused = enrol(token, good)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "throttled")
    assert 0 < int(refused["Retry-After"]) <= 301


def test_every_call_is_in_the_openapi_document_and_others_are_not(schema: Any) -> None:
    documented = {
        (method.upper(), path)
        for path, methods in schema["paths"].items()
        if path.startswith("/api/agent/")
        for method in methods
    }
    assert documented == {
        (e.method, e.path.replace("<uuid:", "{").replace("<str:", "{").replace(">", "}"))
        for e in ENDPOINTS
    }


@pytest.fixture
def schema() -> Any:
    from drf_spectacular.generators import SchemaGenerator

    generator: Any = SchemaGenerator  # the library's signatures lack types
    return generator().get_schema(request=None, public=True)


def test_what_is_no_call_of_an_agent_goes_on_to_django() -> None:
    passed: list[str] = []

    async def django(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["path"])
        await send({"type": "http.response.start", "status": 299, "headers": []})

    app = AgentProtocol(django)
    assert asyncio.run(ask(app, "GET", "/api/v1/jobs/", {})).status == 299
    assert passed == ["/api/v1/jobs/"]
    assert asyncio.run(ask(AgentProtocol(nothing), "GET", "/api/agent/v1/x", {})).status == 404
