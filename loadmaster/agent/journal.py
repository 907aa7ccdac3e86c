"""The agent's memory: a file of JSON lines. A line that the agent acts on is on the disk before.

What has happened is written without waiting for the disk. A machine that loses power may lose such
lines, but also loses all runs, and what they say may be reported again.

A line replaces what was known of its assignment, and a torn last line counts as never written.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from loadmaster.agent.runtimes.base import RunId, StopBy
from loadmaster.files import sync, write_whole
from loadmaster.protocol import AssignmentState, ReasonClass, StateReport
from loadmaster.wire import WireError, from_json, to_json

COMPACT_ABOVE_LINES = 500
REMEMBERED_ENDS = 1000

logger = logging.getLogger(__name__)

S = AssignmentState
ENDED = frozenset({S.SUCCEEDED, S.FAILED, S.CANCELLED, S.PREEMPTED, S.REJECTED, S.LOST})


class JournalError(Exception):
    """The journal cannot be read or written; the message says what to do."""


class JournalHeldError(JournalError):
    """Another agent uses the same folder, or is only now leaving."""


@dataclass(frozen=True, slots=True)
class Move:
    """A state the server has not yet been told of."""

    seq: int
    to: AssignmentState
    observed_at_s: float
    exit_code: int | None = None
    reason_class: ReasonClass | None = None
    reason: str = ""
    steps: int | None = None
    prepared_fraction: float | None = None
    image_digest: str = ""
    ran_s: float | None = None

    def report(self, epoch: int, fence: int, container: str) -> StateReport:
        """The report of the move in the session `epoch`."""
        return StateReport(
            epoch=epoch,
            fence=fence,
            container=container,
            **{f.name: getattr(self, f.name) for f in fields(self)},
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """State of an assignment that the agent took; `unsent` moves are in order.

    `launched` is written before the guard starts: from then on a launch is never repeated. A `held`
    seat has no guard and no process (`loadmaster.agent.held`).
    """

    assignment: str
    fence: int
    state: AssignmentState
    devices: tuple[str, ...] = ()
    slot: int = 0
    memory_gb: float = 0.0
    grace_s: float = 30.0
    seq: int = 0
    launched: bool = False
    lease_until_s: float | None = None
    boot_id: str = ""
    stop: StopBy | None = None
    term_until_s: float | None = None
    told_fraction: float = 0.0
    held: bool = False
    unsent: tuple[Move, ...] = ()

    @property
    def run(self) -> RunId:
        return RunId(self.assignment, self.fence)

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    def moved(self, to: AssignmentState, at_s: float, **details: Any) -> Entry:
        """The entry after a move that is yet to be reported; unsent moves that it implies go.

        Any move implies PREPARING, and an end implies RUNNING.
        """
        move = Move(self.seq + 1, to, at_s, **details)
        before = [m for m in self.unsent if m.to is not S.PREPARING]
        ran = next((m for m in before if m.to is S.RUNNING), None)
        if ran is not None and to in ENDED:
            before.remove(ran)
            ran_s = max(0.0, at_s - ran.observed_at_s)
            move = replace(move, ran_s=ran_s, image_digest=ran.image_digest)
        return replace(self, state=to, seq=move.seq, unsent=(*before, move))

    def acknowledged(self, seq: int) -> Entry:
        """The entry once the server knows its moves up to `seq`."""
        return replace(self, unsent=tuple(move for move in self.unsent if move.seq > seq))


class Journal:
    """The journal in a file, locked by one agent; JournalError if it is held or damaged.

    `session_secret` proves to the server that a new session is the same agent's as the last;
    `entries` are by assignment, `ends` the highest fences of those that are over and forgotten.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = _locked(path.with_suffix(".lock"))
        self.session_secret = ""
        self.entries: dict[str, Entry] = {}
        self.ends: OrderedDict[str, int] = OrderedDict()
        self._lines = 0
        self._size = 0
        self.is_failing = False
        """True if the last write failed: such a node takes no new work."""
        try:
            self._load()
            if not self.session_secret:
                self._append({"secret": secrets.token_urlsafe(32)})
        except BaseException:
            os.close(self._lock)
            raise

    def put(self, entry: Entry) -> None:
        """Store an entry durably before acting on it; JournalError if the disk is full."""
        self._append({"entry": to_json(entry)})

    def note(self, entry: Entry) -> None:
        """Store what happened, not yet durably; on a full disk in memory only.

        The next agent sees the run.
        """
        self._try({"entry": to_json(entry)})

    def forget(self, entry: Entry) -> None:
        """Forget an assignment whose end the server knows, but for its fence."""
        self._try({"end": entry.assignment, "fence": entry.fence})

    def _try(self, line: dict[str, Any], *, durable: bool = False) -> None:
        try:
            self._append(line, durable=durable)
        except JournalError as error:
            logger.warning("%s", error)
            self._change(line)()

    def is_writable(self) -> bool:
        """True if the next entry can probably be written; failed writes are retried."""
        if self.is_failing:
            self._try({"secret": self.session_secret}, durable=True)
        return not self.is_failing

    def close(self) -> None:
        os.close(self._lock)

    def _load(self) -> None:
        raw = self._path.read_bytes() if self._path.exists() else b""
        whole, _, torn = raw.rpartition(b"\n")
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                self._recall(json.loads(line), number)
            except (ValueError, TypeError) as error:
                raise JournalError(
                    f"{self._path}, line {number}: {error}. Move the file away to begin anew."
                ) from error
            self._lines = number
        self._size = len(raw) - len(torn)
        if torn:
            os.truncate(self._path, self._size)

    def _recall(self, line: Any, number: int) -> None:
        """Apply a line of the file; WireError or TypeError if it is none of a journal.

        An entry whose moves cannot be read counts as launched and not ended: its launch is never
        repeated, what runs is adopted, and the runtime tells an end again.
        """
        try:
            self._change(line)()
        except WireError as error:
            if "entry" not in line:
                raise
            entry = from_json(Entry, {**line["entry"], "unsent": []})
            text = "%s, line %d: %s is looked at again and not repeated, as its moves are lost: %s"
            logger.error(text, self._path, number, entry.run.name, error)
            self.entries[entry.assignment] = replace(entry, state=S.RUNNING, launched=True)

    def _change(self, line: dict[str, Any]) -> Callable[[], None]:
        """Return what makes the change that a line says; WireError if it cannot be read."""
        match line:
            case {"secret": str(secret)}:
                return partial(setattr, self, "session_secret", secret)
            case {"entry": data}:
                entry = from_json(Entry, data)
                return partial(self.entries.__setitem__, entry.assignment, entry)
            case {"end": str(assignment), "fence": int(fence)}:
                return partial(self._end, assignment, fence)
            case _:
                raise WireError("", "is no line of a journal")

    def _end(self, assignment: str, fence: int) -> None:
        entry = self.entries.get(assignment)
        if entry and entry.fence <= fence:
            del self.entries[assignment]
        self.ends[assignment] = max(fence, self.ends.pop(assignment, 0))
        while len(self.ends) > REMEMBERED_ENDS:
            self.ends.popitem(last=False)

    def _compacted(self) -> list[dict[str, Any]]:
        ends = [{"end": assignment, "fence": fence} for assignment, fence in self.ends.items()]
        return [
            {"secret": self.session_secret},
            *ends,
            *({"entry": to_json(entry)} for entry in self.entries.values()),
        ]

    def _append(self, line: dict[str, Any], *, durable: bool = True) -> None:
        change = self._change(line)  # a line that no agent could read must not be in the file
        raw = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        try:
            self._write(raw, durable)
        except OSError as error:
            self.is_failing = True
            with contextlib.suppress(OSError):
                os.truncate(self._path, self._size)
            raise JournalError(f"{self._path} cannot be written: {error}") from error
        self.is_failing = False
        self._size += len(raw)
        self._lines += 1
        change()
        self._compact_if_long()

    def _write(self, raw: bytes, durable: bool) -> None:
        is_new = not self._path.exists()
        descriptor = os.open(
            self._path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        try:
            if os.write(descriptor, raw) != len(raw):
                raise OSError("the disk is full")
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            sync(self._path.parent)

    def _compact_if_long(self) -> None:
        lines = self._compacted()
        if self._lines <= max(COMPACT_ABOVE_LINES, 4 * len(lines)):
            return
        raw = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
        with contextlib.suppress(OSError):  # a full disk: the long file is as good
            write_whole(self._path, raw, durable=True)
            self._lines = len(lines)
        self._size = self._path.stat().st_size


def _locked(path: Path) -> int:
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise JournalHeldError(
            f"another agent uses {path.parent}: stop it, or give this one its own --state-dir"
        ) from error
    return descriptor
