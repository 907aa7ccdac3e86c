"""The agent's memory: a file of JSON lines, one for each change of an assignment.

A line on which the agent will act is on the disk before it acts. A line that only records an event
is written without waiting for the disk: a machine that loses power may lose it, but loses all runs
too, and the event can be reported again.

A line replaces earlier ones of its assignment. A torn last line counts as never written.
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
"""Lines up to which a file is never rewritten."""

REMEMBERED_ENDS = 1000
"""Assignments whose fence is remembered after their end."""

logger = logging.getLogger(__name__)

S = AssignmentState
ENDED = frozenset({S.SUCCEEDED, S.FAILED, S.CANCELLED, S.PREEMPTED, S.REJECTED, S.LOST})


class JournalError(Exception):
    """The journal cannot be read or written; the message says what to do."""


class JournalHeldError(JournalError):
    """Another agent uses the same folder, or is only now leaving."""


@dataclass(frozen=True, slots=True)
class Move:
    """Move of an assignment to a state, of which the server does not know yet.

    `seq`: its number, from 1. `observed_at_s`: Unix seconds. `steps`: done at an end. `ran_s`:
    seconds since the start, at an end whose start was not reported.
    """

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
        """Return the report of the move in the session `epoch`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return StateReport(epoch=epoch, fence=fence, container=container, **values)


