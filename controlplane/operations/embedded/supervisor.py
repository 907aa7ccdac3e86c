"""Embedded supervisor: one process that starts, restarts and stops the others.

Children run in sessions of their own and die with the supervisor (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TextIO

from foundation.child_processes.limits import be_nice, set_death_signal
from loadmaster.files import private_folder

_TICK_S = 0.1
"""Seconds between two looks at the programs."""

_CRASHES_TO_GIVE_UP = 5
_CRASH_WINDOW_S = 60.0
"""Crashes within so many seconds after which a program is given up."""

_LARGEST_LOG = 20_000_000
"""Bytes of a log above which it is begun anew."""

_LAST_WORDS = 64_000
"""Bytes at the end of a log in which its last lines are looked for."""


class EmbeddedError(Exception):
    """Embedded default that cannot start or go on; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Program:
    """Child: command, `ready` (asked until True), time limit after SIGTERM, niceness (0 to 19)."""

    name: str
    argv: Sequence[str]
    ready: Callable[[], bool] = lambda: True
    env: Mapping[str, str] = field(default_factory=dict)
    # Long, since all programs share a starved machine; one that ends is noticed at once.
    ready_s: float = 180.0
    stop_s: float = 15.0
    nice: int = 0


class Supervisor:
    """Context manager that keeps programs running from `start` to `stop`. `home`: lock, logs."""

    def __init__(self, home: Path, say: Callable[[str], None] = print) -> None:
        self.home = home
        self.say = say
        self.asked_to_stop = False
        self._children: dict[str, _Child] = {}
        self._lock: TextIO | None = None

    def __enter__(self) -> Supervisor:
        self._lock = _take_lock(self.home)
        private_folder(self.home / "logs")
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._lock is not None:
            self._lock.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Ask for a stop; the second time kill everything."""
        if self.asked_to_stop:
            for child in self._children.values():
                child.kill()
        self.asked_to_stop = True

    def start(self, program: Program) -> None:
        """Start the program and wait until ready. EmbeddedError with its last log lines."""
        child = _Child(program, self.home / "logs" / f"{program.name}.log")
        self._children[program.name] = child
        child.start()
        deadline_s = time.monotonic() + program.ready_s
        while not program.ready():
            if not child.alive():
                raise EmbeddedError(f"{program.name} ended while it started:\n{child.last_words()}")
            if time.monotonic() > deadline_s:
                problem = f"{program.name} was not ready within {program.ready_s:.0f} s"
                raise EmbeddedError(f"{problem}:\n{child.last_words()}")
            self.pause(_TICK_S)

    def pause(self, seconds: float) -> None:
        """Wait, restarting dead programs. Raises KeyboardInterrupt after a stop request."""
        until_s = time.monotonic() + seconds
        while True:
            if self.asked_to_stop:
                raise KeyboardInterrupt
            for child in self._children.values():
                child.bound_log()
                if child.started and not child.alive() and child.restart_due():
                    event = f"{child.program.name} ended with {child.exit_code()}"
                    self.say(f"{event}; starting it again (log: {child.log})")
                    child.start()
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(_TICK_S, left_s))

    def stop(self) -> None:
        """Stop everything, the last started first; kill after a program's time limit."""
        if self.asked_to_stop and self._children:
            self.say("Stopping; jobs save a checkpoint first ...")
        for child in reversed(self._children.values()):
            child.stop()
        self._children.clear()


class _Child:
    """Process of a program, and the times of its latest deaths."""

    def __init__(self, program: Program, log: Path) -> None:
        self.program = program
        self.log = log
        self.started = False
        self._process: subprocess.Popen[bytes] | None = None
        self._deaths: list[float] = []
        self._seen_dead = False

    def start(self) -> None:
        """Start it in a session of its own, with its output at the end of its log."""
        self.bound_log()
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                list(self.program.argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.program.env},
                start_new_session=True,
                preexec_fn=partial(_become_child, self.program.nice),
            )
        self.started = True
        self._seen_dead = False

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.returncode

    def restart_due(self) -> bool:
        """Return True if a restart is due, with growing delays; EmbeddedError if it always dies."""
        # 1. Note a new death, and forget those long ago.
        now_s = time.monotonic()
        if not self._seen_dead:
            self._seen_dead = True
            recent = [death_s for death_s in self._deaths if now_s - death_s < _CRASH_WINDOW_S]
            self._deaths = [*recent, now_s]

        # 2. The first is followed by a restart at once, the next after 1 s, 2 s, ...
        if len(self._deaths) >= _CRASHES_TO_GIVE_UP:
            raise EmbeddedError(f"{self.program.name} keeps ending:\n{self.last_words()}")
        return now_s - self._deaths[-1] >= len(self._deaths) - 1

    def bound_log(self) -> None:
        """Keep a long log as `.log.1` and empty it; the program goes on at its new end."""
        if self.log.exists() and self.log.stat().st_size > _LARGEST_LOG:
            with suppress(OSError):  # a full disk: no log grows further all the same
                shutil.copyfile(self.log, self.log.with_suffix(".log.1"))
            os.truncate(self.log, 0)

    def last_words(self, lines: int = 15) -> str:
        """Return the last lines of its log."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _LAST_WORDS))
            text = file.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def stop(self) -> None:
        """End it, and kill it with its children if it takes longer than its time limit."""
        if self._process is None or not self.alive():
            return
        self._process.terminate()
        try:
            self._process.wait(self.program.stop_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        if self._process is not None and self.alive():
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _become_child(nice: int) -> None:
    """Set the child's death signal and niceness before exec."""
    set_death_signal(signal.SIGTERM)
    be_nice(nice)


def _take_lock(home: Path) -> TextIO:
    """Lock the home; EmbeddedError if another process has it."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = (home / "embedded.lock").open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise EmbeddedError(
            f"another Loadmaster already runs in {home}; stop it first, or set LOADMASTER_HOME"
        ) from None
    return lock


def python(*arguments: str) -> list[str]:
    """Command that runs this Python with these arguments."""
    return [sys.executable, *arguments]
