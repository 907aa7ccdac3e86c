"""The agent's side of the process that forks guards (`guards`)."""

import errno
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

from loadmaster.agent.runtimes.programs import PACKAGES

GUARDS = (
    "import sys; sys.path.insert(0, {!r}); from loadmaster.agent.guarding.guards import serve;"
    " serve()"
)
"""Python code of the process that forks guards, with PACKAGES to fill in."""

GUARD_START_S = 10.0
"""Seconds in which a guard that was started must own its launch."""


class Spawner:
    """Process that forks guards (`guards.serve`), so that they inherit no memory of the agent.

    The agent writes the folder of a launch to its stdin, and reads the guard's pid from its stdout.
    An empty line says that a guard has ended.
    """

    def __init__(self) -> None:
        self.on_end: Callable[[], None] = lambda: None
        """Called in a thread when a guard has ended."""
        self._process: subprocess.Popen[bytes] | None = None
        self._pids: queue.SimpleQueue[int] = queue.SimpleQueue()

    def start(self, folder: Path) -> int:
        """Start the guard of a launch and return its pid. Raises OSError."""
        try:
            return self._request_guard(folder)
        except OSError:  # it was killed; if it had forked a guard, the second one gives way
            self.close()
            return self._request_guard(folder)

    def _request_guard(self, folder: Path) -> int:
        """Ask the process for a guard, and return the guard's pid. Raises OSError."""
        if self._process is None:
            self._process = self._start_process()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(str(folder)).encode() + b"\n")
        try:
            return self._pids.get(timeout=GUARD_START_S)
        except queue.Empty as error:
            text = "the process that starts guards does not answer"
            raise OSError(errno.ETIMEDOUT, text) from error

    def _start_process(self) -> subprocess.Popen[bytes]:
        """Start the process, and a thread that reads its answers."""
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", GUARDS.format(PACKAGES)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={},
            start_new_session=True,
        )
        arguments = (process.stdout, self._pids)
        threading.Thread(target=self._listen, args=arguments, daemon=True).start()
        return process

    def _listen(self, answers: IO[bytes], pids: queue.SimpleQueue[int]) -> None:
        """Read pids and ends of guards until the process and all its guards have ended."""
        with answers:
            for line in answers:
                if line.strip():
                    pids.put(int(line))
                else:
                    self.on_end()

    def close(self) -> None:
        """End the process; guards and their jobs go on."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.kill()
            self._process.wait()
            self._process = None
            self._pids = queue.SimpleQueue()  # the old one may still get a pid
