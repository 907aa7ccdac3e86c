"""Journals that jobs keep of themselves, beside everything that Loadmaster records: when each
launch began, lived and ended.

    with JobJournal.of_this_launch(folder) as journal:
        for batch in training.steps(loader, save=save, load=load):
            ...
            journal.step(done)

A launch appends lines of JSON to `<job>.jsonl`: `start`, a `beat` every 100 ms, what it did
(`resumed`, `step`, `saved`), `end`. Each carries the boot clock (CLOCK_BOOTTIME), so launches of
one machine can be held against each other, and one that was killed by SIGKILL has ended at its last
beat. As long as it lives it locks a file beside the journal, one for the job's rank and folder of
checkpoints: finding the lock taken is evidence by the kernel that another launch was alive.
(Profile runs have folders of their own, and several may run at once.) `journal_checks` reads
what is written here.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from loadmaster.training.run_folder import process_age_s

BEAT_S = 0.1
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """A launch as its agent says; launches of one `checkpoints` folder are sequential."""

    job: str
    assignment: str
    fence: int
    rank: int = 0
    devices: tuple[str, ...] = ()
    steps: int = 0
    checkpoints: str = ""

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> LaunchFacts:
        """From the variables that an agent sets; KeyError where there is no agent."""
        return cls(
            environ["LOADMASTER_JOB"],
            environ["LOADMASTER_ASSIGNMENT"],
            int(environ["LOADMASTER_FENCE"]),
            int(environ.get("LOADMASTER_RANK", "0")),
            tuple(device for device in environ.get("LOADMASTER_DEVICES", "").split(",") if device),
            int(environ.get("LOADMASTER_STEPS", "0")),
            environ.get("LOADMASTER_CHECKPOINT_DIR", ""),
        )


class JobJournal:
    """The journal of one launch; use as a context manager around everything the launch does."""

    def __init__(self, folder: Path, facts: LaunchFacts) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._facts = facts
        self._launch = f"{facts.assignment}-{facts.fence}-{os.getpid()}"
        self._descriptor = _append_to(folder / f"{facts.job}.jsonl")
        self._lock = _append_to(
            folder / f"{facts.job}.{facts.rank}.{_digest(facts.checkpoints)}.lock"
        )
        self._is_locked = False
        self._ended = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="journal", daemon=True)

    @classmethod
    def of_this_launch(cls, folder: Path) -> JobJournal:
        """The journal of the launch that this process is."""
        return cls(folder, LaunchFacts.read())

    def __enter__(self) -> JobJournal:
        born_s = _boot_s() - process_age_s()
        facts = self._facts
        self._write(
            "start",
            job=facts.job, assignment=facts.assignment, fence=facts.fence, rank=facts.rank,
            devices=list(facts.devices),
            steps=facts.steps, checkpoints=facts.checkpoints, pid=os.getpid(), boot_id=_boot_id(),
            born_s=born_s,
            at_s=time.time(), lock_free=self._take_lock(),
        )  # fmt: skip
        self._beats.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._beats.join()
        self._write("end", how="done" if error is None else type(error).__name__)
        os.close(self._lock)
        os.close(self._descriptor)

    def resumed(self, step: int) -> None:
        """The launch goes on after so many steps, by its checkpoint; 0 from the beginning."""
        self._write("resumed", step=step)

    def step(self, step: int) -> None:
        """The launch has just done the job's step of this number, counted from 1."""
        self._write("step", step=step)

    def saved(self, step: int) -> None:
        """A checkpoint is complete: no step up to it may be repeated or be missing."""
        self._write("saved", step=step)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            self._write("beat", lock_free=self._take_lock())

    def _take_lock(self) -> bool:
        """Return True if nobody else holds the lock; it is held until the process ends."""
        if not self._is_locked:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            self._is_locked = True
        return True

    def _write(self, event: str, **fields: object) -> None:
        line = json.dumps(
            {"launch": self._launch, "event": event, "boot_s": _boot_s(), **fields},
            separators=(",", ":"),
        )
        os.write(self._descriptor, line.encode() + b"\n")


def _append_to(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _boot_id() -> str:
    return _BOOT_ID.read_text().strip()
