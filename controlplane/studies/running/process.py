"""Process in which a study runs, seen from the worker that started it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policies.host.lifetime import of_a_child

ROOT = Path(__file__).resolve().parents[3]
CHUNK = 1 << 16
"""Bytes of output that are read at once."""

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
        program = command or [sys.executable, "-m", "controlplane.studies.running.child"]
        limits = ["--processes", str(processes), "--memory-gb", str(memory_gb)]
        with (folder / LOG).open("wb") as log:
            self._process = subprocess.Popen(
                [*program, *limits, "--parent", str(os.getpid()), str(folder)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env=of_a_child(),
            )
        self._incomplete_line = b""
        self.status = Status()

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> StudyProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it and all its children."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process.wait()

    def listen(self, for_s: float) -> Status:
        """Read its output within that time, or until it has ended."""
        pipe = self._process.stdout
        assert pipe is not None
        until_s = time.monotonic() + for_s
        while not self.status.ended:
            # 1. Wait for output.
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                break
            ready, _, _ = select.select([pipe], [], [], left_s)
            if not ready:
                break

            # 2. The end of the output, before a message has told the end, is a failure.
            data = os.read(pipe.fileno(), CHUNK)
            if not data:
                code = self._process.wait()
                end = f"was killed (signal {-code})" if code < 0 else f"ended with status {code}"
                self._receive({"error": f"its process {end} without a result"})
                break

            # 3. Whole lines are messages; the rest of a line is kept until its end comes.
            *lines, self._incomplete_line = (self._incomplete_line + data).split(b"\n")
            for line in lines:
                self._receive(json.loads(line))
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
