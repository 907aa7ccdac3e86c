"""Clocks for operators: jumps of servers' wall clocks, and how far database and agents are off.

After a jump silence is counted anew, and deadlines that only the jump has passed wait.
"""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from django.core.cache import cache
from django.db import connection
from redis.exceptions import RedisError

from controlplane.execution.services.agent_clocks import agents_skew_s
from controlplane.web.storage.watch import THIS_MACHINE, Watch, boot_s, machine

log = logging.getLogger(__name__)

JUMP_S = 2.0
"""Seconds by which wall and boot clock must move apart to count as a jump."""

DRIFT = 0.1
"""Largest drift, as a fraction of the time gone by, that is no jump."""

KEY = "loadmaster.clock_jumps"
KEPT_S = 7 * 86_400
"""Key of the jumps in the cache, and the seconds for which they are kept there."""

DOUBT_S = 600.0
"""Seconds after a jump within which the clock may be set right again."""

UNKNOWN_S = 10 * 365 * 86_400.0
"""Seconds by which a clock may be ahead whose jumps cannot be read: no deadline is that old."""

SAME_S = 300.0
"""Seconds within which another process of the machine notices the same jump."""


@dataclass(slots=True)
class WallClock:
    """Wall clock of a process against its boot clock; both in seconds."""

    wall: Callable[[], float] = time.time
    boot: Callable[[], float] = boot_s
    _last_wall_s: float | None = field(default=None, init=False)
    _last_boot_s: float = field(default=0.0, init=False)

    def jumped_s(self) -> float:
        """Return the jump since the last call in seconds, back: negative; 0 for none."""
        wall_s, now_s = self._read()
        elapsed_s = now_s - self._last_boot_s
        jump_s = 0.0
        if self._last_wall_s is not None:
            jump_s = wall_s - self._last_wall_s - elapsed_s
        self._last_wall_s = wall_s
        self._last_boot_s = now_s
        return jump_s if abs(jump_s) > JUMP_S + DRIFT * elapsed_s else 0.0

    def _read(self) -> tuple[float, float]:
        """Read (wall, boot) at one moment, however busy the machine is."""
        while True:
            before_s = self.boot()
            wall_s = self.wall()
            after_s = self.boot()
            if after_s - before_s < JUMP_S / 4:
                return wall_s, after_s


@dataclass(frozen=True, slots=True)
class Jumps:
    """Number of jumps noticed by all machines, and the last of them.

    `last_s`: its length in seconds. `machine`, `process`: which noticed it, at `at_boot_s` on the
    machine's boot clock.
    """

    number: int
    last_s: float
    machine: str
    process: int
    at_boot_s: float

    def is_of(self, jump_s: float) -> bool:
        """Return True if another process of this machine has noted this very jump."""
        is_as_long = abs(self.last_s - jump_s) < JUMP_S
        is_recent = boot_s() - self.at_boot_s < SAME_S
        is_other_process = self.machine == machine() and self.process != os.getpid()
        return is_as_long and is_recent and is_other_process


_wall = WallClock()


def note_jump(wall: WallClock = _wall, watch: Watch = THIS_MACHINE) -> bool:
    """Look for a jump of this process's wall clock; after one, silence is counted anew.

    Return False if there is none, or if another process has noted it already.
    """
    jump_s = wall.jumped_s()
    if not jump_s:
        return False
    log.warning("the wall clock of this machine jumped by %+.1f s", jump_s)
    try:
        earlier = jumps()
        if earlier is not None and earlier.is_of(jump_s):
            return False
        number = 1 if earlier is None else earlier.number + 1
        jump = Jumps(number, jump_s, machine(), os.getpid(), boot_s())
        recent = [*_recent_jumps(), (jump_s, boot_s())]
        cache.set_many({KEY: asdict(jump), _recent_key(): recent}, KEPT_S)
    except (RedisError, OSError) as error:
        log.warning("the jump is not noted: %s", error)
    watch.start_anew()
    return True


def ahead_s() -> float:
    """Return by how many seconds jumps within DOUBT_S have set this machine's wall clock ahead."""
    try:
        return max(0.0, sum(jump_s for jump_s, _ in _recent_jumps()))
    except (RedisError, OSError) as error:
        log.warning("whether the clock jumped is not known: %s", error)
        return UNKNOWN_S


def _recent_key() -> str:
    return f"{KEY}.{machine()}"


def _recent_jumps() -> list[tuple[float, float]]:
    """Jumps of this machine within DOUBT_S: (seconds, when on its boot clock)."""
    since_s = boot_s() - DOUBT_S
    return [(jump_s, at_s) for jump_s, at_s in cache.get(_recent_key(), []) if at_s > since_s]


def jumps() -> Jumps | None:
    """Jumps that reconcilers have noticed; None if none."""
    stored = cache.get(KEY)
    return Jumps(**stored) if stored else None


def database_skew_s() -> float | None:
    """Seconds by which the database's clock is ahead; None where it has none of its own."""
    if connection.vendor != "postgresql":
        return None
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXTRACT(EPOCH FROM clock_timestamp())")
        return float(cursor.fetchone()[0]) - time.time()


def report() -> dict[str, Any]:
    """Report of clocks for /readyz; seconds, None if not known."""
    jumped = jumps()
    skews = agents_skew_s()
    return {
        "jumps": jumped.number if jumped else 0,
        "last_jump_s": _rounded(jumped.last_s if jumped else None),
        "database_skew_s": _rounded(database_skew_s()),
        "agents_skew_s": [round(skew, 1) for skew in skews] if skews else None,
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
