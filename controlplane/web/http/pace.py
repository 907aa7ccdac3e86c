"""Pace of one caller: who took much processor time lately waits while others take little.

A web process answers in threads of which one runs at a time, so that one member's what-ifs slow
down everybody's pages. Alone, nobody waits.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from math import inf
from time import monotonic

from controlplane.web.http.asgi import SPENT_S, Scope

SHARE = 0.1
"""Share of a processor that a caller may take of a web process for long."""

FREE_S = 0.3
"""Processor time that a caller may take at once beyond that."""

LITTLE_S = 0.1
"""Processor time below which a caller is one that others wait for: where all take much, nobody
waits, as nobody would gain.
"""

LONGEST_S = 4.0
"""Time after which a request costs its caller no more waiting, whatever it took."""

OTHERS_S = 1.0
"""Time for which a caller who takes little counts as there after a request."""

POLL_S = 0.02


@dataclass(slots=True)
class Account:
    """Processor time that a caller took and that is not forgotten yet."""

    spent_s: float = 0.0
    at_s: float = 0.0
    alone: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))


class Pace:
    """Accounts of the callers of one web process; `clock` in seconds."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._accounts: defaultdict[str, Account] = defaultdict(Account)
        self._newest, self._newest_s, self._other_s = "", -inf, -inf

    @asynccontextmanager
    async def turn(self, caller: str, scope: Scope) -> AsyncIterator[None]:
        """Wait until the caller may have a thread, and charge what its request took there."""
        account = self._accounts[caller]
        async with AsyncExitStack() as stack:
            if self._is_over(account) and self._others_are_there(caller):
                await stack.enter_async_context(account.alone)
                while self._is_over(account) and self._others_are_there(caller):
                    await asyncio.sleep(POLL_S)
            elif account.spent_s < LITTLE_S:
                self._note(caller)
            try:
                yield
            finally:
                self._charge(account, scope.get(SPENT_S, 0.0))

    def _note(self, caller: str) -> None:
        """Note when the newest caller came, and when anybody else last did before."""
        if caller != self._newest:
            self._newest, self._other_s = caller, self._newest_s
        self._newest_s = self._clock()

    def _others_are_there(self, caller: str) -> bool:
        came_s = self._other_s if caller == self._newest else self._newest_s
        return self._clock() < came_s + OTHERS_S

    def _is_over(self, account: Account) -> bool:
        self._charge(account, 0.0)
        return account.spent_s > FREE_S

    def _charge(self, account: Account, seconds: float) -> None:
        now_s = self._clock()
        kept_s = max(0.0, account.spent_s - SHARE * (now_s - account.at_s))
        account.spent_s = min(kept_s + seconds, FREE_S + SHARE * LONGEST_S)
        account.at_s = now_s
