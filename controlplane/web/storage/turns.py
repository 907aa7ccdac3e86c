"""Order of transactions that wait for SQLite's one writer: heartbeats first, long work last.

A long transaction keeps all others waiting, and leases expire meanwhile. So long work is done in
short transactions, with a rest after each.
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
"""Rows that a turn of long work writes: it takes about 30 ms on an idle machine."""

LONGEST_REST_S = 0.1
"""Longest rest in seconds after a turn."""


class Rank(IntEnum):
    """Order in which transactions that wait at the same time begin; the lowest rank is first."""

    URGENT = 0
    USUAL = 1
    PATIENT = 2


_thread = threading.local()


def rank() -> Rank:
    """Return the rank of this thread's next transaction."""
    own_rank: Rank = getattr(_thread, "rank", Rank.USUAL)
    return own_rank


@contextmanager
def _ranked(new_rank: Rank) -> Iterator[None]:
    """Give this thread's transactions a rank inside the block."""
    old_rank = rank()
    _thread.rank = new_rank
    try:
        yield
    finally:
        _thread.rank = old_rank


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
    """Run the block as one transaction of long work, which begins after all others that wait.

    A rest of the same length follows, so that others can write.
    """
    began_s = time.perf_counter()
    with patient(), transaction.atomic():
        yield
    if not connection.in_atomic_block:  # an outer transaction would keep the writer meanwhile
        time.sleep(min(LONGEST_REST_S, time.perf_counter() - began_s))


def flag_suffix(rank: Rank) -> str:
    """Return the end of the name of a rank's flag, a file beside the database."""
    return f"-{rank.name.lower()}"


class WaitingFlag:
    """Sign to all processes that writers of a rank wait: a lock on a file beside the database.

    The lock ends with its process. If the database is in memory (None), or the file cannot be made,
    the flag is never raised.
    """

    def __init__(self, database: Path | None, rank: Rank) -> None:
        self._path: Path | None = None
        if database is not None:
            self._path = database.with_name(f"{database.name}{flag_suffix(rank)}")

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Raise the flag inside the block; several writers may raise it at once."""
        with self._opened() as file:
            if file is not None:
                fcntl.flock(file, fcntl.LOCK_SH)
            yield

    def is_raised(self) -> bool:
        """Return True if a writer of the rank waits.

        A process that asks at the same moment is taken for a writer; both will ask again.
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
