"""Pace of users: requests of users with high recent processor time wait while others are active.

One thread of a web process runs at a time, so one user's what-ifs would slow down everybody's
pages. A user who is alone never waits. Strangers are paced together, as one user. The time of a
login is charged to the user who logs in.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic

from controlplane.web.http.asgi import SPENT_S, USER, Scope

SHARE = 0.1
"""Fraction of a processor that a user may take in the long run."""

FREE_S = 0.3
"""Processor seconds that a user may take at once beyond that."""

LITTLE_S = 0.1
"""Processor seconds below which a user is a light one. Others wait only for light users: if all
users take much, none would gain by waiting.
"""

LONGEST_S = 4.0
"""Longest wait in seconds of a user's request that the one before it causes."""

ACTIVE_S = 1.0
"""Seconds for which a light user counts as active after a request."""

STRANGERS = "strangers"
"""Name of the account of all strangers."""

POLL_S = 0.02
"""Seconds between two checks of a waiting request."""


@dataclass(slots=True)
class Account:
    """Processor seconds that a user took, less the share that was forgiven until `at_s`."""

    spent_s: float = 0.0
    at_s: float = 0.0
    only_waiter: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """Held by the first of the user's waiting requests, which alone checks if it may go on."""


class Pace:
    """Accounts of the users of one web process; `clock` in seconds."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._accounts: defaultdict[str, Account] = defaultdict(Account)
        self._light_users_s: dict[str, float] = {}
        """Time of each light user's last request."""

    @asynccontextmanager
    async def turn(self, user: str, scope: Scope) -> AsyncIterator[None]:
        """Wait until the user may have a thread, and charge the time that the request takes."""
        account = self._accounts[user]
        async with AsyncExitStack() as stack:
            # 1. A user who took much waits while a light one is active.
            if self._must_wait(user, account):
                await stack.enter_async_context(account.only_waiter)
                while self._must_wait(user, account):
                    await asyncio.sleep(POLL_S)

            # 2. A light user is active from now on.
            began_s = self._clock()
            if account.spent_s < LITTLE_S:
                self._light_users_s[user] = began_s
            try:
                yield
            finally:
                # 3. Charge the time to the user as whom the request was answered. After a login the
                #    stranger is no longer active, or the user who logged in would wait for it.
                user_id = scope.get(USER)
                charged_user = user if user_id is None else f"user {user_id}"
                if charged_user != user and self._light_users_s.get(user) == began_s:
                    del self._light_users_s[user]
                self._charge(self._accounts[charged_user], scope.pop(SPENT_S, 0.0))

    def _must_wait(self, user: str, account: Account) -> bool:
        """Return True if the user took much, and a light user is active."""
        return self._is_over(account) and self._others_are_active(user)

    def _others_are_active(self, user: str) -> bool:
        """Return True if another light user came lately."""
        since_s = self._clock() - ACTIVE_S
        recent = {name: at_s for name, at_s in self._light_users_s.items() if at_s > since_s}
        self._light_users_s = recent
        return any(name != user for name in recent)

    def _is_over(self, account: Account) -> bool:
        """Return True if the account has more than may be taken at once."""
        self._charge(account, 0.0)
        return account.spent_s > FREE_S

    def _charge(self, account: Account, seconds: float) -> None:
        """Forgive the user's share of the time since the last charge, and add these seconds."""
        now_s = self._clock()
        forgiven_s = SHARE * (now_s - account.at_s)
        left_s = max(0.0, account.spent_s - forgiven_s)
        account.spent_s = min(left_s + seconds, FREE_S + SHARE * LONGEST_S)
        account.at_s = now_s
