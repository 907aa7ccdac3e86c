"""The OpenAPI document: complete, valid, and for people who are logged in."""

import json
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.validation import validate_schema

from jobs.rest.serializers import JobInput
from jobs.submission.validation import FIELDS
from tests.builders import a_user
from tests.builders_jobs import api


@pytest.fixture
def schema() -> dict[str, Any]:
    GENERATOR_STATS.reset()
    generator: Any = SchemaGenerator  # the library's signatures lack types
    return dict(generator().get_schema(request=None, public=True))


def test_the_document_is_valid_and_made_without_warnings(schema: dict[str, Any]) -> None:
    validate: Any = validate_schema
    validate(schema)
    assert not GENERATOR_STATS


def test_every_address_of_the_api_is_in_it(schema: dict[str, Any]) -> None:
    from controlplane.urls import API

    documented = {
        path.removeprefix("/api/v1/") for path in schema["paths"] if path.startswith("/api/v1/")
    }
    assert len(documented) >= len({p for p in _leaves(API) if p})


def test_every_field_of_a_job_is_described() -> None:
    assert set(JobInput().fields) == set(FIELDS)


def test_submitting_takes_an_idempotency_key(schema: dict[str, Any]) -> None:
    names = [p["name"] for p in schema["paths"]["/api/v1/jobs/"]["post"]["parameters"]]
    assert "Idempotency-Key" in names


@pytest.mark.parametrize("path", ["/api/v1/jobs/", "/api/v1/jobs/{id}/clone/"])
def test_a_key_that_was_used_before_is_answered_as_documented(
    schema: dict[str, Any], path: str
) -> None:
    assert {"200", "201"} <= set(schema["paths"][path]["post"]["responses"])


def test_calls_are_made_with_a_bearer_token(schema: dict[str, Any]) -> None:
    assert schema["components"]["securitySchemes"]["token"] == {
        "type": "http",
        "scheme": "bearer",
        "description": "From POST /api/v1/tokens/ or `loadmaster login`",
    }


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/api/schema", "/api/schema/", "/api/docs"])
def test_the_document_is_for_those_who_are_logged_in(path: str) -> None:
    assert api(a_user()).get(path).status_code == 200
    assert api().get(path).status_code == 401


@pytest.mark.django_db
def test_the_document_comes_as_json_too() -> None:
    answer = api(a_user()).get("/api/schema?format=json")
    assert json.loads(answer.content)["openapi"].startswith("3.")


@pytest.mark.django_db
def test_the_docs_page_loads_nothing_from_elsewhere(client: Client) -> None:
    client.force_login(a_user())
    page = client.get("/api/docs").content.decode()
    assert "swagger-ui" in page
    assert "https://" not in page


def _leaves(patterns: list[URLPattern | URLResolver]) -> list[str]:
    found = []
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            found += _leaves(pattern.url_patterns)
        elif pattern.name:
            found.append(str(pattern.pattern))
    return found
