"""Runs of a study in plain child processes, which a Celery worker may start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import IO, Any

from controlplane.simulation.study.document import Run, Study

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
"""A run takes one processor; how many run at once is the study's choice."""

_ROOT = str(Path(__file__).resolve().parents[3])


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run failed; `everywhere`: every run of the study would."""

    run: Run
    message: str
    everywhere: bool = False


class Child:
    """One run under way in a process and session of its own, which dies with us."""

    def __init__(self, study: Study, folder: Path, run: Run) -> None:
        self.run, self.started_s, self.fraction = run, monotonic(), 0.0
        self._log = folder / "runs" / f"{run.key}.log"
        self._error: dict[str, Any] | None = None
        rights = [
            "trusted" if study.trusted else "",
            "" if study.traces is None else str(study.traces.resolve()),
        ]
        words = [
            str(folder.resolve()),
            str(run.policy),
            str(run.seed),
            run.key,
            str(os.getpid()),
            *rights,
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "controlplane.simulation.study.run_one", *words],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=_environment(),
                start_new_session=True,
                encoding="utf-8",
            )  # fmt: skip
        self._reader = Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def is_over(self) -> bool:
        """Return True if the process has ended."""
        return self._process.poll() is not None

    def failure(self) -> Failure | None:
        """Of one that is over: why it failed, None if its files are there."""
        self._reader.join()
        code = self._process.wait()
        if code == 0:
            self._log.unlink(missing_ok=True)
            return None
        if self._error is not None:
            return Failure(
                self.run, str(self._error.get("error")), bool(self._error.get("everywhere"))
            )
        if code < 0:
            return Failure(self.run, f"its process was killed by {signal.Signals(-code).name}")
        return Failure(self.run, f"its process ended with {code}: {self._last_words()}")

    def kill(self) -> None:
        """End it at once, and whatever it has started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        self._log.unlink(missing_ok=True)

    def _read(self, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                self._hear(json.loads(line))

    def _hear(self, said: dict[str, Any]) -> None:
        if "error" in said:
            self._error = said
        else:
            self.fraction = said["completed"] / max(1, said["total"])

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def _environment() -> dict[str, str]:
    """Ours, with the same places to import from: an interpreter started anew does not have them."""
    places = [_ROOT, *(place for place in sys.path if place and place != _ROOT)]
    return {**dict.fromkeys(ONE_THREAD, "1"), **os.environ, "PYTHONPATH": os.pathsep.join(places)}
