"""Folders of runs, which all runtimes share: files, and the agent's orders to the guard."""

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
from loadmaster.agent.guarding import guard_orders
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
"""Bytes of `lease.json`, padded with spaces: it can be overwritten in place on a full disk."""

NEVER_STARTED = "the agent or its guard ended before the job was started"
ORDER_MODE = 0o644
"""Mode of lease, order to stop and term in private folders: guard and job read them."""

_EXIT = TypeAdapter(Exit)
NOTE = "shipping.json"
"""File of a run with the note of its uploads."""

OUTPUTS = "outputs.json"
"""File with the paths that a job names for its output, by stream; the others are in the folder."""

REMOVED = ".removed-"
"""Beginning of the names of folders that are being removed; the next agent continues with them."""

FILES = {"stdout": "stdout.log", "stderr": "stderr.log", PROGRESS: "progress.jsonl"}
"""Names of the streams' files."""


class RunFolders(Runtime):
    """A private folder below `runs` for each run.

    `guard` lists the files that it shares with the agent. The launch's specification is kept in
    `spec.json`, which holds secrets: its mode is 0600.
    """

    def __init__(self, runs: Path, clock: Clock | None = None) -> None:
        self._runs = runs
        runs.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._clock = clock or SystemClock()
        self._usage: dict[RunId, tuple[Consumption, float]] = {}
        """Last reading of a run's consumption, and the time of that on the boot clock."""
        self._contained = Containment()
        self._remover = Remover()
        for left in self._runs.glob(f"{REMOVED}*"):
            self._remover.add(left)

    def folder(self, run: RunId) -> Path:
        """Return the run's private folder."""
        return self._runs / run.name

    def orders(self, run: RunId) -> Path:
        """Return the folder of lease, order to stop and term."""
        return self.folder(run)

    def stream(self, run: RunId, stream: str) -> Path:
        """Return the file of a stream in the run's folder."""
        return self.folder(run) / FILES[stream]

    def _open(self, run: RunId, stream: str) -> int:
        """Open a stream's file, in the run's folder or the one that the job has named.

        Return the descriptor. The named path had no links at acceptance, but one put there since
        may lead anywhere. So an agent with more rights than the job reads a named file only if it
        belongs to the job's user.
        """
        outputs = guard_orders.read_json(self.folder(run) / OUTPUTS) or {}
        path = outputs.get(stream)
        if path is None:
            return open_plain(self.stream(run, stream))
        user = (self.folder(run) / "work").lstat().st_uid
        descriptor = open_real(Path(path))
        if user not in (os.geteuid(), os.fstat(descriptor).st_uid):
            os.close(descriptor)
            raise FileNotFoundError(errno.ENOENT, "belongs to another user", path)
        return descriptor

    def _write_spec(self, launch: Launch) -> None:
        """Write the specification and the first term."""
        write_whole(self.folder(launch.run) / "spec.json", dumps(launch.spec), durable=True)
        self._write_term(launch.run, {**self._end_of(launch.term), "grace_s": launch.spec.grace_s})

    def renew(self, run: RunId, lease_until_s: float) -> None:
        lease = guard_orders.read_json(self.orders(run) / "lease.json")
        if lease:
            self._write_lease(run, lease_until_s, str(lease["boot_id"]))

    def _write_lease(self, run: RunId, lease_until_s: float, boot_id: str) -> None:
        """Write a lease, on a full disk over the former one. Raises OSError for the first one."""
        path = self.orders(run) / "lease.json"
        text = json.dumps({"deadline_s": lease_until_s, "boot_id": boot_id})
        content = text.encode().ljust(LEASE_FILE_SIZE)
        try:
            write_whole(path, content, mode=ORDER_MODE)
        except OSError:
            if not path.exists():
                raise
            # If the guard reads a torn lease, the one before counts on.
            with path.open("r+b") as file:
                file.write(content)

    def _note_start(self, run: RunId) -> None:
        """Record the time of the first start; the time to the job's own process is set-up."""
        path = self.folder(run) / "started.json"
        if not path.exists():
            # Without the record, on a full disk, set-up counts from the job's own process.
            with contextlib.suppress(OSError):
                write_json(path, {"at_s": self._clock.wall_s()})

    def started_at_s(self, run: RunId) -> float | None:
        at_s = (guard_orders.read_json(self.folder(run) / "started.json") or {}).get("at_s")
        return float(at_s) if isinstance(at_s, (int, float)) else None

    def _lease_until_s(self, run: RunId) -> float | None:
        """Return the end of the run's lease on the boot clock; None before the first."""
        lease = guard_orders.read_json(self.orders(run) / "lease.json") or {}
        until_s = lease.get("deadline_s")
        return float(until_s) if isinstance(until_s, (int, float)) else None

    def update(self, run: RunId, term: Term) -> None:
        if self.orders(run).exists():
            self._write_term(run, self._end_of(term))

    def _end_of(self, term: Term) -> dict[str, Any]:
        """Return a term's end on the boot clock, and for older libraries on the wall clock."""
        wall_s = term.until_s
        if term.ends_s is not None:
            wall_s = self._clock.wall_s() + term.ends_s - self._clock.boot_s()
        return {"term_until_s": wall_s, "term_ends_boot_s": term.ends_s}

    def set_pace(self, run: RunId, step_s: float) -> None:
        if self.orders(run).exists():
            write_json(self.orders(run) / "pace.json", {"step_s": step_s}, mode=ORDER_MODE)

    def _write_term(self, run: RunId, changes: dict[str, Any]) -> None:
        """Change fields of `term.json`, which the training library reads."""
        path = self.orders(run) / "term.json"
        defaults = {"stop": False, "reason": None, "grace_s": 30.0, **self._end_of(Term())}
        former = guard_orders.read_json(path) or defaults
        term = {"version": 1, "fence": run.fence, **former, **changes}
        write_json(path, term, mode=ORDER_MODE)

    def stop(self, run: RunId, order: StopOrder) -> None:
        if not self.orders(run).exists():
            return
        now_s = self._clock.boot_s()
        by = order.by.value

        # 1. Order the guard. It takes a signal for an order too, if the disk is full. A job that is
        # pre-empted has half of its grace to stop by its term file.
        term_s = order.grace_s / 2 if order.by is StopBy.PREEMPT else 0.0
        stop = {"by": by, "term_at_s": now_s + term_s, "kill_at_s": now_s + order.grace_s}
        try:
            write_json(self.orders(run) / "stop.json", stop, mode=ORDER_MODE)
        except OSError:
            self._signal_guard(run)

        # 2. Tell the job. If the disk is full, it still gets the guard's signals.
        with contextlib.suppress(OSError):
            self._write_term(run, {"stop": True, "reason": by, "grace_s": order.grace_s})

    @abstractmethod
    def _signal_guard(self, run: RunId) -> None:
        """Send the guard SIGTERM."""

    def list(self) -> tuple[RunId, ...]:
        runs = []
        for path in sorted(self._runs.iterdir()):
            run = RunId.parse(path.name)
            if run and path.is_dir():
                runs.append(run)
        return tuple(runs)

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
        """Treat a stream as empty if its file is missing, or its job forbids the agent to read."""
        with contextlib.suppress(FileNotFoundError, PermissionError):
            yield

    def _trim(self, run: RunId) -> None:
        """Free the middle of long output, in place of a guard that does not."""
        # 1. Most runs have little output, so look at the sizes first.
        allocated = {}
        for stream in STREAMS:
            path = self.stream(run, stream)
            allocated[path] = _allocated(path)
        if max(allocated.values()) < MARGIN:
            return

        # 2. Free the middle of those that are long by the job's own limits.
        spec = self.spec(run)
        if spec is None:
            return
        head = spec.log_head_bytes
        tail = spec.log_tail_bytes
        for path, size in allocated.items():
            if size > head + tail + MARGIN + FREED_AT_ONCE:
                with contextlib.suppress(OSError):
                    descriptor = open_plain(path, os.O_WRONLY)
                    free_middle(descriptor, head, tail)
                    os.close(descriptor)

    def write_note(self, run: RunId, text: str) -> None:
        # If the disk is full, an older note makes the next agent ship a piece again.
        with contextlib.suppress(OSError):
            write_whole(self.folder(run) / NOTE, text.encode())

    def read_note(self, run: RunId) -> str:
        try:
            return (self.folder(run) / NOTE).read_text()
        except (OSError, ValueError):
            return ""

    def _usage_since_last(self, run: RunId, now: Consumption) -> Usage:
        """Return the use of a run: cores as a mean since the last reading (0 at the first)."""
        now_s = self._clock.boot_s()
        before, before_s = self._usage.get(run, (now, now_s))
        self._usage[run] = (now, now_s)
        cores = 0.0
        throttled_cores = 0.0
        if now_s > before_s:
            cores = max(0.0, now.cpu_s - before.cpu_s) / (now_s - before_s)
            throttled_cores = max(0.0, now.throttled_s - before.throttled_s) / (now_s - before_s)
        return Usage(cores, now.memory / GB, now.most_memory / GB, throttled_cores)

    def remove(self, run: RunId) -> None:
        self._usage.pop(run, None)
        self._remove_folder(run)

    def _remove_folder(self, run: RunId) -> None:
        """Rename a run's folder at once, and remove it in a thread. Raises OSError."""
        renamed = self._runs / f"{REMOVED}{run.name}-{secrets.token_hex(4)}"
        with contextlib.suppress(FileNotFoundError):
            self.folder(run).rename(renamed)
            self._remover.add(renamed)


def _allocated(path: Path) -> int:
    """Return the bytes that a file takes on the disk; 0 if there is none."""
    with contextlib.suppress(OSError):
        return path.lstat().st_blocks * 512
    return 0


def read_exit(path: Path) -> Exit | None:
    """Read the end of a run from a file; None if the file is missing or makes no sense."""
    try:
        return exit_of(guard_orders.read_json(path) or {})
    except (TypeError, ValueError, OverflowError):
        return None


def exit_of(data: dict[str, Any]) -> Exit:
    """Return the end that an `exit.json` describes; ValueError or TypeError if that is nonsense."""
    ended = _EXIT.validate_python({"started": False, **data})
    if not math.isfinite(ended.ended_at_s) or not -(2**31) <= (ended.exit_code or 0) < 2**31:
        raise ValueError("ended_at_s must be finite, and exit_code have 32 bits")
    return ended
