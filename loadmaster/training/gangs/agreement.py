"""One rank's side of the agreement on the last step, shared by training and receiving threads."""

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from loadmaster.outputs import say
from loadmaster.training.checkpoints import Checkpoint

EXIT_FELL = 77
STUCK_S = 10.0
"""Time for a rank to leave by itself once its gang is broken; then it is ended by force."""

WITNESS_S = 2.0
"""Time that a crashing rank waits for news that another was lost first, which explains it."""

WITNESS_PARTS = 20
"""Parts of that wait, so that the receiving thread runs on a busy machine too."""


class GangBroken(SystemExit):
    """Another rank was lost or is out of reach: this one ends with code 77, without blame."""

    def __init__(self, reason: str) -> None:
        super().__init__(EXIT_FELL)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class LeftEarlyError(Exception):
    """This rank was told to leave before its gang met."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class FailureHandler:
    """Reports a broken gang, and ends a process whose training thread is stuck."""

    fell: Callable[[str], object]
    end: Callable[[int], object]
    stuck_s: float = STUCK_S
    witness_s: float = WITNESS_S


class Agreement:
    """Steps that this rank has promised, and the last step that all agreed on.

    Once asked, a rank does only what it promised until it is told the last step.
    """

    def __init__(self, on_failure: FailureHandler) -> None:
        self.changed = threading.Condition()
        """Guards the state here and in the owning rank."""
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
        """Closes the connections to other ranks at exit."""
        atexit.register(self._at_exit)

    def begin(self, step: int) -> None:
        """Begin training after this step."""
        with self.changed:
            self._bound = step

    def promise(self) -> int:
        """Return the promised step; go no further before the last step is known."""
        with self.changed:
            self.is_asked = True
            return self._bound

    def settle(self, last: int, reason: str) -> None:
        """The last step of all ranks is agreed."""
        with self.changed:
            self._last = last, reason
            self.changed.notify_all()

    def release(self) -> None:
        """Go on as if not asked, since no last step will come, unless one is known."""
        with self.changed:
            self.is_asked = False
            self.changed.notify_all()

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Let this rank finish writing a checkpoint even if another rank is lost."""
        with self.changed:
            self._is_saving = True
        try:
            yield
        finally:
            with self.changed:
                self._is_saving = False
                self.changed.notify_all()

    def pass_boundary(self, done: int) -> str | None:
        """Return None to do another step, else why this was the last. Raises GangBroken."""
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
        """Report the broken gang and return the exception to raise."""
        reason = why or self.broken or "its gang fell apart"
        self._report(reason)
        return GangBroken(reason)

    def break_off(self, reason: str, *, willingly: bool = False) -> None:
        """End this rank because another is lost or ended `willingly`.

        A rank out of the loop goes on; if it crashes then, the lost rank is the cause.
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
        """Leave the loop: the other ranks no longer matter."""
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
        self._report(self.broken or "", aloud=True)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        self._on_failure.end(EXIT_FELL)

    def _at_exit(self) -> None:
        """Report a crash as caused by another rank's loss, before the connections end."""
        if self._process != os.getpid():
            return
        crashed = getattr(sys, "last_value", None) is not None
        if crashed and not self._told and (why := self._witness()):
            self._report(why, aloud=True)
        self.leave()
        self.say_goodbye(crashed)

    def _witness(self) -> str | None:
        """Reason of another rank's earlier loss, or None."""
        with self.changed:
            for _ in range(WITNESS_PARTS):
                part_s = self._on_failure.witness_s / WITNESS_PARTS
                self.changed.wait_for(lambda: self.broken or self._lost_later, part_s)
            return self.broken or self._lost_later

    def _report(self, reason: str, *, aloud: bool = False) -> None:
        with self.changed:
            if self._told:
                return
            self._told = True
        if aloud:
            say(f"loadmaster: {reason}")
        self._on_failure.fell(reason)


Leaving = Callable[[], str | None]
"""Returns why this rank has to end, or None."""


class Gang:
    """This rank among the ranks of its launch: here one that knows no others.

    The rank that `leads` alone writes checkpoints; one that `finds` looks for the checkpoint.
    """

    finds = True

    def __init__(self, rank: int = 0) -> None:
        self.leads = rank == 0

    def meet(self, leaving: Leaving, newest: Checkpoint | None) -> Checkpoint | None:
        """Wait for the others; return the first checkpoint. Raises LeftEarlyError, GangBroken."""
        return newest

    def begin(self, step: int) -> None:
        """Begin training after this step."""

    def heeds(self, reason: str) -> bool:
        """Return True if this rank's reason to end counts for the gang."""
        return True

    @property
    def is_ending(self) -> bool:
        """Return True if the gang is about to end."""
        return False

    def pass_boundary(self, done: int, reason: str | None) -> str | None:
        """Return None to do another step, else why the gang ends here. Raises GangBroken."""
        return reason

    def part(self, done: int, saved: int | None) -> int | None:
        """Wait for the others at the end; return the saved step. Raises GangBroken."""
        return saved

    def saving(self) -> AbstractContextManager[None]:
        """Keep this rank from being ended by force while it writes a checkpoint."""
        return contextlib.nullcontext()

    def leave(self) -> None:
        """Leave the training loop, whatever the cause."""


class GangRank(Gang):
    """Common parts of lead and members: their side of the agreement."""

    def __init__(self, rank: int, on_failure: FailureHandler) -> None:
        super().__init__(rank)
        self._agreement = Agreement(on_failure)
        self._changed = self._agreement.changed

    @property
    def is_ending(self) -> bool:
        return self._agreement.is_asked or self._agreement.broken is not None

    def begin(self, step: int) -> None:
        self._agreement.begin(step)

    def saving(self) -> AbstractContextManager[None]:
        return self._agreement.saving()

    def leave(self) -> None:
        self._agreement.leave()


def start_timer(after_s: float, function: Callable[[], object]) -> None:
    """Call a function after a delay, on a daemon thread."""
    timer = threading.Timer(after_s, function)
    timer.daemon = True
    timer.start()
