"""With the short ways in front, everybody gets the answer that Django alone would have given, and
leaves the same traces.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

import pytest
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.cache import cache
from django.urls import resolve
from django.utils import timezone
from knox.models import get_token_model

from clusters.models import Node
from controlplane.execution.protocol import heartbeat_batch as beats
from controlplane.execution.protocol.asgi import ROUTES, ShortWay
from controlplane.execution.protocol.polls import LOOKS
from controlplane.web.http.fast_path import Receive, Scope, Send, security_headers
from controlplane.web.http.guard import WHOLE
from controlplane.web.http.lasting_threads import LastingThreads
from controlplane.web.http.metrics import http_registry
from controlplane.web.logs.middleware import log
from jobs.models import Job
from jobs.rest.asgi import PATH, ROUTE, Submissions
from jobs.rest.batcher import THREADS
from loadmaster.wire import dumps
from tests.builders import a_team, a_user
from tests.builders_agents import NODE_TOKEN, a_heartbeat, a_node_with_agent, an_offer
from tests.builders_jobs import a_token, job_fields
from tests.builders_ways import App, Said, ask, close_threads

pytestmark = pytest.mark.django_db(transaction=True)

DJANGO = LastingThreads(get_asgi_application())
OWN = {"x-request-id", "allow", "content-length", "loadmaster-time"}
"""Headers that differ: each request's id, what the API's own description of a resource says of it,
spaces in JSON, the time.
"""

LARGE = b'{"name": "' + b"a" * 10_000_000 + b'"}'


@dataclass(frozen=True, slots=True)
class House:
    """A node, and tokens by what is wrong with them ("" where nothing is)."""

    node: Node
    users: Mapping[str, str]
    nodes: Mapping[str, str]


@pytest.fixture
def house() -> Iterator[House]:
    node = a_node_with_agent()
    a_node_with_agent(node.cluster, token="anothers")
    user, left = a_user("ada", team=a_team("vision")), a_user("bob", team=a_team("other"))
    model, token, inactive = get_token_model(), a_token(user), a_token(left)
    left.is_active = False
    left.save()
    revoked, gone = model.objects.create(user)
    revoked.delete()
    expired, old = model.objects.create(user)
    model.objects.filter(pk=expired.pk).update(expiry=timezone.now() - timedelta(seconds=1))
    wrong = {
        "none": "", "no scheme": token, "another scheme": f"Basic {token}", "no token": "Bearer",
        "short": f"Bearer {token[:-1]}",
        "twice": f"Bearer {token} {token}", "upper case": f"Bearer {token.upper()}",
        "made up": f"Bearer {'0' * 64}",
        "control characters": "Bearer \x01\x02", "not ASCII": "Bearer \xe9" + token[1:],
    }  # fmt: skip
    users = {
        "": token,
        "expired": old,
        "revoked": gone,
        "inactive": inactive,
        "a node's": NODE_TOKEN,
    }
    nodes = {"": NODE_TOKEN, "another node's": "anothers", "a user's": token}
    yield House(
        node,
        wrong | {w: f"Bearer {t}" for w, t in users.items()},
        wrong | {w: f"Bearer {t}" for w, t in nodes.items()},
    )
    close_threads(beats.TOGETHER, beats.ALONE, LOOKS, THREADS)
    DJANGO.close()


def short() -> App:
    """The application as it is served."""
    return ShortWay(Submissions(DJANGO))


def both(
    method: str, path: str, headers: Mapping[str, str], body: bytes = b""
) -> tuple[Said, Said]:
    """What the short way and what Django alone says to the same request."""

    async def in_turn() -> tuple[Said, Said]:
        return await ask(short(), method, path, headers, body), await ask(
            DJANGO, method, path, headers, body
        )

    return asyncio.run(in_turn())


def meaning(said: Said) -> object:
    """The body, without regard to spaces where it is JSON."""
    return said.json if said.headers.get("content-type") == "application/json" else said.body


def alike(ways: tuple[Said, Said], status: int | None = None) -> bool:
    """Whether status, body and headers are the same, and the status is that."""
    first, second = ({k: v for k, v in said.headers.items() if k not in OWN} for said in ways)
    assert (ways[0].status, meaning(ways[0])) == (ways[1].status, meaning(ways[1]))
    assert first == second
    return status is None or ways[0].status == status


WRONG = (
    "none",
    "no scheme",
    "another scheme",
    "no token",
    "short",
    "twice",
    "upper case",
    "made up",
    "control characters",
    "not ASCII",
)


@pytest.mark.parametrize("wrong", [*WRONG, "expired", "revoked", "inactive", "a node's"])
def test_a_submission_with_a_wrong_credential_is_refused_alike(house: House, wrong: str) -> None:
    headers = {"authorization": house.users[wrong], "content-type": "application/json"}
    assert alike(both("POST", PATH, headers, json.dumps(job_fields()).encode()), 401)
    assert not Job.objects.exists()


@pytest.mark.parametrize("wrong", [*WRONG, "another node's", "a user's"])
def test_an_agents_call_with_a_wrong_credential_is_refused_alike(house: House, wrong: str) -> None:
    path = f"/api/agent/v1/nodes/{house.node.pk}"
    headers = {
        "authorization": house.nodes[wrong],
        "loadmaster-protocol": "1",
        "content-type": "application/json",
    }
    status = 403 if wrong == "another node's" else 401
    assert alike(both("POST", f"{path}/heartbeat", headers, dumps(a_heartbeat())), status)
    assert alike(both("GET", f"{path}/directives?cursor=0&wait=0", headers), status)
    assert Node.objects.get(pk=house.node.pk).heartbeat_seq == 0


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (LARGE, {}, 413),
        (b"{}", {"content-length": "", "transfer-encoding": "chunked"}, 411),
        (b"{", {}, 400),
        (b"[" * 100_000, {}, 400),
        (b"[]", {}, 400),
        (b'{"nmae": 1}', {}, 400),
        (b'{"command": ["true"], "steps": 1, "gpus": 1, "team": "other"}', {}, 400),
        (b"{}", {"host": "elsewhere.example"}, 400),
        (b"{}", {"content-type": "text/plain"}, 415),
    ],
)
def test_a_submission_that_does_not_fit_is_refused_alike(
    house: House, body: bytes, headers: Mapping[str, str], status: int
) -> None:
    usual = {"authorization": house.users[""], "content-type": "application/json"}
    assert alike(both("POST", PATH, {**usual, **headers}, body), status)


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (LARGE, {}, 413),
        (b"{}", {"content-length": "", "transfer-encoding": "chunked"}, 411),
        (b"{", {}, 400),
        (b"{}", {}, 400),
        (dumps(a_heartbeat(epoch=7)), {}, 409),
        (dumps(a_heartbeat()), {"loadmaster-protocol": "2"}, 426),
        (dumps(a_heartbeat()), {"host": "elsewhere.example"}, 400),
    ],
)
def test_a_heartbeat_that_does_not_fit_is_refused_alike(
    house: House, body: bytes, headers: Mapping[str, str], status: int
) -> None:
    usual = {
        "authorization": house.nodes[""],
        "content-type": "application/json",
        "loadmaster-protocol": "1",
    }
    assert alike(
        both("POST", f"/api/agent/v1/nodes/{house.node.pk}/heartbeat", {**usual, **headers}, body),
        status,
    )


def test_what_is_in_order_is_answered_with_the_same_headers(house: House) -> None:
    agent = {
        "authorization": house.nodes[""],
        "content-type": "application/json",
        "loadmaster-protocol": "1",
    }
    path = f"/api/agent/v1/nodes/{house.node.pk}"
    assert alike(both("POST", f"{path}/heartbeat", agent, dumps(a_heartbeat())), 200)
    an_offer(house.node)
    assert alike(both("GET", f"{path}/directives?cursor=0&wait=0", agent), 200)
    user = {"authorization": house.users[""], "content-type": "application/json"}
    ways = both("POST", PATH, user, json.dumps(job_fields()).encode())
    assert ways[0].headers.keys() - OWN == ways[1].headers.keys() - OWN
    assert {k: v for k, v in ways[0].headers.items() if k not in OWN}.items() <= ways[
        1
    ].headers.items()
    assert {name.decode() for name, _ in security_headers()} <= ways[1].headers.keys()


def test_an_answer_in_one_piece_has_what_the_other_has(house: House) -> None:
    """As our server takes it, instead of as ASGI's two messages."""
    pieces: list[tuple[int, bytes, bytes]] = []

    def take(status: int, headers: bytes, body: bytes) -> bool:
        pieces.append((status, headers, body))
        return True

    async def whole(scope: Scope, receive: Receive, send: Send) -> None:
        await short()({**scope, "extensions": {WHOLE: {"answer": take}}}, receive, send)

    agent = {
        "authorization": house.nodes[""],
        "loadmaster-protocol": "1",
        "x-request-id": "a-clients-own-id",
    }
    path = f"/api/agent/v1/nodes/{house.node.pk}"
    for method, end, body in (
        ("POST", "/heartbeat", dumps(a_heartbeat())),
        ("GET", "/directives?cursor=0&wait=0", b""),
    ):
        usual = asyncio.run(ask(short(), method, path + end, agent, body))
        with pytest.raises(IndexError):  # nothing came by ASGI's way
            asyncio.run(ask(whole, method, path + end, agent, body))
        status, lines, content = pieces.pop()
        headers = dict(
            line.split(": ", 1) for line in lines.decode().removesuffix("\r\n").split("\r\n")
        )
        assert (
            ("loadmaster-time" in headers)
            == ("loadmaster-time" in usual.headers)
            == (method == "POST")
        )
        assert (status, _undated(headers), content) == (
            usual.status,
            _undated(usual.headers),
            usual.body,
        )


