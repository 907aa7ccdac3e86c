"""Virtual clock: a heap of (time_s, sequence, action), stable for equal times."""

import heapq
from collections.abc import Callable
from itertools import count
from math import inf
from typing import TypeAlias

Action: TypeAlias = Callable[[], object]


class Engine:
    """Queue of actions; `now_s` is the time of the current one."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s
        self._sequence = count()
        self._heap: list[tuple[float, int, Action]] = []

    def at(self, time_s: float, action: Action) -> None:
        """Schedule `action` at `time_s`. ValueError for a past time."""
        if not time_s >= self.now_s:
            raise ValueError(f"it is {self.now_s} s already: nothing can be put in at {time_s} s")
        heapq.heappush(self._heap, (time_s, next(self._sequence), action))

    def after(self, delay_s: float, action: Action) -> None:
        """Schedule `action` in `delay_s` seconds."""
        self.at(self.now_s + delay_s, action)

    def step(self) -> bool:
        """Run the next action; False if there is none."""
        if not self._heap:
            return False
        self.now_s, _, action = heapq.heappop(self._heap)
        action()
        return True

    def pass_until(self, time_s: float) -> None:
        """Advance time within an action: run everything up to and including `time_s`."""
        self.run(time_s)
        self.now_s = max(self.now_s, time_s)

    def run(self, until_s: float = inf) -> None:
        """Run all actions up to and including `until_s`."""
        while self._heap and self._heap[0][0] <= until_s:
            self.step()
