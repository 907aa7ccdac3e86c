"""Speed of a training: measured, and held to that of an emulated device.

On an emulated device the real step runs inside a period of T seconds, and a clock sleeps for the
rest. Periods lie on a fixed grid, so a late step is caught up by the next ones; the fraction of
steps whose work did not fit into T is published.
"""

import math
import time
from collections import deque
from collections.abc import Callable

SLICE_S = 0.05
"""Longest sleep in seconds before the next look at whether the job shall stop."""

CATCH_UP_PERIODS = 3
"""Most periods that a late step may be behind the clock."""

RECENT_STEPS = 32
"""Steps from which the current speed is computed."""


class PacingClock:
    """Ends steps on a grid: deadline = max(deadline + T, now - 3T), then sleep until it.

    After a long stall at most three steps run unpaced. `step_s` is T in seconds and may change
    between steps; ValueError unless it is finite and above zero.
    """

    def __init__(
        self,
        step_s: float,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not (math.isfinite(step_s) and step_s > 0):
            raise ValueError(
                f"step_s must be a finite number of seconds above zero, not {step_s!r}"
            )
        self.step_s = step_s
        self._now = now
        self._sleep = sleep
        self._deadline_s: float | None = None
        self._work_began_s = 0.0
        self._steps = 0
        self._overruns = 0

    @property
    def overrun_fraction(self) -> float:
        """Fraction of steps whose work took longer than T; 0 before the first step."""
        return self._overruns / self._steps if self._steps else 0.0

    def start(self) -> None:
        """Begin the first period now; later calls change nothing."""
        if self._deadline_s is None:
            self._deadline_s = self._work_began_s = self._now()

    def shift(self, seconds: float) -> None:
        """Shift the clock by time outside of steps, such as a checkpoint."""
        if self._deadline_s is not None:
            self._deadline_s += seconds
            self._work_began_s += seconds

    def wait(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """End a step: count it and sleep until its deadline or `stopped`."""
        # 1. Count the step.
        self.start()
        now_s = self._now()
        self._steps += 1
        if now_s - self._work_began_s > self.step_s:
            self._overruns += 1

        # 2. Sleep until its deadline, in slices.
        on_the_grid_s = (self._deadline_s or 0.0) + self.step_s
        deadline_s = max(on_the_grid_s, now_s - CATCH_UP_PERIODS * self.step_s)
        while deadline_s > now_s and not stopped():
            self._sleep(min(deadline_s - now_s, SLICE_S))
            now_s = self._now()
        self._deadline_s = deadline_s
        self._work_began_s = now_s


class Meter:
    """Recent steps per second from step times alone, without pauses."""

    def __init__(self) -> None:
        self.first_s: float | None = None
        self._mark_s = 0.0
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)

    def start(self) -> None:
        """Begin the first step; later calls change nothing."""
        if self.first_s is None:
            self.first_s = self._mark_s = time.monotonic()

    def step(self) -> None:
        """End a step and begin the next one."""
        now_s = time.monotonic()
        self._recent.append(now_s - self._mark_s)
        self._mark_s = now_s

    def pause(self, seconds: float) -> None:
        """Leave time since the last step out of the next one's."""
        self._mark_s += seconds

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first step began."""
        return 0.0 if self.first_s is None else time.monotonic() - self.first_s

    @property
    def steps_per_s(self) -> float | None:
        """Speed over the last steps; None before the first."""
        taken_s = sum(self._recent)
        return len(self._recent) / taken_s if taken_s > 0 else None