def _undated(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name != "loadmaster-time"}


def test_the_doors_behind_the_short_ways_are_throttled_alike(house: House) -> None:
    refusals = []
    tries = settings.THROTTLES["login:address"][0] + 1
    body = json.dumps({"username": "nobody", "password": "wrong"}).encode()

    async def knock(app: App) -> list[int]:
        headers = {"content-type": "application/json"}
        return [
            (await ask(app, "POST", "/api/v1/tokens/", headers, body)).status for _ in range(tries)
        ]

    for app in (short(), DJANGO):
        cache.clear()
        refusals.append(asyncio.run(knock(app)))
    assert refusals[0] == refusals[1]
    assert refusals[0][-1] == 429


def test_an_agent_with_a_wrong_token_is_never_throttled(house: House) -> None:
    headers = {"authorization": "Bearer nobodys", "loadmaster-protocol": "1"}
    path = f"/api/agent/v1/nodes/{house.node.pk}/heartbeat"
    tries = max(failures for failures, _ in settings.THROTTLES.values()) + 1

    async def beat() -> set[int]:
        return {
            (await ask(short(), "POST", path, headers, dumps(a_heartbeat()))).status
            for _ in range(tries)
        }

    assert asyncio.run(beat()) == {401}


# -- traces


def counted(method: str, route: str, status: int) -> float:
    """How often /metrics has seen that by now."""
    labels = {"method": method, "route": route, "status": str(status)}
    return http_registry().get_sample_value("loadmaster_http_requests_total", labels) or 0.0


