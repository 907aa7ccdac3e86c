"""A database that cannot be written or reached: a clear answer, a failing probe, and no error
page.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import DataError, IntegrityError, InterfaceError, OperationalError, connection
from django.test import Client
from pytest_django import DjangoDbBlocker

from controlplane.web.http import storage_errors as storage
from controlplane.web.http.storage_errors import AWAY, BUSY, FULL, READS_ONLY, Failure, failure_of
from jobs.models import Job
from tests.builders import a_cluster, a_kind, a_team, a_user
from tests.builders_databases import sqlite_database
from tests.builders_jobs import a_token, job_fields


class DriverError(Exception):
    """What a driver raises."""

    def __init__(self, pgcode: str) -> None:
        super().__init__("words of the server's")
        self.pgcode = pgcode


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (OperationalError("database or disk is full"), FULL),
        (OperationalError("attempt to write a readonly database"), READS_ONLY),
        (OperationalError("unable to open database file"), AWAY),
        (OperationalError("database is locked"), BUSY),
        (caused(OperationalError("x"), DriverError("53100")), FULL),
        (caused(OperationalError("x"), DriverError("25006")), READS_ONLY),
        (caused(OperationalError("x"), DriverError("57P01")), AWAY),
        (caused(OperationalError("x"), DriverError("08006")), AWAY),
        (caused(OperationalError("x"), DriverError("40P01")), BUSY),
        (caused(DataError("x"), DriverError("22001")), None),
        (IntegrityError("UNIQUE constraint failed"), None),
        (ValueError("database or disk is full"), None),
        (None, None),
    ],
)
def test_errors_of_the_storage_are_told_from_others(
    error: Exception | None, failure: Failure | None
) -> None:
    assert failure_of(error) == failure


@pytest.fixture
def full(
    migrated_sqlite: Path, tmp_path: Path, django_db_blocker: DjangoDbBlocker
) -> Iterator[dict[str, Any]]:
    """A SQLite database that may not grow any more, and a user's token."""
    copy = Path(shutil.copy(migrated_sqlite, tmp_path))
    with django_db_blocker.unblock(), sqlite_database(copy):
        team = a_team("vision")
        a_kind("digits")
        a_cluster(name="main")
        token = a_token(a_user("ada", team=team))
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA page_count")
            pages = cursor.fetchone()[0]
            cursor.execute(f"PRAGMA max_page_count = {pages}")
            cursor.fetchall()
        yield {"Authorization": f"Bearer {token}"}


def test_a_full_disk_is_507_until_there_is_room_and_the_probe_says_so(full: dict[str, Any]) -> None:
    body = job_fields(command=["x" * 500] * 100)
    answer = Client().post("/api/v1/jobs/", body, content_type="application/json", headers=full)
    assert answer.status_code == 507
    assert answer.json()["error"]["code"] == "disk_full"
    assert answer["Retry-After"] == "10"
    ready = Client().get("/readyz")
    assert (ready.status_code, ready.json()["checks"]["database"]) == (503, "disk_full")
    assert Client().get("/api/v1/jobs/", headers=full).status_code == 200
    assert not Job.objects.exists()
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA max_page_count = 1000000")
        cursor.fetchall()
    storage._last.clear()
    assert (
        Client()
        .post("/api/v1/jobs/", body, content_type="application/json", headers=full)
        .status_code
        == 201
    )
    assert Client().get("/readyz").status_code == 200


def test_too_little_room_makes_a_server_unready_before_anything_fails(
    full: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Client().get("/readyz").status_code == 200
    monkeypatch.setattr(storage, "LEAST_FREE_BYTES", 1 << 60)
    assert Client().get("/readyz").json()["checks"]["database"] == "disk_full"


@pytest.mark.django_db
def test_a_database_that_fails_before_the_view_is_answered_for_too(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> object:
        raise caused(OperationalError("x"), DriverError("57P01"))

    client.force_login(a_user())
    monkeypatch.setattr("django.contrib.sessions.backends.db.SessionStore.load", away)
    client.raise_request_exception = False
    answer = client.get("/")
    assert (answer.status_code, answer["Content-Type"]) == (503, "text/plain; charset=utf-8")
    assert b"cannot be reached" in answer.content


@pytest.mark.django_db
def test_any_other_error_stays_an_error(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> object:
        raise RuntimeError("ours")

    monkeypatch.setattr("django.contrib.sessions.backends.db.SessionStore.load", broken)
    client.cookies["sessionid"] = "x" * 32
    client.raise_request_exception = False
    assert client.get("/").status_code == 500


def test_a_lost_connection_without_a_code_is_away_on_postgresql(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(storage, "connection", type("Fake", (), {"vendor": "postgresql"}))
    assert failure_of(InterfaceError("connection already closed")) == AWAY
