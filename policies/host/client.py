"""Solver in a child process: kept warm, killed on timeout, restarted.

It answers one request at a time; threads wait.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import Any

from foundation.child_processes.child import (
    ChildProcess,
    environment_without_secrets,
    python_module,
)
from foundation.child_processes.messages import DeadlineError
from foundation.forms import NUL, FormError, cleaned
from policies.contract import plan_json
from policies.contract import policy as policy_contract
from policies.contract.plan import LONGEST_TEXT, Plan
from policies.contract.policy import PolicyError, SolverFailedError
from policies.contract.snapshot import Snapshot

START_S = 60.0
"""Extra time of a new process for imports and compilation."""

OUT_OF_MEMORY = b'"error":{"type":"MemoryError"'
HEAD = 100
"""Bytes at the start of an answer that hold its request number and the type of its error."""


class SolverProcess:
    """Solver of snapshots in a child process.

    Also a context manager; `close` ends the child. After a fork (a worker of a prefork pool) the
    parent's child is left alone and a new one is started.
    """

    def __init__(self, timeout_s: float, command: Sequence[str] | None = None) -> None:
        self.timeout_s = timeout_s
        self._command = list(command) if command else python_module("policies", "serve")
        self._lock = threading.Lock()
        self._child: ChildProcess | None = None
        self._owner = os.getpid()
        self._number = 0
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
            # The snapshot's own bytes are put in, as they may be megabytes.
            open_head = json.dumps(head).encode().removesuffix(b"}")
            parts = [open_head, b', "snapshot": ', snapshot.canonical_bytes, b"}"]
            answer = self._ask(b"".join(parts), policy)
        return _plan_of(answer)

    @property
    def pid(self) -> int | None:
        """Process id of the child; None if none runs."""
        child = self._child
        return None if child is None or child.has_ended() else child.pid

    def close(self) -> None:
        """End the child; the next request starts a new one."""
        self._forget_parents_child()
        with self._lock:
            self._kill()

    def __enter__(self) -> SolverProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _forget_parents_child(self) -> None:
        """After a fork leave the child and its lock to the parent process."""
        if self._owner != os.getpid():
            self._owner = os.getpid()
            self._lock = threading.Lock()
            self._child = None

    def _ask(self, request: bytes, policy: str) -> bytes:
        """Return the child's answer. Raises SolverFailedError after a crash or timeout."""
        with self._or_killed(policy):
            child = self._ready()
            deadline_s = monotonic() + self.timeout_s
            child.send(request, deadline_s)
            answer = child.receive(deadline_s)
        if OUT_OF_MEMORY in answer[:HEAD]:  # the memory that it holds is lost to the next request
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

    def _running(self) -> ChildProcess:
        """Return the child, started anew if it has ended. Raises OSError."""
        if self._child is None or self._child.has_ended():
            self._kill()
            self._child = ChildProcess(self._command, environment_without_secrets())
            self._is_ready = False
        return self._child

    def _ready(self) -> ChildProcess:
        """Return the child once it has said that it is warm."""
        child = self._running()
        if not self._is_ready:
            child.receive(monotonic() + START_S + self.timeout_s)
            self._is_ready = True
        return child

    def _kill(self) -> None:
        child = self._child
        self._child = None
        if child is not None:
            child.kill()


def _plan_of(line: bytes) -> Plan:
    """Return the plan in an answer. Raises the error in it, or SolverFailedError if it has none."""
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
    message = cleaned(error["message"], LONGEST_TEXT)
    error_class = getattr(policy_contract, error["type"], None)
    if isinstance(error_class, type) and issubclass(error_class, PolicyError):
        return error_class(message)
    return SolverFailedError(f"{cleaned(error['type'], 100)}: {message}")
