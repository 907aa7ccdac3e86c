"""Journals that jobs keep of themselves: when each launch began, lived and ended.

    with JobJournal.of_this_launch(folder) as journal:
        for batch in training.steps(loader, save=save, load=load):
            ...
            journal.step(done)

A launch appends lines to `<job>.jsonl`: `start`, a `beat` every 100 ms, `resumed`, `step`, `saved`,
`end`, each with the boot clock, so one killed by SIGKILL has ended at its last beat. While it lives
it locks a file for its rank and checkpoint folder: the lock taken is evidence that another lived.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from loadmaster.training.run_folder import append_to, boot_s, process_age_s

BEAT_S = 0.1
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """A launch as its agent says; launches of one `checkpoints` folder are sequential.

    `rank`: of a batch job the number of its seat.
    """

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
            int(environ.get("LOADMASTER_SEAT") or environ.get("LOADMASTER_RANK", "0")),
            tuple(device for device in environ.get("LOADMASTER_DEVICES", "").split(",") if device),
            int(environ.get("LOADMASTER_STEPS", "0")),
            environ.get("LOADMASTER_CHECKPOINT_DIR", ""),
        )


class JobJournal:
    """The journal of one launch; use as a context manager around everything the launch does."""

    def __init__(self, folder: Path, facts: LaunchFacts) -> None:
        self._facts = facts
        self._launch = f"{facts.assignment}-{facts.fence}-{os.getpid()}"
        self._descriptor = append_to(folder / f"{facts.job}.jsonl")
        digest = hashlib.sha256(facts.checkpoints.encode()).hexdigest()[:12]
        self._lock = append_to(folder / f"{facts.job}.{facts.rank}.{digest}.lock")
        self._is_locked = False
        self._ended = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="journal", daemon=True)

    @classmethod
    def of_this_launch(cls, folder: Path) -> JobJournal:
        """The journal of the launch that this process is."""
        return cls(folder, LaunchFacts.read())

    def __enter__(self) -> JobJournal:
        born_s = boot_s() - process_age_s()
        boot_id, is_free = _BOOT_ID.read_text().strip(), self._take_lock()
        times = {"born_s": born_s, "at_s": time.time(), "boot_id": boot_id}
        facts = asdict(self._facts)
        self._write("start", **facts, pid=os.getpid(), **times, lock_free=is_free)
        self._beats.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._ended.set()
        self._beats.join()
        self._write("end", how="done" if error is None else type(error).__name__)
        os.close(self._lock)
        os.close(self._descriptor)

    def resumed(self, step: int) -> None:
        """Note that the launch goes on after a step, by its checkpoint; 0: from the beginning."""
        self._write("resumed", step=step)

    def step(self, step: int) -> None:
        """Note a step done, by its number in the job, counted from 1."""
        self._write("step", step=step)

    def saved(self, step: int) -> None:
        """Note a complete checkpoint: no step up to it may be repeated or be missing."""
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
        data = {"launch": self._launch, "event": event, "boot_s": boot_s(), **fields}
        line = json.dumps(data, separators=(",", ":"))
        os.write(self._descriptor, line.encode() + b"\n")
