"""Turns of the database's writer: heartbeats first, long work in short transactions last.

SQLite has one writer. Whoever holds it keeps all others waiting, and leases run out meanwhile.
"""

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path

from django.db import connection, transaction

ROWS_A_TURN = 100
"""Rows that a turn of long work writes: some 30 ms of SQLite's writer on an idle machine."""

LONGEST_REST_S = 0.1
"""Longest rest after a turn."""


class Rank(IntEnum):
    """Order in which those that wait at the same time begin to write."""

    URGENT = 0
    USUAL = 1
    PATIENT = 2


_thread = threading.local()


def rank() -> Rank:
    """Return the rank of this thread's next transaction."""
    mine: Rank = getattr(_thread, "rank", Rank.USUAL)
    return mine


@contextmanager
def _ranked(wanted: Rank) -> Iterator[None]:
    before = rank()
    _thread.rank = wanted
    try:
        yield
    finally:
        _thread.rank = before


@contextmanager
def urgent() -> Iterator[None]:
    """Let this thread's transactions begin before all others that wait for SQLite's writer."""
    with _ranked(Rank.URGENT):
        yield


@contextmanager
def patient() -> Iterator[None]:
    """Let this thread's transactions begin after all others that wait for SQLite's writer."""
    with _ranked(Rank.PATIENT):
        yield


@contextmanager
def turn() -> Iterator[None]:
    """One transaction of long work: it begins after all others that wait, and then rests."""
    began_s = time.perf_counter()
    with patient(), transaction.atomic():
        yield
    if not connection.in_atomic_block:
        time.sleep(min(LONGEST_REST_S, time.perf_counter() - began_s))


class WaitingFlag:
    """Sign to all processes that writers of a rank wait: a lock on a file beside the database.

    The lock ends with its process. Of a database in memory (None), and without room for the file,
    nobody waits for anybody.
    """

    def __init__(self, database: Path | None, rank: Rank) -> None:
        self._path = database and database.with_name(f"{database.name}-{rank.name.lower()}")

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Raise the flag while the block waits; several writers may."""
        with self._opened() as file:
            if file is not None:
                fcntl.flock(file, fcntl.LOCK_SH)
            yield

    def is_raised(self) -> bool:
        """Return True if a writer of the rank waits.

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
