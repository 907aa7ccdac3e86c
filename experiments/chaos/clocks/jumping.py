"""Jumps: a wall clock is set ahead or back, or drifts, and is right again a while later."""

import time
from collections.abc import Callable

from experiments.chaos.clocks.wall_clocks import WallClocks
from experiments.chaos.engine import Field
from experiments.chaos.schedule import CLOCK, DRIFT, DRIFTS, SERVER, Blow

PROGRAMS = ("broker", "web", "worker", "beat")
"""Programs of the server, each with a clock of its own that can be set."""


class Jumping:
    """The field of `Run` that sets clocks, and leaves other blows to another field."""

    def __init__(
        self, clocks: WallClocks, names_of: Callable[[str], list[str]], others: Field
    ) -> None:
        self._clocks, self._names_of, self._others = clocks, names_of, others
        self._right_at_s: dict[str, float] = {}

    def strike(self, blow: Blow) -> str | None:
        """Set the clocks of the blow's target."""
        if blow.part != CLOCK:
            return self._others.strike(blow)
        drifts = blow.how == DRIFTS
        for name in self._names(blow):
            self._clocks.move(name, 0.0 if drifts else float(blow.how), DRIFT if drifts else 0.0)
            self._right_at_s[name] = time.monotonic() + blow.hold_s
        said = f"{DRIFT:.0%} fast" if drifts else f"by {blow.how} s"
        return f"set the clock of {blow.target} {said} for {blow.hold_s:.1f} s"

    def _names(self, blow: Blow) -> list[str]:
        """All programs of the server, or one of those of the target's kind."""
        if blow.target == SERVER:
            return [name for kind in PROGRAMS for name in self._names_of(kind)]
        names = self._names_of(blow.target)
        return [names[blow.number % len(names)]]

    def mend(self) -> None:
        """Set clocks right whose time has come."""
        self._others.mend()
        now_s = time.monotonic()
        for name, at_s in list(self._right_at_s.items()):
            if at_s <= now_s:
                self._clocks.move(name, 0.0)
                del self._right_at_s[name]
