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


VARIANTS = ("ada", "\uff41da", "ad\uff41", "\u1d43da", "\u2003ada", "\U0001d5badA")
"""Names that Unicode's compatibility forms (NFKC) make one."""


@pytest.mark.parametrize("path", ["/login/", "/admin/login/"])
def test_variants_of_a_name_are_tries_of_one_account(client: Client, path: str) -> None:
    a_user("ada", operator=True)
    tries = [
        client.post(
            path, {"username": name, "password": "wrong"}, REMOTE_ADDR=f"192.0.2.{i}"
        ).status_code
        for i, name in enumerate(VARIANTS)
    ]
    assert tries == [200] * 3 + [429] * 3


def test_who_is_logged_in_tries_other_accounts_in_their_names(client: Client) -> None:
    a_user("ada")
    eve = a_user("eve", operator=True)
    client.force_login(eve)
    tries = [
        client.post("/admin/login/", {"username": "ada", "password": "wrong"}).status_code
        for _ in range(4)
    ]
    assert tries == [200] * 3 + [429]


def test_the_api_takes_a_variant_for_the_name_and_counts_it_so(client: Client) -> None:
    a_user("ada", password="a long password")
    assert log_in(client, VARIANTS[1], "a long password").status_code == 201
    tries = [
        log_in(client, name, REMOTE_ADDR=f"192.0.2.{i}").status_code
        for i, name in enumerate(VARIANTS)
    ]
    assert tries == [401] * 3 + [429] * 3


def test_the_lock_of_name_and_address_counts_variants_as_one(client: Client, settings: Any) -> None:
    settings.AXES_ENABLED, settings.AXES_FAILURE_LIMIT = True, 3
    a_user("ada", password="a long password")
    for name in VARIANTS[:3]:
        log_in(client, name)
    assert log_in(client, "ada", "a long password").status_code in (401, 403, 429)


def test_another_charset_is_no_way_around_the_count(client: Client) -> None:
    a_user("ada", password="a long password")
    body = json.dumps({"username": "ada", "password": "wrong"})
    typed = "username=ada&password=wrong"
    for charset in ("cp037", "utf-16", "utf-7"):
        sent = client.generic(
            "POST",
            "/api/v1/tokens/",
            body.encode(charset),
            content_type=f"application/json; charset={charset}",
        )
        assert sent.status_code == (401 if charset == "utf-7" else 400)
        kind = f"application/x-www-form-urlencoded; charset={charset}"
        assert client.generic("POST", "/login/", typed.encode(charset), kind).status_code == 400
    good = json.dumps({"username": "ada", "password": "a long password"}).encode("cp037")
    kind = "application/json; charset=cp037"
    assert client.generic("POST", "/api/v1/tokens/", good, kind).status_code == 400


def test_an_uploaded_form_in_another_charset_counts_for_the_name_that_it_means(
    client: Client,
) -> None:
    head = b'--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    fields = head % (b"username", b"+AGE-da") + head % (b"password", b"wrong")
    body, kind = fields + b"--x--\r\n", "multipart/form-data; boundary=x; charset=utf-7"
    tries = [
        client.generic("POST", "/login/", body, kind, REMOTE_ADDR=f"192.0.2.{i}").status_code
        for i in range(3)
    ]
    assert tries == [200] * 3
    assert log_in(client, "ada").status_code == 429


def test_tries_at_the_old_password_count_for_the_account_whose_password_it_is(
    client: Client,
) -> None:
    user = a_user("ada", password="a long password")
    client.force_login(user)
    new = "another long password"
    typed = {"old_password": "wrong", "new_password1": new, "new_password2": new}
    tries = [
        client.post("/password/", typed, REMOTE_ADDR=f"192.0.2.{i}").status_code for i in range(4)
    ]
    assert tries == [200] * 3 + [429]
    assert log_in(SiteClient(), "ada", "a long password").status_code == 429


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
    counts = [throttling._count("login:address:127.0.0.1", throttling.Limit(5, 300)).attempts]
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
