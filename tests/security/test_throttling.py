"""Too many wrong tries at a door are answered 429; what is inside is never counted."""

import asyncio
import json
from typing import Any

import pytest
from django.core.cache import cache
from django.test import AsyncClient, Client
from redis.exceptions import ConnectionError as CacheAway

from clusters.services.enrolment import issue_enrolment_token
from controlplane.web.http import throttling
from loadmaster.protocol import PROTOCOL_HEADER
from loadmaster.wire import to_json
from tests.builders import a_cluster, a_gpu_type, a_user
from tests.builders_agents import NODE_TOKEN, a_heartbeat, a_node_with_agent, a_registration
from tests.builders_asgi import SiteClient

pytestmark = pytest.mark.django_db
LIMITS = {"login:address": (5, 300), "login:account": (3, 300), "enrolment:address": (4, 300)}


@pytest.fixture(autouse=True)
def _limits(settings: Any) -> None:
    settings.THROTTLES = LIMITS
    throttling._own_counts.clear()


@pytest.fixture
def client() -> Client:
    return SiteClient()


def log_in(client: Client, name: str, password: str = "wrong", **more: Any) -> Any:
    body = json.dumps({"username": name, "password": password})
    return client.post("/api/v1/tokens/", body, content_type="application/json", **more)


def enrol(client: Client, token: str, **values: Any) -> Any:
    headers = {"Authorization": f"Bearer {token}", PROTOCOL_HEADER: "1"}
    body = json.dumps(to_json(a_registration(**values)))
    return client.post(
        "/api/agent/v1/register", body, content_type="application/json", headers=headers
    )


def test_an_address_that_fails_too_often_waits_and_is_told_how_long(client: Client) -> None:
    assert [log_in(client, f"name-{i}").status_code for i in range(5)] == [401] * 5
    refused = log_in(client, "another")
    assert refused.status_code == 429
    assert 0 < int(refused["Retry-After"]) <= 301
    assert refused.json()["error"]["code"] == "throttled"
    assert log_in(client, "another", REMOTE_ADDR="192.0.2.7").status_code == 401


def test_an_account_is_guarded_against_many_addresses(client: Client) -> None:
    a_user("ada")
    tries = [
        log_in(client, name, REMOTE_ADDR=f"192.0.2.{i}").status_code
        for i, name in enumerate(("ada", "Ada ", "ADA", "ada"))
    ]
    assert tries == [401, 401, 401, 429]


def test_pages_api_and_administration_count_together(client: Client) -> None:
    for path in ("/login/", "/admin/login/", "/login/"):
        assert client.post(path, {"username": "ada", "password": "wrong"}).status_code == 200
    assert log_in(client, "ada").status_code == 429
    refused = client.post("/login/", {"username": "ada", "password": "wrong"})
    assert refused.status_code == 429
    assert "Too many tries" in refused.content.decode()


def test_good_tries_use_up_nothing(client: Client) -> None:
    a_user("ada", password="a long password")
    assert [log_in(client, "ada", "a long password").status_code for _ in range(8)] == [201] * 8
    assert (
        client.post("/login/", {"username": "ada", "password": "a long password"}).status_code
        == 302
    )
    assert log_in(client, "ada").status_code == 401


def test_a_refused_try_does_not_lengthen_the_wait(client: Client) -> None:
    for _ in range(10):
        log_in(client, "ada")
    counts = [throttling._count("login:address:127.0.0.1", throttling.Limit(5, 300)).tries]
    assert counts == [4]


def test_enrolment_tokens_cannot_be_guessed_at_leisure(client: Client) -> None:
    a_gpu_type()
    token = issue_enrolment_token(a_cluster())
    assert [enrol(client, "a guess").status_code for _ in range(4)] == [401] * 4
    assert enrol(client, token).status_code == 429


def test_a_rack_of_machines_enrols_at_once(client: Client) -> None:
    a_gpu_type()
    cluster = a_cluster()
    answers = [
        enrol(
            client, issue_enrolment_token(cluster), machine_id=f"machine-{i}", hostname=f"host-{i}"
        ).status_code
        for i in range(9)
    ]
    assert answers == [201] * 9


def test_agents_calls_are_not_counted_whatever_else_their_address_does(client: Client) -> None:
    for _ in range(20):
        enrol(client, "a guess")
    node = a_node_with_agent()
    headers = {"Authorization": f"Bearer {NODE_TOKEN}", PROTOCOL_HEADER: "1"}
    for seq in range(1, 21):
        body = json.dumps(to_json(a_heartbeat(seq=seq)))
        url = f"/api/agent/v1/nodes/{node.pk}/heartbeat"
        assert (
            client.post(url, body, content_type="application/json", headers=headers).status_code
            == 200
        )


@pytest.mark.django_db(transaction=True)
def test_the_asynchronous_server_counts_too() -> None:
    async def tries() -> list[int]:
        client = AsyncClient()
        return [
            (await client.post("/login/", {"username": f"n{i}", "password": "x"})).status_code
            for i in range(6)
        ]

    assert asyncio.run(tries()) == [200] * 5 + [429]


def test_a_process_without_its_cache_counts_for_itself(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise CacheAway("no cache")

    monkeypatch.setattr(cache, "add", away, raising=False)
    assert [log_in(client, f"name-{i}").status_code for i in range(6)] == [401] * 5 + [429]


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("192.0.2.9", "192.0.2.9"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::"),
        ("", "unknown"),
        ("unix:", "unknown"),
    ],
)
def test_an_ipv6_customer_is_one_whatever_address_they_take(address: str, counted: str) -> None:
    assert throttling.network_of(address) == counted


def test_who_is_locked_out_by_the_lock_of_accounts_is_told_how_long_too(
    client: Client, settings: Any
) -> None:
    settings.AXES_ENABLED, settings.AXES_FAILURE_LIMIT = True, 2
    for _ in range(2):
        last = client.post("/login/", {"username": "eve", "password": "wrong"})
    assert last.status_code == 429
    assert last["Retry-After"] == "900"
