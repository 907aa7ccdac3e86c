"""Times without a round, as a client of the REST API sees them."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Rounds:
    """Longest time for which the number of a cluster's newest round was seen to stand still.

    It counts while all programs are at work that rounds need, from `whole_since_s` on (monotonic).
    """

    whole_since_s: Callable[[], float]
    clock: Callable[[], float] = time.monotonic
    seen: int = 0
    longest_s: float = 0.0
    longest_at_s: float = 0.0
    """When the longest time was over, by `clock`."""

    _last: dict[str, tuple[int, float]] = field(default_factory=dict)

    def look(self, numbers: Mapping[str, int]) -> None:
        """Take in the number of each cluster's newest round."""
        now_s, whole_s = self.clock(), self.whole_since_s()
        for cluster, number in numbers.items():
            before, first_s = self._last.setdefault(cluster, (number, now_s))
            if number != before:
                self.seen += number - before
                self._last[cluster] = number, now_s
            elif (still_s := now_s - max(first_s, whole_s)) > self.longest_s:
                self.longest_s, self.longest_at_s = still_s, now_s
