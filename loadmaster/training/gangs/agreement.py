"""One rank's side of the agreement on the last step, shared by the thread that trains and those
that listen.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

EXIT_FELL = 77
STUCK_S = 10.0
"""How long a rank has to leave by itself once its gang has fallen; one that waits for the lost rank
never would.
"""

WITNESS_S = 2.0
"""How long a rank that crashes waits for word that another one was lost first: then that is why."""

WITNESS_PARTS = 20
"""It waits in so many parts: on a machine that lets it run but seldom, the thread that listens has
its turns too.
"""


class GangBroken(SystemExit):
    """Another rank was lost, or cannot be reached: this one ends with exit code 77, and the launch
    is not this one's failure.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(EXIT_FELL)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class LeftEarly(Exception):  # noqa: N818 - an order that came before there was anything to do, no fault
    """This rank was told to leave before its gang had met."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class FailureHandler:
    """How a fallen gang is told of, and how a process ends whose training thread cannot."""

    fell: Callable[[str], object]
    end: Callable[[int], object]
    stuck_s: float = STUCK_S
    witness_s: float = WITNESS_S


class Agreement:
    """What this rank has bound itself to do, and what was agreed.

    A rank binds itself at each boundary to one step more. Once it is `asked`, it does what it is
    bound to and no more, until the last step is told; that one is never before what any rank is
    bound to.
    """

    def __init__(self, on_failure: FailureHandler) -> None:
        self.changed = threading.Condition()
        """Held while anything here or in the rank that owns it changes."""
        self.is_asked = False
        self.broken: str | None = None
        self._on_failure = on_failure
        self._bound = 0
        self._last: tuple[int, str] | None = None
        self._has_left = False
        self._lost_later: str | None = None
        self._is_saving = False
        self._told = False
        self._process = os.getpid()
        self.say_goodbye: Callable[[bool], object] = lambda crashed: None
        """Ends the connections to the other ranks as this process ends."""
        atexit.register(self._at_exit)

    def begin(self, step: int) -> None:
        """The training begins after so many steps."""
        with self.changed:
            self._bound = step

    def promise(self) -> int:
        """Be asked: the step this rank does for sure, and beyond which it does not go before it is
        told the last one.
        """
        with self.changed:
            self.is_asked = True
            return self._bound

    def settle(self, last: int, reason: str) -> None:
        """The last step of all ranks is agreed."""
        with self.changed:
            self._last = last, reason
            self.changed.notify_all()

    def release(self) -> None:
        """Nobody will tell a last step any more: go on as if nobody had asked, unless one is told
        already.
        """
        with self.changed:
            self.is_asked = False
            self.changed.notify_all()

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Meanwhile this rank writes a checkpoint: that needs no other one, and is not cut short
        because another one is lost.
        """
        with self.changed:
            self._is_saving = True
        try:
            yield
        finally:
            with self.changed:
                self._is_saving = False
                self.changed.notify_all()

    def pass_boundary(self, done: int) -> str | None:
        """After so many steps: None to do another one, else why this was the last. Raises
        GangBroken.
        """
        with self.changed:
            self.changed.wait_for(lambda: self.broken or self._last or not self.is_asked)
            if self.broken is None and self._last is None:
                self._bound = done + 1
                return None
            if self.broken is None and self._last is not None:
                last, reason = self._last
                return reason if done >= last else None
        raise self.fallen()

    def fallen(self, why: str = "") -> GangBroken:
        """What to raise, and told, once the gang is broken, or found to be."""
        reason = why or self.broken or "its gang fell apart"
        self._tell(reason)
        return GangBroken(reason)

    def break_off(self, reason: str, *, willingly: bool = False) -> None:
        """A rank is lost, or has ended `willingly`: this one ends, by itself or by force.

        One that is out of the loop goes on; but if it turns out to be crashing, a rank that did not
        end willingly is why.
        """
        with self.changed:
            if self._has_left and not willingly:
                self._lost_later = self._lost_later or reason
                self.changed.notify_all()
            if self.broken is not None or self._has_left:
                return
            self.broken = reason
            self.changed.notify_all()
        start_timer(self._on_failure.stuck_s, self._end_by_force)

    def leave(self) -> None:
        """This rank is out of the loop: what becomes of the others is no longer its affair."""
        with self.changed:
            self._has_left = True

    def _end_by_force(self) -> None:
        with self.changed:
            was_saving = self._is_saving
            self.changed.wait_for(lambda: not self._is_saving)
        if self._has_left:
            return
        if was_saving:  # it leaves by itself at its next boundary, if it is not stuck
            start_timer(self._on_failure.stuck_s, self._end_by_force)
            return
        self._tell(self.broken or "", aloud=True)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        self._on_failure.end(EXIT_FELL)

    def _at_exit(self) -> None:
        """A crash that another rank's loss has caused is told as such; this rank's own is its own.

        The others are to hear of the loss before the framework's connections end with the process:
        then they know what it was.
        """
        if self._process != os.getpid():
            return
        crashed = getattr(sys, "last_value", None) is not None
        if crashed and not self._told and (why := self._witness()):
            self._tell(why, aloud=True)
        self.leave()
        self.say_goodbye(crashed)

    def _witness(self) -> str | None:
        """Which rank was lost first, if one was."""
        with self.changed:
            for _ in range(WITNESS_PARTS):
                self.changed.wait_for(
                    lambda: self.broken or self._lost_later,
                    self._on_failure.witness_s / WITNESS_PARTS,
                )
            return self.broken or self._lost_later

    def _tell(self, reason: str, *, aloud: bool = False) -> None:
        with self.changed:
            if self._told:
                return
            self._told = True
        if aloud:
            print(f"loadmaster: {reason}", file=sys.stderr, flush=True)
        self._on_failure.fell(reason)


def start_timer(after_s: float, function: Callable[[], object]) -> None:
    """Call a function then, if the process still is there."""
    timer = threading.Timer(after_s, function)
    timer.daemon = True
    timer.start()
