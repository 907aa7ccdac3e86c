"""JSON and YAML from the network: what would take long to read or much to hold is refused first."""

import json
from typing import Any

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from controlplane.web import bounded_data
from controlplane.web.bounded_data import read_json, read_yaml
from tests.builders import a_user
from tests.builders_jobs import api

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)

HOSTILE_YAML = {
    "brackets": ("[" * 8_000, "line 1: is nested too deeply"),
    "more brackets": ("[" * 16_000, "line 1: is nested too deeply"),
    "braces": ("{a: " * 500, "line 1: is nested too deeply"),
    "indentation": ("- " * 500, "line 1: is nested too deeply"),
    "empty lists": ("[" + "[]," * 30_000 + "]", "more than 20,000 values"),
    "names": ("\n".join(f"a{i}: b" for i in range(11_000)), "more than 20,000 values"),
    "a long text": ("a: |\n" + "  x\n" * 400_000, "more than 1,000,000 characters"),
    "base 60": ("a: 1" + ":1" * 50_000, "a number has at most 100 digits"),
    "base 60, with a fraction": ("a: 1" + ":1" * 300 + ".5", "a number has at most 100 digits"),
    "aliases": ("[&a x, *a]", "anchors and aliases"),
    "half a character": ("a: \ud800", "is no YAML"),
}
HOSTILE_JSON = {
    "brackets": (b"[" * 1_000_000, "more than 200,000 values"),
    "deep lists": (b"[" * 51 + b"]" * 51, "nested too deeply"),
    "deep objects": (b'{"a":' * 51 + b"1" + b"}" * 51, "nested too deeply"),
    "empty lists": (b"[" + b"[]," * 200_000 + b"[]]", "more than 200,000 values"),
    "another charset": ('{"a": 1}'.encode("cp037"), "utf-8"),
    "no number": (b'{"a": NaN}', "NaN is no number"),
    "digits": (b"1" * 5_000, "limit"),
}


@pytest.mark.parametrize("name", HOSTILE_YAML)
def test_yaml_that_would_take_long_is_refused_by_the_limit_it_meets(name: str) -> None:
    text, problem = HOSTILE_YAML[name]
    with pytest.raises(ValueError, match=problem):
        read_yaml(text)


@pytest.mark.parametrize("name", HOSTILE_JSON)
def test_json_that_would_take_long_is_refused_by_the_limit_it_meets(name: str) -> None:
    body, problem = HOSTILE_JSON[name]
    with pytest.raises(ValueError, match=problem):
        read_json(body)


@pytest.mark.parametrize("size", [1_999_999, 2_000_000])
def test_quotes_and_backslashes_are_read_once(size: int) -> None:
    for unit in (b'\\"', b'"\\', b'["', b'"'):
        with pytest.raises(ValueError):  # noqa: PT011  # which problem is up to the parser
            read_json((unit * size)[:size])


def test_what_the_limits_name_is_still_read() -> None:
    deep = b"[" * 50 + b"]" * 50
    assert read_json(deep) == read_yaml(deep.decode())
    assert len(read_json(b"[" + b"1," * 199_998 + b"1]")) == 199_999
    assert len(read_yaml("[" + "x," * 19_998 + "x]")) == 19_999
    assert read_yaml(f"'{'1' * 200}'") == "1" * 200


@given(PLAIN)
def test_brackets_and_commas_in_texts_do_not_count(data: Any) -> None:
    assert read_json(json.dumps(data).encode()) == data
    assert read_json(json.dumps(['[{,\\"' * 1_000, data]).encode())[1] == data


@pytest.mark.django_db
@pytest.mark.parametrize("name", HOSTILE_YAML)
def test_pages_show_the_limit_beside_what_was_pasted(client: Client, name: str) -> None:
    client.force_login(a_user("ada"))
    text = HOSTILE_YAML[name][0].encode(errors="replace").decode()
    for path, field in (("/submit/", "yaml"), ("/simulations/new/", "study")):
        answer = client.post(path, {field: text})
        assert answer.status_code == 422, (path, answer.status_code)


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/api/v1/jobs/", "/api/v1/simulations/", "/api/v1/tokens/"])
@pytest.mark.parametrize("name", HOSTILE_JSON)
def test_the_api_answers_400_and_names_the_limit(path: str, name: str) -> None:
    body, problem = HOSTILE_JSON[name]
    answer = api(a_user("ada")).post(path, body, content_type="application/json")
    assert answer.status_code == 400
    assert problem in answer.json()["error"]["detail"]


@pytest.mark.django_db
def test_a_study_too_large_to_be_edited_is_no_page(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from controlplane.studies.pages import views
    from controlplane.studies.services import simulation_create
    from tests.builders_studies import a_study

    ada = a_user("ada")
    client.force_login(ada)
    made = simulation_create(ada, a_study())
    address = f"/simulations/new/?from={made.pk}"
    assert client.get(address).status_code == 200
    monkeypatch.setattr(views, "LONGEST_YAML", 10)
    assert client.get(address).status_code == 400


def test_limits_of_the_fields_fit_the_limits_of_the_body(settings: Any) -> None:
    assert settings.DATA_UPLOAD_MAX_MEMORY_SIZE > bounded_data.LONGEST_YAML
