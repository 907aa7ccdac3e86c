"""Orders to stop a job that its guard follows: lease, the agent's order, limits of the job itself.

Part of the guard, which runs with the standard library alone.
"""

from __future__ import annotations  # containers may have Python 3.9

import json
import time
from math import inf
from pathlib import Path
from typing import Any


def boot_s() -> float:
    """Return the seconds since the machine's start, suspends included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, None if it is missing or unreadable."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict):
        return None
    return data


class Lease:
    """Lease of the job, read from its file; if that is missing or torn, the last one that was read.

    A lease of another boot does not count.
    """

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._deadline_s = -inf

    def deadline_s(self) -> float:
        """Return the lease's end on the boot clock; -inf before a lease was read."""
        data = read_json(self._path)
        if data and data.get("boot_id") == self._boot_id:
            self._deadline_s = float(data.get("deadline_s", self._deadline_s))
        return self._deadline_s


class Stopping:
    """Author of a stop, and times of SIGTERM and SIGKILL: the earliest ones of all orders.

    Times are on the boot clock, inf without an order.
    """

    def __init__(self, folder: Path, lease: Lease, grace_s: float) -> None:
        self._stop_file = folder / "stop.json"
        self._lease = lease
        self._grace_s = grace_s
        self.by: str | None = None
        """Author of the order with the earliest SIGKILL; of equal ones the first."""
        self.term_at_s = inf
        self.kill_at_s = inf
        self.limits_s: dict[str, float] = {}
        """Moments at which a limit of the job itself ends it, by the limit's name."""

    def look(self, now_s: float) -> None:
        """Read the agent's order, and order a stop if the lease or a limit is over."""
        # 1. The agent's order.
        order = read_json(self._stop_file)
        if order:
            by = str(order.get("by", "cancel"))
            self.order(by, float(order["term_at_s"]), float(order["kill_at_s"]))

        # 2. The ends of the lease, of the walltime and the like; the grace counts from there.
        ends = {"lease": self._lease.deadline_s(), **self.limits_s}
        for by, end_s in ends.items():
            if now_s >= end_s:
                self.order(by, end_s, end_s + self._grace_s)

    def order(self, by: str, term_at_s: float, kill_at_s: float) -> None:
        """Add an order. A later one can only shorten the job's time."""
        if self.by is None or kill_at_s < self.kill_at_s:
            self.by = by
        self.term_at_s = min(self.term_at_s, term_at_s)
        self.kill_at_s = min(self.kill_at_s, kill_at_s)
