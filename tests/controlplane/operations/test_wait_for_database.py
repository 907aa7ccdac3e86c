"""Migrations wait for a database that comes up later than their host."""

import time
from unittest.mock import Mock

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection


def attempts(monkeypatch: pytest.MonkeyPatch, *errors: str) -> Mock:
    """Connections that fail with these errors one after the other, then succeed; no waits."""
    made = Mock(side_effect=[*map(OperationalError, errors), None])
    monkeypatch.setattr(connection, "ensure_connection", made)
    monkeypatch.setattr(time, "sleep", Mock())
    return made


def test_a_database_that_is_not_up_yet_is_waited_for_and_what_it_says_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = ["Connection refused", "FATAL:  the database system is starting up"]
    made = attempts(monkeypatch, *errors)
    call_command("wait_for_database")
    assert made.call_count == 3
    said = capsys.readouterr().err
    assert all(f"waiting for the database: {error}" in said for error in errors)


@pytest.mark.parametrize(
    "error",
    [
        'FATAL:  password authentication failed for user "loadmaster"',
        'FATAL:  database "loadmaster" does not exist',
        'FATAL:  no pg_hba.conf entry for host "192.0.2.1"',
    ],
)
def test_what_no_waiting_mends_fails_at_once(monkeypatch: pytest.MonkeyPatch, error: str) -> None:
    made = attempts(monkeypatch, error)
    with pytest.raises(CommandError, match="check DATABASE_URL"):
        call_command("wait_for_database")
    assert made.call_count == 1
