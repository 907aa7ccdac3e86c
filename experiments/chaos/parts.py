"""Programs of the system under chaos, which are killed and restarted one by one."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import psutil

from loadmaster.training.run_folder import boot_s

_PR_SET_PDEATHSIG = 1
BACK_AFTER_S = 0.5
ROOT = Path(__file__).resolve().parents[2]
STOP_S = 15.0
READY = {
    "worker": b" ready.",
    "web": b"startup complete",
    "beat": b"is starting",
    "broker": b"Ready to accept",
    "agent": b"session of epoch",
    "database": b"ready to accept connections",
}
"""Words in a part's log once it is at work."""


@dataclass(slots=True)
class Part:
    """A program: its command, its log, and when to start it again (None while it runs)."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    back_at_s: float | None = None
    starts: int = 0
    died_by_itself: list[int] = field(default_factory=list)
    logged: int = 0
    at_work_s: float | None = None
    started_s: float = inf
    """When it was last started, monotonic; `slowest_start_s`: until it was at work."""

    slowest_start_s: float = 0.0

    away: list[tuple[float, float]] = field(default_factory=list)
    """From when to when it was away, cut off or not yet at work again, by the boot clock."""

    @property
    def kind(self) -> str:
        """Its name without the number of one of several."""
        return self.name.partition("-")[0]

    @property
    def is_alive(self) -> bool:
        """Return True if its main process runs."""
        return self.process is not None and self.process.poll() is None

    def works_since(self, seconds: float) -> bool:
        """Return True if it runs and was ready so many seconds ago."""
        if self.is_alive and self.at_work_s is None and self._says_it_is_ready():
            self.at_work_s = time.monotonic()
            self.slowest_start_s = max(self.slowest_start_s, self.at_work_s - self.started_s)
            self.note_back()
        return (
            self.is_alive
            and self.at_work_s is not None
            and time.monotonic() - self.at_work_s >= seconds
        )

    def _says_it_is_ready(self) -> bool:
        with self.log.open("rb") as file:
            file.seek(self.logged)
            return READY[self.kind] in file.read()

    def start(self) -> None:
        """Start it in a session of its own; it dies with this process."""
        with self.log.open("ab") as output:
            self.logged = output.tell()
            self.process = subprocess.Popen(
                list(self.argv),
                cwd=ROOT,
                env={**os.environ, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        self.back_at_s = self.at_work_s = None
        self.started_s = time.monotonic()
        self.starts += 1

    def kill(self, back_after_s: float) -> None:
        """SIGKILL its main process alone: its children must find out by themselves."""
        if self.process is None:
            return
        self.note_away()
        self.process.kill()
        self.process.wait()
        self.back_at_s = time.monotonic() + back_after_s

    def note_away(self) -> None:
        """Note that it can be reached no more."""
        if not self.away or self.away[-1][1] < inf:
            self.away.append((boot_s(), inf))

    def note_back(self) -> None:
        """Note that it can be reached again."""
        if self.away and self.away[-1][1] == inf:
            self.away[-1] = (self.away[-1][0], boot_s())

    def look(self) -> None:
        """Start it again if its time has come; one that ended by itself comes back soon."""
        if self.process is None or self.works_since(0) or self.is_alive:
            return
        if self.back_at_s is None:
            self.died_by_itself.append(self.process.returncode)
            self.back_at_s = time.monotonic() + BACK_AFTER_S
        elif time.monotonic() >= self.back_at_s:
            self.start()

    def ask_to_stop(self) -> None:
        """SIGTERM."""
        if self.process is not None:
            self.process.terminate()

    def stop(self, until_s: float) -> None:
        """Wait for its end until then (monotonic seconds), then SIGKILL its whole session."""
        if self.process is None:
            return
        try:
            self.process.wait(max(0.0, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process = None

    def child(self, words: str) -> psutil.Process | None:
        """A descendant whose command line has the words ("" for a child of the same program)."""
        if self.process is None:
            return None
        with contextlib.suppress(psutil.Error):
            own = psutil.Process(self.process.pid)
            for child in own.children(recursive=bool(words)):
                with contextlib.suppress(psutil.Error):
                    line = " ".join(child.cmdline())
                    if (words in line) if words else ("policies" not in line):
                        return child
        return None


def end_what_is_left(marks: Iterable[tuple[str, str]]) -> list[str]:
    """Kill processes whose environment has one of the pairs; return their command lines."""
    wanted, found = list(marks), []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environment = process.environ()
            if process.pid != os.getpid() and any(
                environment.get(name) == value for name, value in wanted
            ):
                found.append(" ".join(process.cmdline()))
                process.kill()
    return found


def _die_with_parent() -> None:
    """In the child, before exec: be killed when the harness dies."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
