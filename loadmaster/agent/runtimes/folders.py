"""Launch folders shared by runtimes: files, and orders to the guard by files."""

import contextlib
import errno
import json
import math
import os
import secrets
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from loadmaster.agent.clock import Clock, SystemClock
from loadmaster.agent.containment import Containment
from loadmaster.agent.guarding import guard
from loadmaster.agent.guarding.guard_output import FREED_AT_ONCE, MARGIN, free_middle
from loadmaster.agent.runtimes.base import (
    GB,
    PROGRESS,
    STREAMS,
    Exit,
    Launch,
    RunId,
    Runtime,
    StopBy,
    StopOrder,
    Term,
    Usage,
)
from loadmaster.agent.runtimes.consumption import Consumption
from loadmaster.agent.runtimes.removal import Remover
from loadmaster.files import open_plain, open_real, write_json, write_whole
from loadmaster.protocol import LaunchSpec
from loadmaster.wire import WireError, dumps, loads

LEASE_FILE_SIZE = 256
NEVER_STARTED = "the agent or its guard ended before the job was started"
ORDER_MODE = 0o644
"""Mode of lease, order to stop and term in private folders: guard and job read them."""

_EXIT = TypeAdapter(Exit)
OUTPUTS = "outputs.json"
"""Paths of a job's own files for its output, by stream; a stream without one is in the folder."""

REMOVED = ".removed-"
"""Begin of the names of folders that are being removed; an agent that starts goes on with them."""

FILES = {"stdout": "stdout.log", "stderr": "stderr.log", PROGRESS: "progress.jsonl"}