def traces(caplog: pytest.LogCaptureFixture) -> list[tuple[int, dict[str, object]]]:
    """(level, fields without the time it took) of the lines of the access log, which is emptied."""
    lines = [
        (r.levelno, dict(r.__dict__["loadmaster"])) for r in caplog.records if r.name == log.name
    ]
    caplog.clear()
    return [(level, {k: v for k, v in fields.items() if k != "ms"}) for level, fields in lines]


def test_routes_are_named_as_django_names_them(house: House) -> None:
    for end, route in ROUTES.items():
        assert route == f"/{resolve(f'/api/agent/v1/nodes/{house.node.pk}{end}').route}"
    assert f"/{resolve(PATH).route}" == ROUTE


@pytest.mark.parametrize(("token", "status"), [("", 200), ("made up", 401)])
def test_heartbeats_and_polls_are_counted_and_logged_alike(
    house: House, caplog: pytest.LogCaptureFixture, token: str, status: int
) -> None:
    caplog.set_level(logging.DEBUG, log.name)
    headers = {
        "authorization": house.nodes[token],
        "content-type": "application/json",
        "loadmaster-protocol": "1",
    }
    for method, end, body in (
        ("POST", "/heartbeat", dumps(a_heartbeat())),
        ("GET", "/directives", b""),
    ):
        path = f"/api/agent/v1/nodes/{house.node.pk}{end}" + (
            "?cursor=0&wait=0" if method == "GET" else ""
        )
        expected = 204 if method == "GET" and status == 200 else status
        before = counted(method, ROUTES[end], expected)
        both(method, path, headers, body)
        assert counted(method, ROUTES[end], expected) == before + 2
        first, second = traces(caplog)
        assert first == second
        assert first[0] == (logging.DEBUG if expected < 400 else logging.INFO)


def test_a_submission_is_counted_and_logged_alike_with_its_user(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, log.name)
    before = counted("POST", ROUTE, 201)
    headers = {"authorization": house.users[""], "content-type": "application/json"}
    both("POST", PATH, headers, json.dumps(job_fields()).encode())
    assert counted("POST", ROUTE, 201) == before + 2
    first, second = traces(caplog)
    assert first == second
    assert (first[0], first[1]["user"]) == (logging.INFO, Job.objects.all()[0].user_id)


@pytest.mark.parametrize("given", ["a-clients-own-id", "x", ""])
def test_a_sane_id_is_sent_back_and_another_one_replaced(house: House, given: str) -> None:
    agent = {
        "authorization": house.nodes[""],
        "content-type": "application/json",
        "loadmaster-protocol": "1",
    }
    user = {"authorization": house.users[""], "content-type": "application/json"}
    beat, job = f"/api/agent/v1/nodes/{house.node.pk}/heartbeat", json.dumps(job_fields()).encode()
    for path, headers, body in ((beat, agent, dumps(a_heartbeat())), (PATH, user, job)):
        for said in both("POST", path, {**headers, "x-request-id": given}, body):
            assert said.status in (200, 201)
            found = said.headers["x-request-id"]
            assert found == given if given == "a-clients-own-id" else len(found) == 32
