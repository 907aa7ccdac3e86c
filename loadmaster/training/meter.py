"""The pace of a training as it goes."""

import time
from collections import deque

RECENT_STEPS = 32


class Meter:
    """Recent steps per second from step times alone, without pauses."""

    def __init__(self) -> None:
        self.first_s: float | None = None
        self._mark_s = 0.0
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)

    def start(self) -> None:
        """The first step begins; later calls change nothing."""
        if self.first_s is None:
            self.first_s = self._mark_s = time.monotonic()

    def step(self) -> None:
        """A step has ended, and the next one begins."""
        now_s = time.monotonic()
        self._recent.append(now_s - self._mark_s)
        self._mark_s = now_s

    def pause(self, seconds: float) -> None:
        """So much of the time since the last step was none of the next one's."""
        self._mark_s += seconds

    @property
    def elapsed_s(self) -> float:
        """Since the first step began."""
        return 0.0 if self.first_s is None else time.monotonic() - self.first_s

    @property
    def steps_per_s(self) -> float | None:
        """Over the last steps; None before the first."""
        taken_s = sum(self._recent)
        return len(self._recent) / taken_s if taken_s > 0 else None
