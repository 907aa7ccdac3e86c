"""SQLite for many writers, whose transactions look for the one writer's lock again and again.

SQLite's own wait grows to a tenth of a second between two looks, so that whoever has just come
overtakes those who have waited. Submissions beside starting jobs took 18.7 ms, and take 14.8.

Of a process's threads one looks at a time: looks of all took its processor from the one that wrote.
Urgent and patient writers (`turns`) look beside it. No writer looks while one of a lower rank
waits. A transaction that held the lock for long is told in the log, with its place in the source.
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
"""Longest pause between two looks; they are random, so that writers do not look in step."""

LONGEST_DEFER_S = 0.5
"""Longest time for which a writer lets those of lower ranks go first: one of them may be frozen."""

LONG_S = 0.5
"""Seconds of holding the writer from which on it is told: heartbeats wait for a few at most."""

_PASSED_OVER = ("/django/", "/contextlib.py", "/web/storage/")
"""Parts of paths of files that are never the place of a transaction."""

_MIGRATIONS = "/django/db/migrations/"


class DatabaseWrapper(base.DatabaseWrapper):
    """Django's backend, whose option `timeout` (s) is also the longest wait for the lock."""

    transaction_mode: str
    looks = threading.Lock()
    _began_s: float | None = None

    @cached_property
    def _flags(self) -> dict[Rank, WaitingFlag]:
        database = None if self.is_in_memory_db() else Path(self.settings_dict["NAME"])
        return {rank: WaitingFlag(database, rank) for rank in Rank}

    def _start_transaction_under_autocommit(self) -> None:
        longest_s: float = self.settings_dict["OPTIONS"]["timeout"]
        until_s = time.monotonic() + longest_s
        mine = rank()
        self.ensure_connection()
        self.connection.execute("PRAGMA busy_timeout = 0")
        try:
            with self._flags[mine].raised():
                if mine is Rank.USUAL:
                    self._wait_in_turn(until_s)
                else:
                    self._wait(mine, until_s)
        finally:
            self.connection.execute(f"PRAGMA busy_timeout = {round(1000 * longest_s)}")
        self._began_s = time.monotonic()

    def _wait_in_turn(self, until_s: float) -> None:
        """Wait as the one of this process's threads that looks, once it is this one's turn."""
        is_mine = self.looks.acquire(timeout=max(0.0, until_s - time.monotonic()))
        try:
            self._wait(Rank.USUAL, until_s)
        finally:
            if is_mine:
                self.looks.release()

    def _wait(self, mine: Rank, until_s: float) -> None:
        """Begin once nobody writes and none of a lower rank waits, or look last at `until_s`."""
        lower = [flag for rank, flag in self._flags.items() if rank < mine]
        defer_until_s = min(until_s, time.monotonic() + LONGEST_DEFER_S)
        while True:
            now_s = time.monotonic()
            may_look = now_s >= defer_until_s or not any(flag.is_raised() for flag in lower)
            if may_look and self._begins(is_last=now_s >= until_s):
                return
            time.sleep(random.uniform(0.0, PAUSE_S))  # noqa: S311  # no secret

    def _begins(self, *, is_last: bool) -> bool:
        """Begin; return False if somebody writes. Raises OperationalError at the last look."""
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
        """Tell a transaction that kept others from writing for long."""
        if self._began_s is None or self.is_in_memory_db():
            return
        held_s = time.monotonic() - self._began_s
        self._began_s = None
        if held_s > LONG_S and (place := _place()):
            log.warning("a transaction held SQLite's writer for %.2f s: %s", held_s, place)


def _place() -> str:
    """File, line and function of the innermost caller outside Django and the storage.

    Empty for a migration, which nobody's heartbeat waits for.
    """
    frame = sys._getframe(1)
    while frame.f_back and any(part in frame.f_code.co_filename for part in _PASSED_OVER):
        if _MIGRATIONS in frame.f_code.co_filename:
            return ""
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _look_anew() -> None:
    """A lock that another thread held at the fork would never be released in the child."""
    DatabaseWrapper.looks = threading.Lock()


os.register_at_fork(after_in_child=_look_anew)
