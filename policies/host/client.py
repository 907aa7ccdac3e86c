"""Solver in a child process: kept warm, killed on timeout, restarted.

A prefork worker may not use multiprocessing, hence a plain child in its own session, which the
kernel kills with its parent. It answers one request at a time; threads wait.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import IO, Any

from policies.contract import plan_json
from policies.contract import policy as base
from policies.contract.forms import NUL, FormError, cleaned
from policies.contract.plan import LONGEST_TEXT, Plan
from policies.contract.policy import PolicyError, SolverFailedError
from policies.contract.snapshot import Snapshot
from policies.host.lifetime import of_a_child

START_S = 60.0
"""Extra time of a new process for imports and compilation."""

CHUNK = 1 << 16

LONGEST_ANSWER = 256 << 20
"""Most bytes of an answer; a plan with 100,000 jobs has about 20 MiB."""

OUT_OF_MEMORY = b'"error":{"type":"MemoryError"'
HEAD = 100
"""Bytes at the start of an answer that hold its request number."""


class DeadlineError(Exception):
    """Timeout of the process."""


class SolverProcess:
    """Solver of snapshots in a child process.

    Also a context manager; `close` ends the child. After a fork (a worker of a prefork pool) the
    parent's child is left alone and a new one is started.
    """

    def __init__(self, timeout_s: float, command: Sequence[str] | None = None) -> None:
        self.timeout_s = timeout_s
        self._command = list(command) if command else [sys.executable, "-m", "policies", "serve"]
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._number = 0
        self._read = b""
        self._is_ready = False

    def start(self) -> None:
        """Start the child, which warms up meanwhile. Raises OSError."""
        self._forget_parents_child()
        with self._lock:
            self._running()

    def await_ready(self) -> None:
        """Wait until the child has warmed up. Raises SolverFailedError."""
        self._forget_parents_child()
        with self._lock, self._or_killed("the policies"):
            self._ready()

    def solve(
        self, snapshot: Snapshot, policy: str, parameters: Mapping[str, object] | None = None
    ) -> Plan:
        """Return the policy's plan. PolicyError; SolverFailedError after a crash or timeout."""
        self._forget_parents_child()
        with self._lock:
            self._number += 1
            head = {"id": self._number, "policy": policy, "parameters": dict(parameters or {})}
            line = (
                json.dumps(head).encode()[:-1]
                + b', "snapshot": '
                + snapshot.canonical_bytes
                + b"}\n"
            )
            answer = self._ask(line, policy)
        return _plan_of(answer)

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def close(self) -> None:
        self._forget_parents_child()
        with self._lock:
            self._kill()

    def __enter__(self) -> SolverProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _forget_parents_child(self) -> None:
        if self._owner != os.getpid():
            self._owner, self._lock = os.getpid(), threading.Lock()
            self._process, self._read = None, b""

    def _ask(self, line: bytes, policy: str) -> bytes:
        with self._or_killed(policy):
            process = self._ready()
            deadline = monotonic() + self.timeout_s
            _write(process.stdin, line, deadline)
            answer = self._answer(process, deadline)
        if OUT_OF_MEMORY in answer[:HEAD]:  # what it holds is lost to the next one who asks
            self._kill()
        return answer

    @contextlib.contextmanager
    def _or_killed(self, policy: str) -> Iterator[None]:
        """End the process on any failure, as the pipe would hold half an answer."""
        try:
            yield
        except (OSError, EOFError, ValueError) as error:
            self._kill()
            raise SolverFailedError(
                f"the solver process of {policy} ended without an answer: {error or 'it crashed'}"
            ) from error
        except DeadlineError as error:
            self._kill()
            raise SolverFailedError(
                f"{policy} took more than {self.timeout_s:g} s and was stopped: {error}"
            ) from error
        except BaseException:
            self._kill()
            raise

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._kill()
            self._start()
        assert self._process is not None
        return self._process

    def _start(self) -> None:
        self._read, self._is_ready = b"", False
        self._process = process = _Starter([*self._command, "--parent", str(os.getpid())]).process()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)

    def _ready(self) -> subprocess.Popen[bytes]:
        process = self._running()
        if not self._is_ready:
            self._answer(process, monotonic() + START_S + self.timeout_s)
            self._is_ready = True
        return process

    def _answer(self, process: subprocess.Popen[bytes], deadline: float) -> bytes:
        """Read the next line. ValueError if it is longer than LONGEST_ANSWER."""
        parts, length = [self._read], len(self._read)
        while b"\n" not in parts[-1]:
            parts.append(_read(process.stdout, deadline))
            length += len(parts[-1])
            if length > LONGEST_ANSWER:
                raise ValueError(f"its answer is longer than {LONGEST_ANSWER >> 20} MiB")
        line, _, self._read = b"".join(parts).partition(b"\n")
        return line

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        process.wait()


class _Starter(threading.Thread):
    """Thread that starts the child and lives on: Linux kills a child with its thread."""

    def __init__(self, command: list[str]) -> None:
        super().__init__(name="solver-starter", daemon=True)
        self._command = command
        self._result: queue.SimpleQueue[subprocess.Popen[bytes] | OSError] = queue.SimpleQueue()

    def process(self) -> subprocess.Popen[bytes]:
        """Start the child. Raises OSError."""
        self.start()
        result = self._result.get()
        if isinstance(result, OSError):
            raise result
        return result

    def run(self) -> None:
        """Start the child in a session of its own and wait for its end."""
        try:
            pipe = subprocess.PIPE
            process = subprocess.Popen(
                self._command, stdin=pipe, stdout=pipe, start_new_session=True, env=of_a_child()
            )
        except OSError as error:
            self._result.put(error)
            return
        self._result.put(process)
        process.wait()


def _write(pipe: IO[bytes] | None, data: bytes, deadline: float) -> None:
    assert pipe is not None
    left = memoryview(data)
    while left:
        _, ready, _ = select.select([], [pipe], [], max(0.0, deadline - monotonic()))
        if not ready:
            raise DeadlineError("it did not read its request")
        left = left[os.write(pipe.fileno(), left[:CHUNK]) :]


def _read(pipe: IO[bytes] | None, deadline: float) -> bytes:
    assert pipe is not None
    ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - monotonic()))
    if not ready:
        raise DeadlineError("it did not answer")
    data = os.read(pipe.fileno(), CHUNK)
    if not data:
        raise EOFError
    return data


def _plan_of(line: bytes) -> Plan:
    try:
        answer: dict[str, Any] = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SolverFailedError(f"the solver process answered what is no JSON: {error}") from error
    if "error" in answer:
        raise _error_of(answer["error"])
    try:
        plan = plan_json.from_json(answer["plan"])
    except (FormError, RecursionError) as error:
        raise SolverFailedError(
            f"the policy's plan does not have the documented form: {error}"
        ) from error
    if NUL.search(line):
        raise SolverFailedError("the plan cannot be kept: a text in it has a NUL character")
    return plan


def _error_of(error: Mapping[str, str]) -> PolicyError:
    """Convert the child's error; any but a PolicyError is a failed solver."""
    of, message = getattr(base, error["type"], None), cleaned(error["message"], LONGEST_TEXT)
    if isinstance(of, type) and issubclass(of, PolicyError):
        return of(message)
    return SolverFailedError(f"{cleaned(error['type'], 100)}: {message}")