class RunFolders(Runtime):
    """A private folder for each run below `runs`; `guard` lists the files it shares with the agent.

    `spec.json` holds secrets: mode 0600, removed with the folder.
    """

    def __init__(self, runs: Path, clock: Clock | None = None) -> None:
        self._runs = runs
        runs.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._clock = clock or SystemClock()
        self._usage: dict[RunId, tuple[float, float]] = {}
        self._contained = Containment()
        self._remover = Remover()
        for left in self._runs.glob(f"{REMOVED}*"):
            self._remover.add(left)

    def folder(self, run: RunId) -> Path:
        """The run's private folder."""
        return self._runs / run.name

    def orders(self, run: RunId) -> Path:
        """Folder of lease, order to stop and term."""
        return self.folder(run)

    def stream(self, run: RunId, stream: str) -> Path:
        """The file of a stream in the run's folder."""
        return self.folder(run) / FILES[stream]

    def _open(self, run: RunId, stream: str) -> int:
        """Descriptor of a stream's file: in the run's folder, or the one that the job has named.

        The named path had no links at acceptance. One put there since may lead anywhere. An agent
        with more rights than the job reads a named file only if it belongs to the job's user.
        """
        named = (guard.read_json(self.folder(run) / OUTPUTS) or {}).get(stream)
        if named is None:
            return open_plain(self.stream(run, stream))
        user = (self.folder(run) / "work").lstat().st_uid
        descriptor = open_real(Path(named))
        if user not in (os.geteuid(), os.fstat(descriptor).st_uid):
            os.close(descriptor)
            raise FileNotFoundError(errno.ENOENT, "belongs to another user", named)
        return descriptor

    def _write_spec(self, launch: Launch) -> None:
        write_whole(self.folder(launch.run) / "spec.json", dumps(launch.spec), durable=True)
        self._write_term(launch.run, {**self._end_of(launch.term), "grace_s": launch.spec.grace_s})

    def renew(self, run: RunId, lease_until_s: float) -> None:
        lease = guard.read_json(self.orders(run) / "lease.json")
        if lease:
            self._write_lease(run, lease_until_s, str(lease["boot_id"]))

    def _write_lease(self, run: RunId, lease_until_s: float, boot_id: str) -> None:
        path = self.orders(run) / "lease.json"
        data = json.dumps({"deadline_s": lease_until_s, "boot_id": boot_id})
        text = data.encode().ljust(LEASE_FILE_SIZE)
        try:
            write_whole(path, text, mode=ORDER_MODE)
        except OSError:
            if not path.exists():  # the first lease: the launch fails for want of room
                raise
            # a full disk: what is there already can be overwritten in place, and a torn lease
            # counts as the one before
            with path.open("r+b") as file:
                file.write(text)

    def _note_start(self, run: RunId) -> None:
        """Record the first start; the time to the job's process counts as set-up."""
        path = self.folder(run) / "started.json"
        if not path.exists():
            # on a full disk the set-up counts from the job's own process
            with contextlib.suppress(OSError):
                write_json(path, {"at_s": self._clock.wall_s()})

    def started_at_s(self, run: RunId) -> float | None:
        at_s = (guard.read_json(self.folder(run) / "started.json") or {}).get("at_s")
        return float(at_s) if isinstance(at_s, (int, float)) else None

    def _lease_until_s(self, run: RunId) -> float | None:
        lease = guard.read_json(self.orders(run) / "lease.json") or {}
        until_s = lease.get("deadline_s")
        return float(until_s) if isinstance(until_s, (int, float)) else None

    def update(self, run: RunId, term: Term) -> None:
        if self.orders(run).exists():
            self._write_term(run, self._end_of(term))

    def _end_of(self, term: Term) -> dict[str, Any]:
        """A term's end on the boot clock, and for older libraries on the wall clock."""
        wall_s = term.until_s
        if term.ends_s is not None:
            wall_s = self._clock.wall_s() + term.ends_s - self._clock.boot_s()
        return {"term_until_s": wall_s, "term_ends_boot_s": term.ends_s}

    def set_pace(self, run: RunId, step_s: float) -> None:
        if self.orders(run).exists():
            write_json(self.orders(run) / "pace.json", {"step_s": step_s}, mode=ORDER_MODE)

    def _write_term(self, run: RunId, change: dict[str, Any]) -> None:
        path = self.orders(run) / "term.json"
        first = {"stop": False, "reason": None, "grace_s": 30.0, **self._end_of(Term())}
        former = guard.read_json(path) or first
        term = {"version": 1, "fence": run.fence, **former, **change}
        write_json(path, term, mode=ORDER_MODE)

    def stop(self, run: RunId, order: StopOrder) -> None:
        if not self.orders(run).exists():
            return
        now_s = self._clock.boot_s()
        by, term_s = order.by.value, order.grace_s / 2 if order.by is StopBy.PREEMPT else 0.0
        words = {"by": by, "term_at_s": now_s + term_s, "kill_at_s": now_s + order.grace_s}
        try:
            write_json(self.orders(run) / "stop.json", words, mode=ORDER_MODE)
        except OSError:  # a full disk: the guard takes a signal for an order too
            self._signal_guard(run)
        with contextlib.suppress(OSError):  # a full disk: the signals come all the same
            self._write_term(run, {"stop": True, "reason": by, "grace_s": order.grace_s})

    @abstractmethod
    def _signal_guard(self, run: RunId) -> None:
        """Send the guard SIGTERM."""

    def list(self) -> tuple[RunId, ...]:
        found = (RunId.parse(path.name) for path in sorted(self._runs.iterdir()) if path.is_dir())
        return tuple(run for run in found if run)

    def spec(self, run: RunId) -> LaunchSpec | None:
        try:
            return loads(LaunchSpec, (self.folder(run) / "spec.json").read_bytes())
        except (OSError, WireError):
            return None

    def read(self, run: RunId, stream: str, offset: int, limit: int) -> bytes:
        with self._reading(run), os.fdopen(self._open(run, stream), "rb") as file:
            file.seek(offset)
            return file.read(limit)
        return b""

    def size(self, run: RunId, stream: str) -> int:
        with self._reading(run), os.fdopen(self._open(run, stream), "rb") as file:
            return os.fstat(file.fileno()).st_size
        return 0

    @contextlib.contextmanager
    def _reading(self, run: RunId) -> Iterator[None]:
        """Take a stream that is missing, or that its job has closed, for an empty one."""
        with contextlib.suppress(FileNotFoundError, PermissionError):
            yield

    def _trim(self, run: RunId) -> None:
        """Free the middle of long output, for a guard that does not."""
        rooms = {path: _room(path) for path in (self.stream(run, name) for name in STREAMS)}
        if max(rooms.values()) < MARGIN or (spec := self.spec(run)) is None:
            return
        head, tail = spec.log_head_bytes, spec.log_tail_bytes
        for path, room in rooms.items():
            if room > head + tail + MARGIN + FREED_AT_ONCE:
                _free(path, head, tail)

    def note(self, run: RunId, text: str | None) -> str:
        path = self.folder(run) / "shipping.json"
        if text is not None:
            # after a full disk an older note makes a restarted agent ship a piece again
            with contextlib.suppress(OSError):
                write_whole(path, text.encode())
            return text
        try:
            return path.read_text()
        except (OSError, ValueError):
            return ""

    def _usage_since_last(self, run: RunId, now: Consumption) -> Usage:
        """Use from CPU seconds since the start and bytes; cores count since the last reading."""
        now_s, cpu_s = self._clock.boot_s(), now.cpu_s
        before_cpu_s, before_s = self._usage.get(run, (0.0, now_s))
        self._usage[run] = (cpu_s, now_s)
        cores = max(0.0, cpu_s - before_cpu_s) / (now_s - before_s) if now_s > before_s else 0.0
        return Usage(cores, now.memory / GB, now.most_memory / GB)

    def remove(self, run: RunId) -> None:
        self._usage.pop(run, None)
        self._remove_folder(run)

    def _remove_folder(self, run: RunId) -> None:
        """Take a run's folder away at once, and remove it in a thread. Raises OSError."""
        gone = self._runs / f"{REMOVED}{run.name}-{secrets.token_hex(4)}"
        with contextlib.suppress(FileNotFoundError):
            self.folder(run).rename(gone)
            self._remover.add(gone)


def _room(path: Path) -> int:
    """Bytes that a file takes on the disk; 0 if there is none."""
    with contextlib.suppress(OSError):
        return path.lstat().st_blocks * 512
    return 0


def _free(path: Path, head: int, tail: int) -> None:
    with contextlib.suppress(OSError):
        descriptor = open_plain(path, os.O_WRONLY)
        free_middle(descriptor, head, tail)
        os.close(descriptor)


def read_exit(path: Path) -> Exit | None:
    """The end in a file, or None if there is none that makes sense."""
    try:
        return exit_of(guard.read_json(path) or {})
    except (TypeError, ValueError, OverflowError):
        return None


def exit_of(data: dict[str, Any]) -> Exit:
    """The end that an `exit.json` describes; ValueError or TypeError if it makes no sense."""
    ended = _EXIT.validate_python({"started": False, **data})
    if not math.isfinite(ended.ended_at_s) or not -(2**31) <= (ended.exit_code or 0) < 2**31:
        raise ValueError("ended_at_s must be finite, and exit_code have 32 bits")
    return ended
