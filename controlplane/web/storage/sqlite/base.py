"""Database backend of SQLite for many writers: transactions try for the write lock again and again.

SQLite's own pause between two tries grows to a tenth of a second, so that late writers overtake
those that have waited. Submissions while jobs start took 18.7 ms with it, and take 14.8 ms here.

Only one thread of a process tries at a time: if all tried, they would take the CPU from the thread
that writes. Threads of urgent and patient writers (`turns`) try beside it. No writer tries while
one of a lower rank waits. A transaction that held the lock for long is logged, with its place in
the code.
"""

import logging
import os
import random
import sys
import threading
import time
from functools import cached_property
from pathlib import Path

from django.db.backends.sqlite3 import base
from django.db.utils import OperationalError

from controlplane.web.storage.turns import Rank, WaitingFlag, rank

log = logging.getLogger(__name__)

PAUSE_S = 0.002
"""Longest pause in seconds between two tries; it is random, so that writers do not try in step."""

LONGEST_DEFER_S = 0.5
"""Longest wait in seconds for writers of lower ranks: one of them may be frozen."""

LONG_S = 0.5
"""Transactions that hold the lock for more seconds are logged: heartbeats wait meanwhile."""

_PASSED_OVER = ("/django/", "/contextlib.py", "/web/storage/")
"""Parts of paths of source files that are not the place of a transaction."""

_MIGRATIONS = "/django/db/migrations/"


class DatabaseWrapper(base.DatabaseWrapper):
    """Django's backend. Its option `timeout` (s) is also the longest wait for the write lock."""

    transaction_mode: str
    looks = threading.Lock()
    """Held by the one thread of usual rank that tries."""

    _began_s: float | None = None
    """Monotonic time at which the transaction got the lock; None outside of one."""

    @cached_property
    def _flags(self) -> dict[Rank, WaitingFlag]:
        """Flags of the writers that wait, by rank."""
        database = None if self.is_in_memory_db() else Path(self.settings_dict["NAME"])
        return {rank: WaitingFlag(database, rank) for rank in Rank}

    def _start_transaction_under_autocommit(self) -> None:
        """Begin a transaction; Django calls this for each outermost one."""
        self.ensure_connection()  # which sets the mode
        if self.transaction_mode == "DEFERRED":
            # It only reads, so it neither waits for writers nor keeps them waiting.
            self.cursor().execute("BEGIN DEFERRED")
            return
        longest_s: float = self.settings_dict["OPTIONS"]["timeout"]
        until_s = time.monotonic() + longest_s
        own_rank = rank()
        self.connection.execute("PRAGMA busy_timeout = 0")
        try:
            with self._flags[own_rank].raised():
                if own_rank is Rank.USUAL:
                    self._wait_in_turn(until_s)
                else:
                    self._wait(own_rank, until_s)
        finally:
            self.connection.execute(f"PRAGMA busy_timeout = {round(1000 * longest_s)}")
        self._began_s = time.monotonic()

    def _wait_in_turn(self, until_s: float) -> None:
        """Try while no other thread of this process does; at `until_s` try once all the same."""
        has_turn = self.looks.acquire(timeout=max(0.0, until_s - time.monotonic()))
        try:
            self._wait(Rank.USUAL, until_s)
        finally:
            if has_turn:
                self.looks.release()

    def _wait(self, own_rank: Rank, until_s: float) -> None:
        """Begin once nobody writes and no writer of a lower rank waits.

        The last try is at `until_s`. Raises OperationalError if that fails.
        """
        lower = [flag for rank, flag in self._flags.items() if rank < own_rank]
        defer_until_s = min(until_s, time.monotonic() + LONGEST_DEFER_S)
        while True:
            now_s = time.monotonic()
            may_look = now_s >= defer_until_s or not any(flag.is_raised() for flag in lower)
            if may_look and self._begins(is_last=now_s >= until_s):
                return
            time.sleep(random.uniform(0.0, PAUSE_S))  # noqa: S311  # no secret

    def _begins(self, *, is_last: bool) -> bool:
        """Begin; if somebody writes return False, or raise OperationalError at the last try."""
        try:
            self.cursor().execute(f"BEGIN {self.transaction_mode}")
        except OperationalError as error:
            if is_last or "locked" not in str(error):
                raise
            return False
        return True

    def _commit(self) -> None:
        super()._commit()  # type: ignore[misc]  # the stubs lack it
        self._note_hold()

    def _rollback(self) -> None:
        super()._rollback()  # type: ignore[misc]  # the stubs lack it
        self._note_hold()

    def _note_hold(self) -> None:
        """Log a transaction that kept others from writing for long."""
        if self._began_s is None or self.is_in_memory_db():
            return
        held_s = time.monotonic() - self._began_s
        self._began_s = None
        if held_s <= LONG_S:
            return
        place = _place()
        if place:
            log.warning("a transaction held SQLite's writer for %.2f s: %s", held_s, place)


def _place() -> str:
    """Return file, line and function of the innermost caller outside Django and the storage.

    "" for a migration: no heartbeat comes while it runs.
    """
    frame = sys._getframe(1)
    while frame.f_back and any(part in frame.f_code.co_filename for part in _PASSED_OVER):
        if _MIGRATIONS in frame.f_code.co_filename:
            return ""
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _replace_lock() -> None:
    """Replace the lock in a forked child: if another thread held it, nobody would release it."""
    DatabaseWrapper.looks = threading.Lock()


os.register_at_fork(after_in_child=_replace_lock)
