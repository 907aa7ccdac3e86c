"""No call of the REST API ignores what is sent to it: unknown fields and parameters are refused."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.urls import URLPattern, URLResolver
from drf_spectacular.generators import SchemaGenerator
from rest_framework.test import APIClient

from controlplane.urls import API
from controlplane.web.rest.strict import StrictView
from tests.builders import a_user
from tests.builders_jobs import api
from tests.builders_rest import Call, RestWorld, calls

pytestmark = pytest.mark.django_db
UNKNOWN = "no_such_field"


@pytest.fixture(name="world")
def _world() -> RestWorld:
    return RestWorld()


def leaves(patterns: list[URLPattern | URLResolver]) -> Iterator[URLPattern]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from leaves(pattern.url_patterns)
        else:
            yield pattern


def test_every_view_of_the_api_is_strict() -> None:
    loose = [
        str(pattern.pattern)
        for pattern in leaves(API)
        if hasattr(pattern.callback, "cls") and not issubclass(pattern.callback.cls, StrictView)
    ]
    assert loose == [], "let these views inherit from StrictView"


@pytest.mark.parametrize("call", calls(), ids=str)
def test_unknown_query_parameter_is_refused_by_name(world: RestWorld, call: Call) -> None:
    answer = world.send(call, query={UNKNOWN: "1"})
    assert answer.status_code == 400, answer.content
    assert UNKNOWN in answer.json()["error"]["fields"]


@pytest.mark.parametrize("call", [c for c in calls() if c.method == "get"], ids=str)
def test_documented_query_parameters_are_known(world: RestWorld, call: Call) -> None:
    """A wrong value may be refused, the name of the parameter never."""
    for name in call.parameters:
        answer = world.send(call, query={name: "1"})
        assert "is no parameter" not in answer.content.decode(errors="replace"), name


@pytest.mark.parametrize("call", [c for c in calls() if c.method != "get"], ids=str)
def test_unknown_field_of_a_body_is_refused_by_name(world: RestWorld, call: Call) -> None:
    answer = world.send(call, body={**world.body(call), UNKNOWN: 1})
    assert answer.status_code == 400, answer.content
    fields = answer.json()["error"]["fields"]
    assert UNKNOWN in str(fields), fields


@pytest.mark.parametrize("call", [c for c in calls() if c.fields], ids=str)
def test_unknown_field_within_a_field_is_refused(world: RestWorld, call: Call) -> None:
    for path in call.objects():
        answer = world.send(call, body=world.body_with(call, path, {UNKNOWN: 1}))
        assert answer.status_code in (400, 207), (path, answer.content)
        assert UNKNOWN in answer.content.decode(), (path, answer.content)


PAGED = [c for c in calls() if "offset" in c.parameters and "cursor" not in c.parameters]
ODD_NUMBERS = ["abc", "", "-1", "1.5", "1e3", "NaN", "٣", "0x10", "+1", " 1", "9" * 400, "null"]


@pytest.mark.parametrize("call", PAGED, ids=str)
def test_limit_and_offset_take_whole_numbers_alone(world: RestWorld, call: Call) -> None:
    for name in ("limit", "offset"):
        for value in [*ODD_NUMBERS, *(["0"] if name == "limit" else [])]:
            answer = world.send(call, query={name: value})
            assert answer.status_code == 400, (name, value)
            assert name in answer.json()["error"]["fields"]


WRONG_FILTERS = [
    ("/api/v1/jobs/", "mine", "maybe"), ("/api/v1/jobs/", "mine", ""),
    ("/api/v1/jobs/", "active", "2"), ("/api/v1/jobs/", "fold", "yes please"),
    ("/api/v1/jobs/", "state", "sleeping"), ("/api/v1/jobs/", "array", "7"),
    ("/api/v1/jobs/", "index", "x"), ("/api/v1/jobs/", "index", "-1"),
    ("/api/v1/jobs/", "index", "1e400"), ("/api/v1/jobs/", "index", "NaN"),
    ("/api/v1/jobs/", "page", "x"), ("/api/v1/nodes/", "page", "2"),
    ("/api/v1/simulations/", "state", "sleeping"), ("/api/v1/simulations/", "mine", "maybe"),
    ("/api/v1/costs/", "by", "moon"), ("/api/v1/costs/", "period", "1y"),
    ("/api/v1/costs/", "from", "yesterday"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "name", "value"), WRONG_FILTERS)
def test_wrong_value_of_a_filter_is_refused_by_name(
    world: RestWorld, path: str, name: str, value: str
) -> None:
    answer = world.operator.get(path, {name: value})
    assert answer.status_code == 400, answer.content
    assert name in answer.json()["error"]["fields"]


@pytest.mark.parametrize("value", ["true", "True", "1", "yes"])
def test_flags_of_an_address_mean_what_they_say(value: str) -> None:
    client: APIClient = api(a_user("ada"))
    assert client.get("/api/v1/jobs/", {"mine": value}).status_code == 200
    assert client.get("/api/v1/simulations/", {"mine": value}).status_code == 200


def test_stranger_hears_of_a_wrong_token_first(db: object) -> None:
    assert APIClient().get(f"/api/v1/jobs/?{UNKNOWN}=1").status_code == 401


def test_every_call_of_the_document_is_walked() -> None:
    generator: Any = SchemaGenerator
    document = generator().get_schema(request=None, public=True)
    count = sum(
        len(methods) for path, methods in document["paths"].items() if path.startswith("/api/v1/")
    )
    assert len(calls()) == count


def test_member_gets_the_same_refusals_as_an_operator(world: RestWorld) -> None:
    member: User = world.member
    assert api(member).get(f"/api/v1/jobs/?{UNKNOWN}=1").status_code == 400
