"""Watch: measures for how long this machine has seen the stamp of a writer unchanged.

Leases are judged by it alone. A stamp is any text that its writer changes with every sign of life;
a time in it is never compared with a clock. Times are CLOCK_BOOTTIME, one clock for all processes
of a machine. Processes share their observations through the cache, but not with other machines.
Without a cache every stamp counts as just changed.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache as once
from pathlib import Path

from django.core.cache import cache
from redis.exceptions import RedisError

log = logging.getLogger(__name__)

KEPT_S = 7 * 86_400
"""Seconds for which an observation is kept: lease, grace and margin are at most a day each."""

FROM = "from"
"""Name under which the time of the last `start_anew` is kept."""

_PROC = Path("/proc")


def boot_s() -> float:
    """Return the seconds since this machine's boot; no clock setting moves them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@once
def machine() -> str:
    """Return a digest of this machine's boot and boot clock, which its containers share."""
    boot = (_PROC / "sys/kernel/random/boot_id").read_text()
    clock = _PROC / "self/ns/time"
    clock_id = clock.stat().st_ino if clock.exists() else ""
    return hashlib.sha256(f"{boot}{clock_id}".encode()).hexdigest()[:16]


def stamp(*values: object) -> str:
    """Return a text of values, to be compared as a whole."""
    texts = []
    for value in values:
        texts.append(value.isoformat() if isinstance(value, datetime) else str(value))
    return " ".join(texts)


@dataclass(frozen=True, slots=True)
class Watch:
    """Observations of this machine. `clock`, in seconds, is one for all its processes."""

    clock: Callable[[], float] = boot_s
    machine: Callable[[], str] = machine

    def still_s(self, stamps: Mapping[str, str]) -> dict[str, float]:
        """Return the seconds for which each stamp was seen unchanged; 0 for the first time.

        `stamps`: the newest stamp of each writer, by the writer's name.
        """
        try:
            return self._still_s(stamps)
        except (RedisError, OSError) as error:
            log.warning("the cache is away, so nobody counts as silent: %s", error)
            return dict.fromkeys(stamps, 0.0)

    def start_anew(self) -> None:
        """Forget earlier observations, of all processes of this machine."""
        try:
            cache.set(self._key(FROM), self.clock(), KEPT_S)
        except (RedisError, OSError) as error:
            log.warning("the cache is away, so nobody counts as silent: %s", error)

    def _still_s(self, stamps: Mapping[str, str]) -> dict[str, float]:
        if not stamps:
            return {}

        # 1. Earlier observations: (stamp, when it was seen first).
        keys = {name: self._key(name) for name in stamps}
        known = cache.get_many([*keys.values(), self._key(FROM)])
        now_s = self.clock()

        # 2. A stamp that is not the known one is seen for the first time.
        since_s = {}
        changed = {}
        for name, key in keys.items():
            if key in known and known[key][0] == stamps[name]:
                since_s[name] = known[key][1]
            else:
                since_s[name] = now_s
                changed[key] = [stamps[name], now_s]
        if changed:
            cache.set_many(changed, KEPT_S)

        # 3. What was seen before a new beginning counts from there.
        from_s = known.get(self._key(FROM), 0.0)
        return {name: now_s - max(since, from_s) for name, since in since_s.items()}

    def _key(self, name: str) -> str:
        return f"watch:{self.machine()}:{name}"


THIS_MACHINE = Watch()


def leave_sign(key: str) -> None:
    """Note for ever that something has just been done. Raises RedisError without a cache."""
    cache.set(key, [machine(), boot_s()], None)


def sign_age_s(key: str, sign: object) -> float | None:
    """Return the seconds since a sign was left on this machine, or since it was first seen here.

    Return None without a sign.
    """
    if not isinstance(sign, list):
        return None
    sign_machine, left_s = sign
    if sign_machine == machine():
        return max(0.0, boot_s() - float(left_s))
    return THIS_MACHINE.still_s({key: stamp(sign_machine, left_s)})[key]
