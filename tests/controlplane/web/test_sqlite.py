"""Writers of SQLite wait for the lock, for as long as the option `timeout` allows."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connections, transaction

from controlplane.web.storage.sqlite.base import DatabaseWrapper
from tests.builders_databases import database_of


@pytest.fixture(autouse=True)
def _may_use_databases(django_db_blocker: Any) -> Any:
    with django_db_blocker.unblock():
        yield


def a_connection(path: Path, timeout_s: float) -> DatabaseWrapper:
    options = {"transaction_mode": "IMMEDIATE", "timeout": timeout_s}
    usual = connections["default"].settings_dict
    entry = {**usual, "NAME": str(path), "OPTIONS": options}
    return DatabaseWrapper({**entry, "ENGINE": "controlplane.web.storage.sqlite"}, "default")


def busy_timeout_ms(connection: DatabaseWrapper) -> int:
    return int(connection.connection.execute("PRAGMA busy_timeout").fetchone()[0])


def test_a_writer_begins_once_the_other_has_ended(tmp_path: Path) -> None:
    order = list[str]()
    writes = threading.Event()

    def other() -> None:
        connection = a_connection(tmp_path / "db", 20.0)
        connection._start_transaction_under_autocommit()
        writes.set()
        threading.Event().wait(0.2)
        order.append("other ends")
        connection.connection.rollback()
        connection.close()

    thread = threading.Thread(target=other)
    thread.start()
    writes.wait()
    with database_of(mine := a_connection(tmp_path / "db", 20.0)), transaction.atomic():
        order.append("mine begins")
        assert busy_timeout_ms(mine) == 20_000
    thread.join()
    assert order == ["other ends", "mine begins"]


def test_of_many_threads_that_wait_one_looks(tmp_path: Path, monkeypatch: Any) -> None:
    looking = list[int]()
    look = DatabaseWrapper._begins

    def counted(connection: DatabaseWrapper, *, is_last: bool) -> bool:
        looking.append(threading.get_ident())
        return look(connection, is_last=is_last)

    def write() -> None:
        with database_of(connection := a_connection(tmp_path / "db", 20.0)), transaction.atomic():
            pass
        connection.close()

    holder = a_connection(tmp_path / "db", 20.0)
    holder._start_transaction_under_autocommit()
    monkeypatch.setattr(DatabaseWrapper, "_begins", counted)
    threads = [threading.Thread(target=write) for _ in range(5)]
    for thread in threads:
        thread.start()
    threading.Event().wait(0.3)
    assert len(set(looking)) == 1
    holder.connection.rollback()
    for thread in threads:
        thread.join()
    assert len(set(looking)) == 5, "each in its turn"
    holder.close()


@pytest.mark.timeout(15)
def test_a_process_that_is_forked_while_a_thread_looks_can_write(tmp_path: Path) -> None:
    holder = a_connection(tmp_path / "busy", 20.0)
    holder._start_transaction_under_autocommit()

    def look() -> None:
        with database_of(a_connection(tmp_path / "busy", 20.0)), transaction.atomic():
            pass

    thread = threading.Thread(target=look)
    thread.start()
    while not DatabaseWrapper.looks.locked():
        threading.Event().wait(0.01)
    child = os.fork()
    if not child:
        free = DatabaseWrapper.looks.acquire(timeout=1.0)
        os._exit(0 if free else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert thread.is_alive(), "and so it was before the other's transaction ended"
    holder.connection.rollback()
    thread.join()
    holder.close()


@pytest.mark.timeout(15)
def test_a_writer_gives_up_when_its_time_is_over(tmp_path: Path) -> None:
    other = a_connection(tmp_path / "db", 20.0)
    other._start_transaction_under_autocommit()
    mine = a_connection(tmp_path / "db", 0.1)
    with pytest.raises(OperationalError, match="locked"), database_of(mine), transaction.atomic():
        pass
    other.close()


def test_any_other_error_is_told_at_once(tmp_path: Path) -> None:
    mine = a_connection(tmp_path / "db", 20.0)
    mine._start_transaction_under_autocommit()
    with pytest.raises(OperationalError, match="within a transaction"):
        mine._start_transaction_under_autocommit()
    mine.close()
