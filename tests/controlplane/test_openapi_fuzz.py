"""Requests made from the OpenAPI document, right and wrong ones: no answer is a server error, whatever is sent."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from django.core.wsgi import get_wsgi_application
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error

from tests.builders import a_cluster, a_job, a_node, a_team, a_user
from tests.builders_jobs import a_token

# Committed rows: outside of Django's own test client a request's end closes the connection, and with it a test's transaction.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
EXAMPLES = 12


def test_nothing_the_document_allows_breaks_the_server() -> None:
    team = a_team("research")
    a_job(a_node(a_cluster(name="lab")).cluster, team=team)
    headers = {"Authorization": f"Bearer {a_token(a_user(operator=True, team=team))}"}
    document: Any = schemathesis.openapi.from_wsgi("/api/schema?format=json", get_wsgi_application(), headers=headers)
    for result in document.include(path_regex="^/api/v1/").exclude(path="/api/v1/tokens/current/").get_all_operations():
        _exercise(result.ok(), headers)


def _exercise(operation: Any, headers: dict[str, str]) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def check(case: Any) -> None:
        case.call_and_validate(headers=headers, checks=[not_a_server_error])

    check()
