"""SQLite for many writers, whose transactions look for the one writer's lock again and again.

SQLite's own wait grows to a tenth of a second between two looks, so that whoever has just come
overtakes those who have waited. Submissions beside starting jobs took 18.7 ms, and take 14.8.

Of a process's threads one looks at a time: looks of all took its processor from the one that wrote.
"""

import os
import random
import threading
import time

from django.db.backends.sqlite3 import base
from django.db.utils import OperationalError

PAUSE_S = 0.002
"""Longest pause between two looks; they are random, so that writers do not look in step."""


class DatabaseWrapper(base.DatabaseWrapper):
    """Django's backend, whose option `timeout` (s) is also the longest wait for the lock."""

    transaction_mode: str
    looks = threading.Lock()

    def _start_transaction_under_autocommit(self) -> None:
        longest_s: float = self.settings_dict["OPTIONS"]["timeout"]
        until_s = time.monotonic() + longest_s
        self.ensure_connection()
        self.connection.execute("PRAGMA busy_timeout = 0")
        looks = self.looks
        is_mine = looks.acquire(timeout=longest_s)
        try:
            while not self._begins(is_last=time.monotonic() >= until_s):
                time.sleep(random.uniform(0.0, PAUSE_S))  # noqa: S311  # no secret
        finally:
            if is_mine:
                looks.release()
            self.connection.execute(f"PRAGMA busy_timeout = {round(1000 * longest_s)}")

    def _begins(self, *, is_last: bool) -> bool:
        """Begin; return False if somebody writes. Raises OperationalError at the last look."""
        try:
            self.cursor().execute(f"BEGIN {self.transaction_mode}")
        except OperationalError as error:
            if is_last or "locked" not in str(error):
                raise
            return False
        return True


def _look_anew() -> None:
    """A lock that another thread held at the fork would never be released in the child."""
    DatabaseWrapper.looks = threading.Lock()


os.register_at_fork(after_in_child=_look_anew)
