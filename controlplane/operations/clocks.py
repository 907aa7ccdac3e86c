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
DOUBT_S = 600.0
"""Seconds after a jump within which the clock may be set right again."""

UNKNOWN_S = 10 * 365 * 86_400.0
"""Seconds by which a clock may be ahead whose jumps cannot be read: no deadline is that old."""

SAME_S = 300.0
"""Seconds within which another process of the machine notices the same jump."""


@dataclass(slots=True)
class WallClock:
    """Wall clock of a process against its boot clock."""

    wall: Callable[[], float] = time.time
    boot: Callable[[], float] = boot_s
    _last: tuple[float, float] | None = field(default=None, init=False)

    def jumped_s(self) -> float:
        """Return the jump since the last call in seconds, back: negative; 0 for none."""
        before, (wall_s, at_s) = self._last, self._read()
        self._last = wall_s, at_s
        if before is None:
            return 0.0
        gone_s = at_s - before[1]
        moved_s = wall_s - before[0] - gone_s
        return moved_s if abs(moved_s) > JUMP_S + DRIFT * gone_s else 0.0

    def _read(self) -> tuple[float, float]:
        """Read both clocks at one moment, however busy the machine is."""
        while True:
            first_s, wall_s, last_s = self.boot(), self.wall(), self.boot()
            if last_s - first_s < JUMP_S / 4:
                return wall_s, last_s


@dataclass(frozen=True, slots=True)
class Jumps:
    """Number of jumps noticed, and the last: seconds, machine, process, when on its boot clock."""

    number: int
    last_s: float
    machine: str
    process: int
    at_boot_s: float

    def is_of(self, jump_s: float) -> bool:
        """Return True if another process of this machine has noted this very jump."""
        near = abs(self.last_s - jump_s) < JUMP_S and boot_s() - self.at_boot_s < SAME_S
        return near and self.machine == machine() and self.process != os.getpid()


_wall = WallClock()


def note_jump(wall: WallClock = _wall, watch: Watch = THIS_MACHINE) -> bool:
    """Look for a jump of this process's wall clock; after one, silence is counted anew."""
    jump_s = wall.jumped_s()
    if not jump_s:
        return False
    log.warning("the wall clock of this machine jumped by %+.1f s", jump_s)
    try:
        known = jumps()
        if known is not None and known.is_of(jump_s):
            return False
        number = (known.number if known else 0) + 1
        jump = Jumps(number, jump_s, machine(), os.getpid(), boot_s())
        cache.set_many({KEY: asdict(jump), _doubt(): [*_doubted(), (jump_s, boot_s())]}, KEPT_S)
    except (RedisError, OSError) as error:
        log.warning("the jump is not noted: %s", error)
    watch.start_anew()
    return True


def ahead_s() -> float:
    """Return by how many seconds jumps within DOUBT_S have set this machine's wall clock ahead."""
    try:
        return max(0.0, sum(jump_s for jump_s, _ in _doubted()))
    except (RedisError, OSError) as error:
        log.warning("whether the clock jumped is not known: %s", error)
        return UNKNOWN_S


def _doubt() -> str:
    return f"{KEY}.{machine()}"


def _doubted() -> list[tuple[float, float]]:
    """Jumps of this machine within DOUBT_S: seconds, when on its boot clock."""
    since_s = boot_s() - DOUBT_S
    return [(jump_s, at_s) for jump_s, at_s in cache.get(_doubt(), []) if at_s > since_s]


def jumps() -> Jumps | None:
    """Jumps that reconcilers have noticed; None if none."""
    found = cache.get(KEY)
    return Jumps(**found) if found else None


def database_skew_s() -> float | None:
    """Seconds by which the database's clock is ahead; None where it has none of its own."""
    if connection.vendor != "postgresql":
        return None
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXTRACT(EPOCH FROM clock_timestamp())")
        return float(cursor.fetchone()[0]) - time.time()


def report() -> dict[str, Any]:
    """Report of clocks for /readyz; seconds."""
    known, skews = jumps(), agents_skew_s()
    return {
        "jumps": known.number if known else 0,
        "last_jump_s": round(known.last_s, 1) if known else None,
        "database_skew_s": _rounded(database_skew_s()),
        "agents_skew_s": [round(skew, 1) for skew in skews] if skews else None,
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
