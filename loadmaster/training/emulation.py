"""The emulated device clock: gives real training steps the pace of a GPU this machine does not
have.

The real step runs inside a period of T seconds, T being the step time of the job's kind on the
emulated GPU type; the clock sleeps for what is left of the period. Periods follow each other on a
fixed grid (a late step is caught up by the next ones), so the pace stays right although several
trainers share a few cores; stretching each step by a sleep of fixed length would not. T may change
between steps (`step_s`): another job has come onto the device, or has left it. What was slept is
never presented as work: the share of steps whose real work did not fit into T is published beside
the pace.
"""

import math
import time
from collections.abc import Callable

SLICE_S = 0.05
CATCH_UP_PERIODS = 3


def _never() -> bool:
    return False


class PacingClock:
    """Ends steps on a grid of `step_s` seconds: deadline = max(deadline + T, now - 3T), then sleep
    until the deadline.

    The bound of 3T forgets what cannot be caught up: after a long stall at most three steps run
    unpaced.

    Args:
        step_s: T, the seconds one step takes on the emulated device; finite and above zero.
        now: a monotonic clock in seconds.
        sleep: sleeps for a number of seconds.

    Raises:
        ValueError: `step_s` is not a finite number above zero.
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

    def wait(self, stopped: Callable[[], bool] = _never) -> None:
        """End a step: count it and sleep until its deadline or `stopped`."""
        self.start()
        now_s = self._now()
        self._count(now_s - self._work_began_s)
        deadline_s = max(
            (self._deadline_s or 0.0) + self.step_s, now_s - CATCH_UP_PERIODS * self.step_s
        )
        while (left_s := deadline_s - now_s) > 0 and not stopped():
            self._sleep(min(left_s, SLICE_S))
            now_s = self._now()
        self._deadline_s, self._work_began_s = deadline_s, now_s

    def _count(self, work_s: float) -> None:
        self._steps += 1
        self._overruns += work_s > self.step_s
