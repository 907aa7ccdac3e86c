"""Threads for the database, each with its own connection."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from django.db import close_old_connections

P = ParamSpec("P")
T = TypeVar("T")

MOST_WAITING = 2000


class OverloadedError(Exception):
    """More waiting calls than can be answered in time."""


class Threads:
    """Threads whose connections are checked before each call, at most every `trusted_s`."""

    def __init__(self, name: str, workers: int, trusted_s: float = 0.0) -> None:
        self.workers = workers
        self.pool = ThreadPoolExecutor(workers, thread_name_prefix=name)
        self._trusted_s = trusted_s
        self._here = threading.local()
        self._waiting = 0

    async def run(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `act` in one of the threads. Raises OverloadedError if too many wait."""
        if self._waiting >= MOST_WAITING:
            raise OverloadedError
        self._waiting += 1
        try:
            # Not sync_to_async, which copies the context for each call.
            return await asyncio.get_running_loop().run_in_executor(
                self.pool, lambda: self._call(lambda: act(*args, **kwargs))
            )
        finally:
            self._waiting -= 1

    def _call(self, act: Callable[[], T]) -> T:
        if time.monotonic() >= getattr(self._here, "trusted_until_s", 0.0):
            close_old_connections()
            self._here.trusted_until_s = time.monotonic() + self._trusted_s
        try:
            return act()
        except BaseException:
            self._here.trusted_until_s = 0.0
            raise
        finally:
            if not self._trusted_s:
                close_old_connections()


@dataclass(frozen=True, slots=True)
class Pools:
    """Threads of one web process by purpose."""

    calls: Threads = field(default_factory=lambda: Threads("agent-calls", 8))
    heartbeats: Threads = field(default_factory=lambda: Threads("heartbeats", 1, trusted_s=1.0))
    polls: Threads = field(default_factory=lambda: Threads("directives", 1))
    tokens: Threads = field(default_factory=lambda: Threads("tokens", 1, trusted_s=1.0))
