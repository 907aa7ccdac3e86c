"""The short way of submissions answers as the long one does, and leaves to it whatever is not
plainly in order.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from knox.models import get_token_model

from clusters.models import Node
from controlplane.web.http.fast_path import App, Receive, Send
from controlplane.web.http.group_commit import OverloadedError
from jobs.models import Job
from jobs.rest.asgi import PATH, Submissions
from jobs.rest.batcher import Crowd, Letter, Taken, users_of
from tests.builders import a_cluster, a_node, a_team, a_user
from tests.builders_jobs import a_token, api, job_fields

pytestmark = pytest.mark.django_db


@pytest.fixture
def node() -> Node:
    return a_node(a_cluster())


@pytest.fixture
def user(node: Node) -> User:
    return a_user("ada", team=a_team("vision"))


def take(user: User, *bodies: Any, token: str = "", key: str | None = None) -> list[Any]:
    """What a crowd answers to these bodies at once."""
    token = token or a_token(user)
    return [
        None if a is None else json.loads(a.body)
        for a in Crowd().take_all([Letter(token, body, key) for body in bodies])
    ]


def test_the_answer_is_the_long_ways(user: User, node: Node) -> None:
    (short,) = take(user, job_fields(name="digits", gpus="1..8"))
    long = api(user).post(PATH, job_fields(name="digits", gpus="1..8"), format="json").json()
    other = {"id", "submitted_at"}
    assert {k: v for k, v in short.items() if k not in other} == {
        k: v for k, v in long.items() if k not in other
    }
    assert short["warnings"]
    shown = api(user).get(f"{PATH}{short['id']}/").json()
    assert {k: v for k, v in short.items() if k != "warnings"} == shown


def test_what_is_refused_goes_the_long_way_and_the_others_are_taken(user: User, node: Node) -> None:
    first, wrong, third = take(user, job_fields(name="a"), {"nmae": "b"}, job_fields(name="c"))
    assert (first["name"], wrong, third["name"]) == ("a", None, "c")
    assert Job.objects.count() == 2


def test_a_known_key_goes_the_long_way(user: User, node: Node) -> None:
    (first,) = take(user, job_fields(), key="k")
    assert first["state"] == "queued"
    assert take(user, job_fields(), key="k") == [None]
    assert Job.objects.count() == 1


def test_tokens_of_nobody_of_the_past_and_of_the_inactive_go_the_long_way(
    user: User, node: Node
) -> None:
    expired = get_token_model().objects.create(user, expiry=timedelta(seconds=-1))[1]
    gone = a_user("bob", team=a_team("other"))
    inactive = a_token(gone)
    User.objects.filter(pk=gone.pk).update(is_active=False)
    assert users_of({"0" * 64, expired, inactive}) == {}
    assert take(user, job_fields(), token=expired) == [None]
    assert Job.objects.count() == 0


def test_who_has_left_a_team_submits_to_it_no_more(user: User, node: Node) -> None:
    crowd, token = Crowd(), a_token(user)
    assert crowd.take_all([Letter(token, job_fields(), None)]) != [None]
    user.membership_set.all().delete()
    assert crowd.take_all([Letter(token, job_fields(), None)]) == [None]


def test_a_batch_asks_no_more_of_the_database_for_more_people(user: User, node: Node) -> None:
    operator, counts = a_user("root", operator=True), []
    people = [a_user(f"user-{i}", team=a_team(f"team-{i}")) for i in range(6)]
    Crowd().take_all([Letter(a_token(operator), job_fields(kind="bert", team="vision"), None)])
    for few in ([user, operator], [user, operator, *people]):
        letters = [
            Letter(
                a_token(u), job_fields(kind="bert", team=None if u != operator else "vision"), None
            )
            for u in few
        ]
        with CaptureQueriesContext(connection) as queries:
            assert None not in Crowd().take_all(letters)
        counts.append(len(queries))
    assert counts[0] == counts[1]
    assert set(Job.objects.filter(user=people[3]).values_list("team__name", flat=True)) == {
        "team-3"
    }


def test_who_is_in_no_team_and_who_names_anothers_go_the_long_way(user: User, node: Node) -> None:
    stranger, _ = a_user("eve"), a_team("other")
    letters = [
        Letter(a_token(u), job_fields(team=t), None)
        for u, t in ((stranger, None), (stranger, "vision"), (user, "other"))
    ]
    assert Crowd().take_all(letters) == [None, None, None]
    assert not Job.objects.exists()


# -- the head of a request


class Answering(Crowd):
    """Takes every letter."""

    def __init__(self) -> None:
        super().__init__()
        self.letters: list[Letter] = []

    async def take(self, letter: Letter) -> Taken | None:
        """Note it."""
        self.letters.append(letter)
        return Taken(b'{"short": true}', 1)


class Failing(Crowd):
    """Takes none."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def take(self, letter: Letter) -> Taken | None:
        """Fail."""
        raise self.error


