"""The port through which the agent reads the time; tests and virtual worlds swap it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two times: one for leases, one for the record."""

    def boot_s(self) -> float:
        """Seconds since the machine's start, suspends included; leases are counted on it."""
        ...

    def wall_s(self) -> float:
        """Unix seconds; evidence only."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def boot_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall_s(self) -> float:
        return time.time()


class VirtualClock:
    """A clock that moves when told to; boot and wall time run alike."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def boot_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