@dataclass(frozen=True, slots=True)
class Entry:
    """State of an assignment that the agent accepted.

    `seq`: number of its last move; `unsent`: moves that are not reported yet, in order. `launched`
    is written before the guard starts: from then on a launch is never repeated. `stop`: author of
    an order to stop. `told_fraction`: the last reported fraction of its preparation. A `held` seat
    has no guard and no process (`loadmaster.agent.held`).
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
        """Return the entry after a move that is to be reported.

        Unsent moves that it implies are dropped: any move implies PREPARING, an end implies
        RUNNING.
        """
        move = Move(self.seq + 1, to, at_s, **details)
        unsent = []
        for earlier in self.unsent:
            if earlier.to is S.PREPARING:
                continue
            if earlier.to is S.RUNNING and to in ENDED:
                ran_s = max(0.0, at_s - earlier.observed_at_s)
                move = replace(move, ran_s=ran_s, image_digest=earlier.image_digest)
                continue
            unsent.append(earlier)
        return replace(self, state=to, seq=move.seq, unsent=(*unsent, move))

    def acknowledged(self, seq: int) -> Entry:
        """Return the entry once the server knows its moves up to `seq`."""
        return replace(self, unsent=tuple(move for move in self.unsent if move.seq > seq))


class Journal:
    """The journal in a file, locked by one agent.

    `session_secret` proves to the server that a new session is the same agent's as the last.
    `entries`: by assignment. `ends`: highest fence of each assignment that is over and forgotten.
    """

    def __init__(self, path: Path) -> None:
        """Lock and read the file. Raises JournalHeldError, and JournalError if it is damaged."""
        self._path = path
        self._lock = _locked(path.with_suffix(".lock"))
        self.session_secret = ""
        self.entries: dict[str, Entry] = {}
        self.ends: OrderedDict[str, int] = OrderedDict()
        self._lines = 0
        self._size = 0
        """Lines and bytes of the file; bytes after these are of a line that failed."""
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
        """Store an entry durably, to act on it next. Raises JournalError if the disk is full."""
        self._append({"entry": to_json(entry)})

    def note(self, entry: Entry) -> None:
        """Store an entry after an event, without waiting for the disk.

        On a full disk it is stored in memory only; the next agent finds the event by the run.
        """
        self._append_or_remember({"entry": to_json(entry)})

    def forget(self, entry: Entry) -> None:
        """Forget an assignment whose end the server knows; its fence is kept."""
        self._append_or_remember({"end": entry.assignment, "fence": entry.fence})

    def _append_or_remember(self, line: dict[str, Any], *, durable: bool = False) -> None:
        """Append a line, on a full disk only make its change in memory."""
        try:
            self._append(line, durable=durable)
        except JournalError as error:
            logger.warning("%s", error)
            self._change(line)()

    def is_writable(self) -> bool:
        """Return True if the last write worked; after a failed one, try another now."""
        if self.is_failing:
            self._append_or_remember({"secret": self.session_secret}, durable=True)
        return not self.is_failing

    def close(self) -> None:
        os.close(self._lock)

    def _load(self) -> None:
        """Read the file, and cut off a torn last line. Raises JournalError."""
        content = self._path.read_bytes() if self._path.exists() else b""
        whole, _, torn = content.rpartition(b"\n")
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                self._apply(json.loads(line), number)
            except (ValueError, TypeError) as error:
                raise JournalError(
                    f"{self._path}, line {number}: {error}. Move the file away to begin anew."
                ) from error
            self._lines = number
        self._size = len(content) - len(torn)
        if torn:
            os.truncate(self._path, self._size)

    def _apply(self, line: Any, number: int) -> None:
        """Make the change of a line of the file. Raises WireError or TypeError if it has none.

        An entry whose moves cannot be read counts as launched and not ended: its launch is never
        repeated, its processes are adopted, and the runtime reports its end again.
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
        """Return a function that makes the change of a line. Raises WireError for a bad line."""
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
        """Remove an entry, and remember its fence."""
        entry = self.entries.get(assignment)
        if entry and entry.fence <= fence:
            del self.entries[assignment]
        self.ends[assignment] = max(fence, self.ends.pop(assignment, 0))
        while len(self.ends) > REMEMBERED_ENDS:
            self.ends.popitem(last=False)

    def _compacted(self) -> list[dict[str, Any]]:
        """Return the fewest lines that give the present state."""
        lines: list[dict[str, Any]] = [{"secret": self.session_secret}]
        for assignment, fence in self.ends.items():
            lines.append({"end": assignment, "fence": fence})
        for entry in self.entries.values():
            lines.append({"entry": to_json(entry)})
        return lines

    def _append(self, line: dict[str, Any], *, durable: bool = True) -> None:
        """Append a line to the file, then make its change. Raises JournalError."""
        # 1. Read it first: a line that no agent could read must not be in the file.
        change = self._change(line)

        # 2. Write it whole or not at all.
        content = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        try:
            self._write(content, durable)
        except OSError as error:
            self.is_failing = True
            with contextlib.suppress(OSError):
                os.truncate(self._path, self._size)
            raise JournalError(f"{self._path} cannot be written: {error}") from error

        # 3. Make its change.
        self.is_failing = False
        self._size += len(content)
        self._lines += 1
        change()
        self._compact_if_long()

    def _write(self, content: bytes, durable: bool) -> None:
        """Append to the file; `durable`: wait for the disk. Raises OSError."""
        is_new = not self._path.exists()
        descriptor = os.open(
            self._path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        try:
            if os.write(descriptor, content) != len(content):
                raise OSError("the disk is full")
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            sync(self._path.parent)

    def _compact_if_long(self) -> None:
        """Rewrite the file if most of its lines were replaced by later ones."""
        lines = self._compacted()
        if self._lines <= max(COMPACT_ABOVE_LINES, 4 * len(lines)):
            return
        content = b""
        for line in lines:
            content += json.dumps(line, separators=(",", ":")).encode() + b"\n"
        with contextlib.suppress(OSError):  # on a full disk the long file is as good
            write_whole(self._path, content, durable=True)
            self._lines = len(lines)
        self._size = self._path.stat().st_size


def _locked(path: Path) -> int:
    """Open and lock a file; return its descriptor. Raises JournalHeldError."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise JournalHeldError(
            f"another agent uses {path.parent}: stop it, or give this one its own --state-dir"
        ) from error
    return descriptor
