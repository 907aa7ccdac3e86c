"""Turns of the database's writer: heartbeats first, long work in short transactions.

SQLite has one writer. Whoever holds it keeps all others waiting, and leases run out meanwhile.
"""

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from django.db import connection, transaction

ROWS_A_TURN = 100
"""Rows that a turn of long work writes: some 30 ms of SQLite's writer on an idle machine."""

LONGEST_REST_S = 0.1
"""Longest rest after a turn."""

_thread = threading.local()


@contextmanager
def turn() -> Iterator[None]:
    """One transaction of long work; others may write afterwards, for as long as it took."""
    began_s = time.perf_counter()
    with transaction.atomic():
        yield
    if not connection.in_atomic_block:
        time.sleep(min(LONGEST_REST_S, time.perf_counter() - began_s))


@contextmanager
def urgent() -> Iterator[None]:
    """Let this thread's transactions begin before all others that wait for SQLite's writer."""
    _thread.is_urgent = True
    try:
        yield
    finally:
        _thread.is_urgent = False


def is_urgent() -> bool:
    return getattr(_thread, "is_urgent", False)


class UrgentFlag:
    """Sign to all processes that an urgent writer waits: a lock on a file beside the database.

    The lock ends with its process. Of a database in memory (None), and without room for the file,
    nobody waits for anybody.
    """

    def __init__(self, database: Path | None) -> None:
        self._path = database and database.with_name(f"{database.name}-urgent")

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Raise the flag while the block waits; several writers may."""
        with self._opened() as file:
            if file is not None:
                fcntl.flock(file, fcntl.LOCK_SH)
            yield

    def is_raised(self) -> bool:
        """Return True if an urgent writer waits.

        It may also be another one who is just asking: then both ask again.
        """
        with self._opened() as file:
            if file is None:
                return False
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    @contextmanager
    def _opened(self) -> Iterator[int | None]:
        """Open the file, whose lock ends when it is closed; None if it cannot be made."""
        file = None
        if self._path is not None:
            with suppress(OSError):
                file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield file
        finally:
            if file is not None:
                os.close(file)
