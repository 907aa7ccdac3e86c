"""Health: what a probe sees, without a login and without secrets."""

import pytest
from django.core.cache import cache
from django.db import DatabaseError, connection
from django.test import Client
from pytest_django import DjangoAssertNumQueries
from redis.exceptions import RedisError

from controlplane.operations import health
from controlplane.operations.tasks import periodic_rounds


@pytest.mark.django_db
def test_alive_asks_nothing_of_the_database(
    client: Client, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_num_queries(0):
        answer = client.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


@pytest.mark.django_db
def test_ready_is_open_to_all_and_says_what_it_checked(client: Client) -> None:
    answer = client.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {
        "status": "ok",
        "checks": {"database": "ok", "cache": "ok", "migrations": "ok"},
        "beat_age_s": None,
        "clocks": {
            "jumps": 0,
            "last_jump_s": None,
            "database_skew_s": None if connection.vendor == "sqlite" else 0.0,
            "agents_skew_s": None,
        },
    }


@pytest.mark.django_db
def test_ready_tells_the_age_of_the_last_beat(client: Client) -> None:
    periodic_rounds()
    assert client.get("/readyz").json()["beat_age_s"] >= 0


def test_a_cache_that_fails_stops_no_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise RedisError("gone")

    monkeypatch.setattr(cache, "set", broken)
    health.note_beat()


@pytest.mark.django_db
def test_a_check_that_fails_is_503_and_named_without_its_details(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> str:
        raise DatabaseError("password of somebody")

    monkeypatch.setitem(health.CHECKS, "database", broken)
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["database"]) == (503, "DatabaseError")
    assert b"password" not in answer.content


@pytest.mark.django_db
def test_a_cache_that_forgets_is_not_ready(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "set", lambda *args: None)
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["cache"]) == (503, "forgets")


@pytest.mark.django_db
def test_missing_migrations_are_not_ready(client: Client) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE app = 'jobs'")
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["migrations"]) == (
        503,
        "migrations are missing; run manage.py migrate",
    )


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes_only_read(client: Client, path: str) -> None:
    assert client.post(path).status_code == 405
