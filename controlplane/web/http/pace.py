"""Pace of users: who took much processor time lately waits while others take little.

A web process answers in threads of which one runs at a time, so that one member's what-ifs slow
down everybody's pages. Alone, nobody waits. Strangers are paced together, as one user; a login is
charged to the user whom it lets in.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic

from controlplane.web.http.asgi import SPENT_S, USER, Scope

SHARE = 0.1
"""Share of a processor that a user may take of a web process for long."""

FREE_S = 0.3
"""Processor time that a user may take at once beyond that."""

LITTLE_S = 0.1
"""Processor time below which a user is one that others wait for: where all take much, nobody
waits, as nobody would gain.
"""

LONGEST_S = 4.0
"""Longest time that one request makes the next one of its user wait."""

OTHERS_S = 1.0
"""Time for which a user who takes little counts as there after a request."""

STRANGERS = "strangers"
"""Name of their account."""

POLL_S = 0.02


@dataclass(slots=True)
class Account:
    """Processor time that a user took and that is not forgotten yet."""

    spent_s: float = 0.0
    at_s: float = 0.0
    alone: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))


class Pace:
    """Accounts of the users of one web process; `clock` in seconds."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._accounts: defaultdict[str, Account] = defaultdict(Account)
        self._came_s: dict[str, float] = {}

    @asynccontextmanager
    async def turn(self, user: str, scope: Scope) -> AsyncIterator[None]:
        """Wait until the user may have a thread, and charge what the request took there."""
        account = self._accounts[user]
        async with AsyncExitStack() as stack:
            if self._is_over(account) and self._others_are_there(user):
                await stack.enter_async_context(account.alone)
                while self._is_over(account) and self._others_are_there(user):
                    await asyncio.sleep(POLL_S)
            came_s = self._clock()
            if account.spent_s < LITTLE_S:
                self._came_s[user] = came_s
            try:
                yield
            finally:
                known = scope.get(USER)
                name = user if known is None else f"user {known}"
                if name != user and self._came_s.get(user) == came_s:
                    del self._came_s[user]  # or its own login would keep a user waiting
                self._charge(self._accounts[name], scope.pop(SPENT_S, 0.0))

    def _others_are_there(self, user: str) -> bool:
        """Return True if anybody else who takes little came lately."""
        since_s = self._clock() - OTHERS_S
        self._came_s = {name: at_s for name, at_s in self._came_s.items() if at_s > since_s}
        return any(name != user for name in self._came_s)

    def _is_over(self, account: Account) -> bool:
        self._charge(account, 0.0)
        return account.spent_s > FREE_S

    def _charge(self, account: Account, seconds: float) -> None:
        now_s = self._clock()
        kept_s = max(0.0, account.spent_s - SHARE * (now_s - account.at_s))
        account.spent_s = min(kept_s + seconds, FREE_S + SHARE * LONGEST_S)
        account.at_s = now_s
