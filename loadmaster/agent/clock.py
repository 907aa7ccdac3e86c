"""Time: the agent's clock, swapped in tests, and the pauses before retries."""

import random
import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks: one for leases, one for the record."""

    def boot_s(self) -> float:
        """Return the seconds since the machine's start, suspends included; leases count on it."""

    def wall_s(self) -> float:
        """Return Unix seconds, for records only."""


class SystemClock:
    def boot_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall_s(self) -> float:
        return time.time()


BASE_S = 0.5
CAP_S = 10.0


class Backoff:
    """Waits before retries, by key: uniform(0, min(cap, base * 2^n)) seconds after n failures."""

    def __init__(
        self, base_s: float = BASE_S, cap_s: float = CAP_S, jitter: random.Random | None = None
    ) -> None:
        self.cap_s = cap_s
        self._base_s = base_s
        self._jitter = jitter or random.SystemRandom()
        self._failures: dict[str, int] = {}
        self._next_s: dict[str, float] = {}

    def is_due(self, key: str, now_s: float) -> bool:
        """Return True if the call of this key may be tried now."""
        return now_s >= self._next_s.get(key, float("-inf"))

    def failed(self, key: str, now_s: float) -> float:
        """Note a failure, and return the wait in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        wait_s = self._jitter.uniform(0.0, min(self.cap_s, self._base_s * 2 ** min(failures, 30)))
        self._next_s[key] = now_s + wait_s
        return wait_s

    def succeeded(self, key: str) -> None:
        """Forget the key's failures."""
        self._failures.pop(key, None)
        self._next_s.pop(key, None)