def ask(
    body: bytes = b"{}",
    *,
    path: str = PATH,
    method: str = "POST",
    crowd: Crowd | None = None,
    head: Mapping[str, str] | None = None,
) -> tuple[int, bytes, bytes]:
    """(status, answer, the body Django was given) of a request with these headers over the usual
    ones; "" leaves one out.
    """
    usual = {
        "host": "localhost", "authorization": f"Bearer {'0' * 64}",
        "content-type": "application/json",
        "content-length": str(len(body)),
    }  # fmt: skip
    named = {**usual, **(head or {})}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [(k.encode(), v.encode()) for k, v in named.items() if v],
    }
    sent: list[Mapping[str, Any]] = []
    passed: list[bytes] = []

    async def django(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        passed.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send({"type": "http.response.body", "body": b"long"})

    async def receive() -> Mapping[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message)

    app: App = Submissions(django, crowd or Answering())
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], sent[1]["body"], passed[0] if passed else b""


def test_a_request_in_order_is_answered_the_short_way() -> None:
    assert ask(b'{"name": "x"}') == (201, b'{"short": true}', b"")


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": ""}, {"authorization": "Bearer short"}, {"authorization": "Basic eDp5"},
        {"content-type": "text/plain"},
        {"content-length": ""}, {"content-length": "9999999"}, {"host": "elsewhere.example"},
        {"host": ""}, {"cookie": "a=b"},
        {"transfer-encoding": "chunked"}, {"accept": "text/html"}, {"x-anything": "else"},
    ],
)  # fmt: skip
def test_a_request_that_is_not_goes_the_long_way_with_its_body(headers: dict[str, str]) -> None:
    assert ask(b'{"name": "x"}', head=headers) == (299, b"long", b'{"name": "x"}')


@pytest.mark.parametrize("body", [b"", b"{", b'{"steps": NaN}', b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_json_goes_the_long_way(body: bytes) -> None:
    assert ask(body) == (299, b"long", body)


@pytest.mark.parametrize(("path", "method"), [("/api/v1/jobs/bulk/", "POST"), (PATH, "GET")])
def test_other_requests_are_django_s(path: str, method: str) -> None:
    assert ask(path=path, method=method)[0] == 299


def test_on_a_full_disk_the_long_way_says_so() -> None:
    assert ask(b'{"name": "x"}', crowd=Failing(OperationalError("database or disk is full"))) == (
        299,
        b"long",
        b'{"name": "x"}',
    )


@pytest.mark.parametrize(
    ("error", "code"), [(OperationalError("gone"), "database"), (OverloadedError(), "overloaded")]
)
def test_what_may_have_been_committed_is_not_written_once_more(error: Exception, code: str) -> None:
    status, answer, passed = ask(b'{"name": "x"}', crowd=Failing(error))
    assert (status, json.loads(answer)["error"]["code"], passed) == (503, code, b"")
