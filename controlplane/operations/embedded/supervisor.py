"""Embedded supervisor: one process that starts, restarts and stops the others.

Children run in sessions of their own and die with the supervisor (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import ctypes
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

from loadmaster.files import private_folder
from policies.host.lifetime import be_nice

_PR_SET_PDEATHSIG = 1
_TICK_S = 0.1
_CRASHES_TO_GIVE_UP = 5
_CRASH_WINDOW_S = 60.0
_LARGEST_LOG = 20_000_000
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
    ready_s: float = 60.0
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
        if self.asked_to_stop:  # the second Ctrl-C means it
            for child in self._children.values():
                child.kill()
        self.asked_to_stop = True

    def start(self, program: Program) -> None:
        """Start the program and wait until ready. EmbeddedError with its last log lines."""
        child = _Child(program, self.home / "logs" / f"{program.name}.log")
        self._children[program.name] = child
        child.start()
        give_up = time.monotonic() + program.ready_s
        while not program.ready():
            if not child.alive():
                raise EmbeddedError(f"{program.name} ended while it started:\n{child.last_words()}")
            if time.monotonic() > give_up:
                late = f"{program.name} was not ready within {program.ready_s:.0f} s"
                raise EmbeddedError(f"{late}:\n{child.last_words()}")
            self.pause(_TICK_S)

    def pause(self, seconds: float) -> None:
        """Wait, restarting dead programs. Raises KeyboardInterrupt after a stop request."""
        until = time.monotonic() + seconds
        while True:
            if self.asked_to_stop:
                raise KeyboardInterrupt
            for child in self._children.values():
                child.bound_log()
                if child.started and not child.alive() and child.restart_due():
                    ended = f"{child.program.name} ended with {child.exit_code()}"
                    self.say(f"{ended}; starting it again (log: {child.log})")
                    child.start()
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(_TICK_S, left))

    def stop(self) -> None:
        """Stop everything, the last started first; kill after a program's time limit."""
        if self.asked_to_stop and self._children:
            self.say("Stopping; jobs save a checkpoint first ...")
        for child in reversed(self._children.values()):
            child.stop()
        self._children.clear()


class _Child:
    def __init__(self, program: Program, log: Path) -> None:
        self.program = program
        self.log = log
        self.started = False
        self._process: subprocess.Popen[bytes] | None = None
        self._deaths: list[float] = []
        self._seen_dead = False

    def start(self) -> None:
        self.bound_log()
        with self.log.open("ab") as output:
            null, both = subprocess.DEVNULL, subprocess.STDOUT
            self._process = subprocess.Popen(
                list(self.program.argv), stdin=null, stdout=output, stderr=both,
                env={**os.environ, **self.program.env}, start_new_session=True,
                preexec_fn=partial(_become_child, self.program.nice),
            )  # fmt: skip
        self.started, self._seen_dead = True, False

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.returncode

    def restart_due(self) -> bool:
        """Return True if a restart is due, with growing delays; EmbeddedError if it always dies."""
        now = time.monotonic()
        if not self._seen_dead:
            self._seen_dead = True
            self._deaths = [d for d in self._deaths if now - d < _CRASH_WINDOW_S] + [now]
        if len(self._deaths) >= _CRASHES_TO_GIVE_UP:
            raise EmbeddedError(f"{self.program.name} keeps ending:\n{self.last_words()}")
        return now - self._deaths[-1] >= len(self._deaths) - 1

    def bound_log(self) -> None:
        """Keep a long log as `.log.1` and empty it; the program goes on at its new end."""
        if self.log.exists() and self.log.stat().st_size > _LARGEST_LOG:
            with suppress(OSError):  # a full disk: no log grows further all the same
                shutil.copyfile(self.log, self.log.with_suffix(".log.1"))
            os.truncate(self.log, 0)

    def last_words(self, lines: int = 15) -> str:
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _LAST_WORDS))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
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
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    be_nice(nice)


def _take_lock(home: Path) -> TextIO:
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
    return [sys.executable, *arguments]
