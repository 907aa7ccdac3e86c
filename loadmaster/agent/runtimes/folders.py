"""Launch folders shared by runtimes: files, and orders to the guard by files."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from loadmaster.agent import guard
from loadmaster.agent.clock import Clock, SystemClock
from loadmaster.agent.files import open_plain, private_folder, write_json, write_whole
from loadmaster.agent.runtimes.base import PROGRESS, Exit, Launch, RunId, StopBy, StopOrder, Term
from loadmaster.protocol import LaunchSpec, ReasonClass
from loadmaster.wire import WireError, dumps, loads

LEASE_FILE_SIZE = 256
FILES = {"stdout": "stdout.log", "stderr": "stderr.log", PROGRESS: "progress.jsonl"}


class RunFolders:
    """A private folder for each run below `runs`; see `guard` for the files by which agent and
    guard speak.

    `spec.json` is the agent's own, for one that adopts the run: it holds secrets, so its mode is
    0600, and it goes with the folder.
    """

    order_mode: ClassVar[int] = 0o600
    """Mode of lease, stop order and term: readable by guard and job."""

    def __init__(self, runs: Path, clock: Clock | None = None) -> None:
        self._runs = private_folder(runs)
        self._clock = clock or SystemClock()

    def folder(self, run: RunId) -> Path:
        """The run's private folder."""
        return self._runs / run.name

    def orders(self, run: RunId) -> Path:
        """Where lease, order to stop and term lie."""
        return self.folder(run)

    def stream(self, run: RunId, stream: str) -> Path:
        """The file of a stream."""
        return self.folder(run) / FILES[stream]

    def close(self) -> None:
        """Nothing is held but files."""

    def _write_spec(self, launch: Launch) -> None:
        write_whole(self.folder(launch.run) / "spec.json", dumps(launch.spec), durable=True)
        self._write_term(launch.run, {**self._end_of(launch.term), "grace_s": launch.spec.grace_s})

    def renew(self, run: RunId, lease_until_s: float) -> None:
        lease = guard.read_json(self.orders(run) / "lease.json")
        if lease:
            self._write_lease(run, lease_until_s, str(lease["boot_id"]))

    def _write_lease(self, run: RunId, lease_until_s: float, boot_id: str) -> None:
        path = self.orders(run) / "lease.json"
        text = (
            json.dumps({"deadline_s": lease_until_s, "boot_id": boot_id})
            .encode()
            .ljust(LEASE_FILE_SIZE)
        )
        try:
            write_whole(path, text, mode=self.order_mode)
        except OSError:
            # a full disk: what is there already can be overwritten in place, and a torn lease
            # counts as the one before
            with path.open("r+b") as file:
                file.write(text)

    def _note_start(self, run: RunId) -> None:
        """Record the first start; the time to the job's process counts as set-up."""
        path = self.folder(run) / "started.json"
        if not path.exists():
            with contextlib.suppress(
                OSError
            ):  # a full disk: then the set-up counts from the job's own process
                write_json(path, {"at_s": self._clock.wall_s()})

    def started_at_s(self, run: RunId) -> float | None:
        at_s = (guard.read_json(self.folder(run) / "started.json") or {}).get("at_s")
        return float(at_s) if isinstance(at_s, (int, float)) else None

    def _lease_until_s(self, run: RunId) -> float | None:
        lease = guard.read_json(self.orders(run) / "lease.json") or {}
        return lease.get("deadline_s")

    def update(self, run: RunId, term: Term) -> None:
        self._write_term(run, self._end_of(term))

    def _end_of(self, term: Term) -> dict[str, Any]:
        """A term's end on the boot clock, and for older libraries on the wall clock."""
        ends_s = term.ends_s
        wall_s = (
            term.until_s if ends_s is None else self._clock.wall_s() + ends_s - self._clock.boot_s()
        )
        return {"term_until_s": wall_s, "term_ends_boot_s": ends_s}

    def set_pace(self, run: RunId, step_s: float) -> None:
        if self.orders(run).exists():
            write_json(self.orders(run) / "pace.json", {"step_s": step_s}, mode=self.order_mode)

    def _write_term(self, run: RunId, change: dict[str, Any]) -> None:
        path = self.orders(run) / "term.json"
        former = guard.read_json(path) or {
            "stop": False,
            "reason": None,
            "grace_s": 30.0,
            **self._end_of(Term()),
        }
        write_json(
            path, {"version": 1, "fence": run.fence, **former, **change}, mode=self.order_mode
        )

    def stop(self, run: RunId, order: StopOrder) -> None:
        if not self.orders(run).exists():
            return
        now_s = self._clock.boot_s()
        wait_s = order.grace_s / 2 if order.by is StopBy.PREEMPT else 0.0
        words = {
            "by": order.by.value,
            "term_at_s": now_s + wait_s,
            "kill_at_s": now_s + order.grace_s,
        }
        try:
            write_json(self.orders(run) / "stop.json", words, mode=self.order_mode)
        except OSError:  # a full disk: the guard takes a signal for an order too
            self._signal_guard(run)
        with contextlib.suppress(OSError):  # a full disk: the signals come all the same
            self._write_term(
                run, {"stop": True, "reason": order.by.value, "grace_s": order.grace_s}
            )

    def _signal_guard(self, run: RunId) -> None:
        """Send the guard SIGTERM."""
        raise NotImplementedError

    def list(self) -> tuple[RunId, ...]:
        found = (RunId.parse(path.name) for path in sorted(self._runs.iterdir()) if path.is_dir())
        return tuple(run for run in found if run)

    def spec(self, run: RunId) -> LaunchSpec | None:
        try:
            return loads(LaunchSpec, (self.folder(run) / "spec.json").read_bytes())
        except (OSError, WireError):
            return None

    def read(self, run: RunId, stream: str, offset: int, limit: int) -> bytes:
        try:
            with os.fdopen(open_plain(self.stream(run, stream)), "rb") as file:
                file.seek(offset)
                return file.read(limit)
        except FileNotFoundError:
            return b""

    def size(self, run: RunId, stream: str) -> int:
        try:
            descriptor = open_plain(self.stream(run, stream))
        except FileNotFoundError:
            return 0
        try:
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def note(self, run: RunId, text: str | None) -> str:
        path = self.folder(run) / "shipping.json"
        if text is not None:
            with contextlib.suppress(
                OSError
            ):  # a full disk: an older note only makes a restarted agent ship a piece again
                write_whole(path, text.encode())
            return text
        try:
            return path.read_text()
        except OSError:
            return ""

    def remove(self, run: RunId) -> None:
        shutil.rmtree(self.folder(run), ignore_errors=True)


def exit_of(data: dict[str, Any]) -> Exit:
    """The end that an `exit.json` tells of; ValueError or TypeError if it makes no sense."""
    stopped_by, code, blame = data.get("stopped_by"), data.get("exit_code"), data.get("blame")
    found = Exit(
        ended_at_s=float(data["ended_at_s"]),
        started=bool(data.get("started")),
        error=str(data.get("error", "")),
    )
    return replace(
        found,
        exit_code=None if code is None else int(code),
        stopped_by=StopBy(stopped_by) if stopped_by else None,
        killed=bool(data.get("killed")),
        oom=bool(data.get("oom")),
        blame=ReasonClass(blame) if blame else None,
    )
