"""Turns to ask policies: one question at a time in each web process, as it takes a processor."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection
from rest_framework import status
from rest_framework.exceptions import APIException

EACH = 2
"""Questions of one user: one that is asked, one that waits."""

MOST = 8
"""Questions asked or waiting: each holds a thread."""

PATIENCE_S = 5.0
"""Seconds to wait while the same web process answers another question."""

RETRY_S = 2


class BusyError(APIException):
    """Others are asking, or the user is already; to be tried again."""

    status_code = status.HTTP_429_TOO_MANY_REQUESTS
    default_code = "busy"
    wait = RETRY_S


class Turns:
    """Turns of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turn = threading.BoundedSemaphore(1)
        self._asking: Counter[int] = Counter()

    @contextmanager
    def of(self, user: int, patience_s: float = PATIENCE_S) -> Iterator[None]:
        """Wait for the user's turn, which ends with the block. BusyError."""
        self._enter(user)
        try:
            if not self._turn.acquire(blocking=False) and not self._wait(patience_s):
                raise BusyError("others are asking just now; try again in a few seconds")
            try:
                yield
            finally:
                self._turn.release()
        finally:
            self._leave(user)

    def _wait(self, patience_s: float) -> bool:
        if not connection.in_atomic_block:
            connection.close()  # a question that waits needs none
        return self._turn.acquire(timeout=patience_s)

    def _enter(self, user: int) -> None:
        """Count a question. BusyError if the user, or all together, ask too many."""
        with self._lock:
            if self._asking[user] >= EACH:
                text = f"you have {EACH} what-ifs under way, the most of one user"
                raise BusyError(f"{text}; wait for them (no setting raises this limit)")
            if self._asking.total() >= MOST:
                raise BusyError("others are asking just now; try again in a few seconds")
            self._asking[user] += 1

    def _leave(self, user: int) -> None:
        with self._lock:
            self._asking[user] -= 1
            self._asking += Counter()  # forgets who asks nothing


TURNS = Turns()
