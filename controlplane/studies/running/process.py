"""Process in which a study runs, seen from the worker that started it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foundation.child_processes.child import (
    ChildProcess,
    environment_without_secrets,
    python_module,
)
from foundation.child_processes.messages import DeadlineError

LOG = "log.txt"
"""File for what the process writes to standard error."""


@dataclass(frozen=True, slots=True)
class Status:
    """Last message; `error`: empty for a good end; `busy`: another process has the folder."""

    progress: float = 0.0
    message: str = ""
    left_s: float | None = None
    ended: bool = False
    error: str = ""
    busy: bool = False


class StudyProcess:
    """Process of a folder's study; on exit of the context it and its children are gone."""

    def __init__(
        self,
        folder: Path,
        *,
        processes: int,
        memory_gb: float,
        command: Sequence[str] | None = None,
    ) -> None:
        program = command or python_module("controlplane.studies.running.child")
        limits = ["--processes", str(processes), "--memory-gb", str(memory_gb)]
        with (folder / LOG).open("wb") as log:
            self._child = ChildProcess(
                [*program, *limits, str(folder)], environment_without_secrets(), errors=log
            )
        self.status = Status()

    @property
    def pid(self) -> int:
        return self._child.pid

    def __enter__(self) -> StudyProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it and all its children."""
        self._child.kill()

    def listen(self, for_s: float) -> Status:
        """Take its messages within that time, or until it has ended."""
        until_s = time.monotonic() + for_s
        while not self.status.ended and time.monotonic() < until_s:
            try:
                self._receive(json.loads(self._child.receive(until_s)))
            except DeadlineError:
                break
            except EOFError:  # an end that no message has told is a failure
                code = self._child.wait()
                end = f"was killed (signal {-code})" if code < 0 else f"ended with status {code}"
                self._receive({"error": f"its process {end} without a result"})
        return self.status

    def _receive(self, message: dict[str, Any]) -> None:
        """Take the status from a message of the process."""
        progress = self.status.progress
        if "error" in message:
            error = str(message["error"]) or "it failed"
            self.status = Status(progress, ended=True, error=error)
        elif "done" in message:
            self.status = Status(1.0, ended=True)
        elif "busy" in message:
            self.status = Status(progress, ended=True, busy=True)
        else:
            progress = max(progress, min(1.0, message["progress"]))
            self.status = Status(progress, message["message"], message["left_s"])
