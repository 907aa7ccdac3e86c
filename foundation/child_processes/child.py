"""Child process seen from its parent: started, asked until a deadline, killed with its children.

A prefork worker may not use multiprocessing, hence a plain program in a session of its own.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from foundation.child_processes.limits import PARENT
from foundation.child_processes.messages import LineChannel

PACKAGES = str(Path(__file__).resolve().parents[2])
"""Folder from which a child imports this program's packages."""

PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV", "SYSTEMROOT")
PASSED_ON_PREFIXES = ("LC_", "NUMBA_", "PYTHON", "COVERAGE_", "OMP_", "OPENBLAS_", "MKL_")
"""Variables, and prefixes of variables, that are no secrets of the server."""

Errors = int | IO[bytes] | None
"""Receiver of a child's standard error: as subprocess takes it, None for this process' own."""


class ChildProcess:
    """Child process with a pipe each way, in which a message is a line.

    It ends with this process if it calls `set_up_child`. Also a context manager, which kills it.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], errors: Errors = None
    ) -> None:
        """Start the command. Raises OSError."""
        path = os.pathsep.join(filter(None, (PACKAGES, environment.get("PYTHONPATH"))))
        own = {"PYTHONPATH": path, PARENT: str(os.getpid())}
        self._process = _Starter(command, {**environment, **own}, errors).process()
        self.pid = self._process.pid
        requests = self._process.stdin
        answers = self._process.stdout
        assert requests is not None
        assert answers is not None
        self._pipes = (requests, answers)
        self._channel = LineChannel(answers.fileno(), requests.fileno(), self.has_ended)

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def send(self, message: bytes, deadline_s: float) -> None:
        """Send a line before a moment of `time.monotonic`. Raises DeadlineError and OSError."""
        self._channel.send(message, deadline_s)

    def receive(self, deadline_s: float) -> bytes:
        """Return the next line. Raises DeadlineError, EOFError if it has ended, ValueError."""
        return self._channel.receive(deadline_s)

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self) -> int:
        """Wait for its end; return its exit status, or minus the number of the signal."""
        return self._process.wait()

    def kill(self) -> None:
        """Kill it and its children in its session. It may have ended already."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        for pipe in self._pipes:
            pipe.close()
        self._process.wait()


class _Starter(threading.Thread):
    """Thread that starts a child and lives as long as it: Linux ends a child with its thread."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], errors: Errors
    ) -> None:
        super().__init__(name="child starter", daemon=True)
        self._command = list(command)
        self._environment = dict(environment)
        self._errors = errors
        self._result: queue.SimpleQueue[subprocess.Popen[bytes] | OSError] = queue.SimpleQueue()

    def process(self) -> subprocess.Popen[bytes]:
        """Start the child. Raises OSError."""
        self.start()
        result = self._result.get()
        if isinstance(result, OSError):
            raise result
        return result

    def run(self) -> None:
        """Start the child and wait for its end."""
        try:
            process = subprocess.Popen(
                self._command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=self._environment,
                start_new_session=True,
            )
        except OSError as error:
            self._result.put(error)
            return
        self._result.put(process)
        process.wait()


def python_module(name: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this program.

    Modules are not looked for in the current folder, which may be anybody's.
    """
    return [sys.executable, "-P", "-m", name, *arguments]


def environment_without_secrets() -> dict[str, str]:
    """Return the environment of a child that may not see the server's secrets."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in PASSED_ON or name.startswith(PASSED_ON_PREFIXES)
    }
