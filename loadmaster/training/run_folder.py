"""A launch's folder: what agent and job tell each other on one machine.

The agent rewrites `term.json` and `pace.json` whole; the job appends lines to `progress.jsonl`.
"""

import contextlib
import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from loadmaster.outputs import say

TERM_FILE = "term.json"
PROGRESS_FILE = "progress.jsonl"
PACE_FILE = "pace.json"
TERM_VERSION = 1
TERM_CHECK_S = 0.05
TERM_OVER = "term"
"""The reason to end that is no order: the term was not prolonged."""


class JobEnvironmentError(ValueError):
    """A LOADMASTER_ variable is invalid; the message names it and the remedy."""


@dataclass(frozen=True, slots=True)
class JobEnvironment:
    """LOADMASTER_ variables of a launch; all are absent in a script that is started by hand.

    `steps` are the job's, `steps_quota` those of this launch; `gang` is "host:port" of rank 0.
    `rank` and `world_size` of a script started by hand are those of torchrun and its like.
    """

    run_dir: Path | None = None
    checkpoint_dir: Path | None = None
    fence: int | None = None
    steps: int | None = None
    steps_quota: int | None = None
    checkpoint_every_s: float | None = None
    emulated_step_s: float | None = None
    rank: int = 0
    world_size: int = 1
    gang: str = ""
    gang_token: str = field(default="", repr=False)

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> "JobEnvironment":
        """Read the variables; raises JobEnvironmentError naming the first one that is wrong."""
        return cls(
            run_dir=_path(environ, "LOADMASTER_RUN_DIR"),
            checkpoint_dir=_path(environ, "LOADMASTER_CHECKPOINT_DIR"),
            fence=_whole(environ, "LOADMASTER_FENCE"),
            steps=_whole(environ, "LOADMASTER_STEPS"),
            steps_quota=_whole(environ, "LOADMASTER_STEPS_QUOTA"),
            checkpoint_every_s=_seconds(environ, "LOADMASTER_CHECKPOINT_EVERY_S"),
            emulated_step_s=_seconds(environ, "LOADMASTER_EMULATED_STEP_S"),
            rank=_whole(environ, "LOADMASTER_RANK", "RANK") or 0,
            world_size=_whole(environ, "LOADMASTER_WORLD_SIZE", "WORLD_SIZE") or 1,
            gang=environ.get("LOADMASTER_GANG", ""),
            gang_token=environ.get("LOADMASTER_GANG_TOKEN", ""),
        )


class WatchedFile:
    """JSON file of the agent, read when it has changed; looked at every TERM_CHECK_S at most.

    `take` gets its content. While the file cannot be read or makes no sense, nothing is taken.
    """

    def __init__(self, path: Path | None, take: Callable[[dict[str, Any]], None]) -> None:
        self.path = path
        self._take = take
        self._looked_s = -math.inf
        self._stamp: tuple[int, int, int] | None = None

    def look(self, *, again: bool = False) -> None:
        """Take the content if it has changed; with `again` however short ago the last look was."""
        now_s = time.monotonic()
        is_recent = now_s - self._looked_s < TERM_CHECK_S
        if self.path is None or (is_recent and not again):
            return
        self._looked_s = now_s
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            status = self.path.stat()
            stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
            if stamp != self._stamp:
                self._take(json.loads(self.path.read_bytes()))
                self._stamp = stamp


class TermWatch:
    """Reason for this launch to end: SIGTERM, the agent's `stop`, a past term, a newer fence.

    A term that seems over is read once more, as the agent may have prolonged it in the last moment.
    """

    def __init__(self, run_dir: Path | None, fence: int | None) -> None:
        self._file = WatchedFile(run_dir / TERM_FILE if run_dir else None, self._take)
        self._fence = fence
        self._terminated = False
        self._order: str | None = None
        """Reason of the agent's order to stop, or of a newer launch."""
        self._has_passed: Callable[[], bool] = _never
        self._former: object = None
        self._has_handler = False

    def reason(self) -> str | None:
        """Reason to end at the next step boundary, or None to go on."""
        if self._terminated:
            return "SIGTERM"
        self._file.look()
        if self._order is None and self._has_passed():
            self._file.look(again=True)
        if self._order is None and self._has_passed():
            return TERM_OVER
        return self._order

    def catch_sigterm(self) -> None:
        """Take SIGTERM as a pre-emption, in the main thread unless the script handles it."""
        if self._file.path and threading.current_thread() is threading.main_thread():
            self._former = signal.signal(signal.SIGTERM, self._on_sigterm)
            self._has_handler = True

    def release_sigterm(self, *, leaving: bool) -> None:
        """Restore SIGTERM, or ignore it on the way out so that the exit code stands."""
        if self._has_handler and threading.current_thread() is threading.main_thread():
            handler: Any = self._former
            if leaving:
                handler = signal.SIG_IGN
            elif handler is None:  # it was not set from Python
                handler = signal.SIG_DFL
            signal.signal(signal.SIGTERM, handler)
            self._has_handler = False

    def _on_sigterm(self, _signal: int, _frame: FrameType | None) -> None:
        self._terminated = True

    def _take(self, term: Mapping[str, object]) -> None:
        """Take over a term; one of an older launch or another version changes nothing."""
        # 1. Read all of it before anything changes: a value may make no sense.
        fence = int(str(term["fence"]))
        has_passed = _end_of(term)
        if term["version"] != TERM_VERSION or fence < (self._fence or 0):
            return

        # 2. The agent's order; a newer launch ends this one too.
        is_newer_launch = self._fence is not None and fence > self._fence
        self._order = None
        if term.get("stop") or is_newer_launch:
            self._order = str(term.get("reason") or "stop")
        self._has_passed = has_passed


