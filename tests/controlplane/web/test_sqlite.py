"""Writers of SQLite wait for the lock, for as long as the option `timeout` allows."""

import os
import signal
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connections, transaction

from controlplane.web.storage import turns
from controlplane.web.storage.sqlite.base import DatabaseWrapper
from controlplane.web.storage.turns import Rank, WaitingFlag
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


def begin(path: Path, rank: Rank, begun: threading.Event) -> None:
    """Begin a transaction of this rank and end it at once."""
    connection = a_connection(path, 20.0)
    with turns._ranked(rank):
        connection._start_transaction_under_autocommit()
    begun.set()
    connection.close()


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


@pytest.mark.parametrize(("waits", "rank"), [(Rank.URGENT, Rank.USUAL), (Rank.USUAL, Rank.PATIENT)])
def test_nobody_begins_while_one_of_a_lower_rank_waits(
    tmp_path: Path, monkeypatch: Any, waits: Rank, rank: Rank
) -> None:
    monkeypatch.setattr("controlplane.web.storage.sqlite.base.LONGEST_DEFER_S", 20.0)
    begun = threading.Event()
    thread = threading.Thread(target=begin, args=(tmp_path / "db", rank, begun))
    with WaitingFlag(tmp_path / "db", waits).raised():
        thread.start()
        assert not begun.wait(0.2), "though nobody writes"
    thread.join()
    assert begun.is_set()


@pytest.mark.parametrize("rank", Rank)
def test_no_writer_defers_to_others_for_long(tmp_path: Path, rank: Rank) -> None:
    begun = threading.Event()
    with ExitStack() as frozen:
        for lower in Rank:
            frozen.enter_context(WaitingFlag(tmp_path / "db", lower).raised())
        begin(tmp_path / "db", rank, begun)
    assert begun.is_set()


def test_a_writer_raises_its_flag_until_it_has_begun(tmp_path: Path) -> None:
    holder, begun = a_connection(tmp_path / "db", 20.0), threading.Event()
    flag = WaitingFlag(tmp_path / "db", Rank.URGENT)
    holder._start_transaction_under_autocommit()
    thread = threading.Thread(target=begin, args=(tmp_path / "db", Rank.URGENT, begun))
    thread.start()
    while not flag.is_raised():
        threading.Event().wait(0.001)
    assert not begun.is_set()
    holder.connection.rollback()
    thread.join()
    holder.close()
    assert not flag.is_raised()


def test_the_flag_of_a_killed_writer_is_down(tmp_path: Path) -> None:
    flag = WaitingFlag(tmp_path / "db", Rank.URGENT)
    child = os.fork()
    if not child:
        with flag.raised():
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert not flag.is_raised()


def test_without_room_for_the_flag_everybody_may_write(tmp_path: Path) -> None:
    flag = WaitingFlag(tmp_path / "missing" / "db", Rank.URGENT)
    with flag.raised():
        assert not flag.is_raised()


def test_a_long_transaction_is_told_with_its_place(
    tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setattr("controlplane.web.storage.sqlite.base.LONG_S", 0.0)
    connection = a_connection(tmp_path / "db", 20.0)
    with database_of(connection), transaction.atomic():
        threading.Event().wait(0.001)
    (said,) = [record.getMessage() for record in caplog.records if "SQLite" in record.getMessage()]
    assert "test_sqlite.py" in said
    assert "test_a_long_transaction" in said


def test_a_reader_begins_while_others_write_and_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setattr("controlplane.web.storage.sqlite.base.LONG_S", 0.0)
    writer = a_connection(tmp_path / "db", 20.0)
    writer._start_transaction_under_autocommit()
    reader = a_connection(tmp_path / "db", 0.0)
    reader.ensure_connection()
    reader.transaction_mode = "DEFERRED"
    with database_of(reader), transaction.atomic():
        threading.Event().wait(0.001)
    assert not [record for record in caplog.records if "SQLite" in record.getMessage()]
    writer.connection.rollback()
    writer.close()
