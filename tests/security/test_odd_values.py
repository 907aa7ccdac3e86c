"""Odd values in any field of any call: 400 that names the field, or what it means; never 500."""

import json
from typing import Any

import pytest

from tests.builders_rest import Call, RestWorld, calls

pytestmark = pytest.mark.django_db

ODD: list[Any] = [
    None, True, False, 0, -1, 1.5, 10**400, -(10**400), 2**63, 1e308, -1e308, 1e-308,
    "", " ", "x", "\0", "a\0b", "\ud800", "a\udfffb", "\u202e", "NaN", "1e999", "x" * 70_000,
    [], [[]], ["x"], [None], [1], [{}], ["\ud800"], {}, {"x": 1}, {"": None}, {"\0": "\0"},
    {"\ud800": "\ud800"}, [["x"], {"y": [1]}],
]  # fmt: skip
NO_JSON = ["NaN", "Infinity", "-Infinity", "{", "[1,]", "'x'", '{"a": 1, "a": 2}', "", "\xff"]


@pytest.fixture(name="world")
def _world() -> RestWorld:
    return RestWorld()


def check(world: RestWorld, call: Call, path: tuple[str | int, ...], value: object) -> None:
    """The call with this value at this place is answered, and a refusal names the place."""
    answer = world.send(call, body=world.body_with(call, path, value))
    place = f"{call} {path} {str(value)[:40]!r}"
    assert answer.status_code < 500, (place, answer.content)
    if answer.status_code == 400:
        error: dict[str, Any] = answer.json()["error"]
        assert str(path[0]) in json.dumps(error), (place, error)


SAME_FIELDS = ("/api/v1/jobs/{id}/clone/", "/api/v1/jobs/bulk/", "/api/v1/job-forecasts/")
"""Calls that read a job as `POST jobs/` does."""


@pytest.mark.slow  # two minutes
@pytest.mark.parametrize(
    "call", [c for c in calls() if c.fields and c.path not in SAME_FIELDS], ids=str
)
def test_odd_value_of_any_field_is_refused_by_name(world: RestWorld, call: Call) -> None:
    for path in call.places():
        for value in ODD:
            check(world, call, path, value)


@pytest.mark.parametrize("call", [c for c in calls() if c.fields], ids=str)
def test_body_that_is_no_object_is_refused(world: RestWorld, call: Call) -> None:
    bodies: list[Any] = [None, True, 7, 1.5, "text", [], [1], [{}], [["x"]]]
    for value in bodies:
        answer = world.send_text(call, json.dumps(value))
        assert answer.status_code < 500, (value, answer.content)


@pytest.mark.parametrize("call", [c for c in calls() if c.method != "get"], ids=str)
def test_body_that_is_no_json_breaks_nothing(world: RestWorld, call: Call) -> None:
    for text in NO_JSON:
        answer = world.send_text(call, text)
        assert answer.status_code < 500, (text, answer.content)


@pytest.mark.parametrize("call", [c for c in calls() if c.fields], ids=str)
def test_numbers_that_json_lacks_are_refused(world: RestWorld, call: Call) -> None:
    for name in call.fields:
        for number in ("NaN", "Infinity", "-Infinity"):
            answer = world.send_text(call, f'{{"{name}": {number}}}')
            assert answer.status_code == 400, (name, number, answer.content)


@pytest.mark.parametrize("call", calls(), ids=str)
def test_odd_parameters_of_an_address_break_nothing(world: RestWorld, call: Call) -> None:
    odd = ["", "%00", "%ff%fe", "%ed%a0%80", "NaN", "1e999", "9" * 400, "%E2%80%AE", "[]", "{}"]
    for name in call.parameters:
        for value in odd:
            answer = world.send(call, query={name: value})
            assert answer.status_code < 500, (name, value, answer.content)