def _end_of(term: Mapping[str, object]) -> Callable[[], bool]:
    """Return a function that tells whether the term has passed.

    Its end is on the boot clock; older agents write one on the wall clock.
    """
    boot_clock = term.get("term_ends_boot_s")
    if boot_clock is not None:
        boot_end_s = float(str(boot_clock))
        return lambda: boot_s() >= boot_end_s
    wall_clock = term.get("term_until_s")
    if wall_clock is not None:
        wall_end_s = float(str(wall_clock))
        return lambda: time.time() >= wall_end_s
    return _never


def _never() -> bool:
    return False


class PaceWatch:
    """Step time of an emulated device, rewritten by the agent as other jobs come and leave."""

    def __init__(self, run_dir: Path | None, step_s: float) -> None:
        self._file = WatchedFile(run_dir / PACE_FILE if run_dir else None, self._take)
        self._step_s = step_s

    def step_s(self) -> float:
        """Seconds per step now."""
        self._file.look()
        return self._step_s

    def _take(self, pace: Mapping[str, Any]) -> None:
        step_s = float(pace["step_s"])
        if math.isfinite(step_s) and step_s > 0:
            self._step_s = step_s


class ProgressLog:
    """Log of a launch's progress: a line of JSON for each event; none without a run folder.

    A full disk loses lines, never the training; the line after a torn one starts afresh.
    """

    def __init__(self, run_dir: Path | None) -> None:
        self._path = run_dir and run_dir / PROGRESS_FILE
        self._descriptor: int | None = None
        self._torn = False
        self._complained = False

    @property
    def is_open(self) -> bool:
        return self._path is not None

    def write(self, event: str, **fields: object) -> None:
        """Append an event now; missing and non-finite values are null."""
        if self._path is None:
            return
        line = json.dumps({"at_s": time.time(), "event": event, **_finite_fields(fields)}) + "\n"
        if self._torn:
            line = "\n" + line  # ends the torn line
        raw = line.encode()
        try:
            if self._descriptor is None:
                self._descriptor = append_to(self._path)
            self._torn = os.write(self._descriptor, raw) != len(raw)
        except OSError as error:
            self._torn = True
            if not self._complained:
                say(f"loadmaster: progress cannot be written: {error}")
            self._complained = True

    def close(self) -> None:
        """Close the file; later lines are lost."""
        self._path = None
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def process_age_s() -> float:
    """Seconds since this process started; 0 if the system does not tell."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, boot_s() - started_s)
    except (OSError, AttributeError):
        return 0.0


def boot_s() -> float:
    """Seconds since the machine's start, suspends included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def append_to(path: Path) -> int:
    """Open a file to append lines, with its folder if that is missing; return its descriptor."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _finite_fields(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: _finite(value) for name, value in fields.items()}


def _finite(value: object) -> object:
    """Return a value with None in place of numbers that are not finite."""
    if isinstance(value, Mapping):
        return _finite_fields(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    return Path(environ[name]) if environ.get(name) else None


def _whole(environ: Mapping[str, str], *names: str) -> int | None:
    """Return the number in the first of these variables that is set; None without any.

    Raises JobEnvironmentError.
    """
    for name in names:
        text = environ.get(name)
        if not text:
            continue
        if not (text.isascii() and text.isdigit()):
            raise JobEnvironmentError(f"{name} must be a whole number of 0 or more, not {text!r}")
        return int(text)
    return None


def _seconds(environ: Mapping[str, str], name: str) -> float | None:
    """Return the seconds in a variable, None if it is not set. Raises JobEnvironmentError."""
    text = environ.get(name)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise JobEnvironmentError(f"{name} must be a number of seconds above 0, not {text!r}")
    return value
