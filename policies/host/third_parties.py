"""Descriptions of third parties' policies, made in another process with a time limit.

Importing a module may do anything, even never end. So a process that lists policies or checks
parameters asks here, and only one that runs a policy imports it (ADR 0020). Answers are kept while
this process lives, failures for KEPT_S.
"""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from math import inf
from time import monotonic
from typing import Any

from foundation.child_processes.child import (
    ChildProcess,
    environment_without_secrets,
    python_module,
)
from foundation.child_processes.messages import DeadlineError
from policies.contract.policy import PolicyError, PolicyParameterError

LIMIT_S = 20.0
"""Time limit of importing a module and making its policy, Python's own start included."""

KEPT_S = 300.0
"""Time for which a failure is remembered, as its cause may pass."""

MOST_KEPT = 1000
"""Most answers kept; every set of parameters tried has one."""


@dataclass(frozen=True, slots=True)
class Description:
    """JSON Schema of a policy's parameters, its source file ("": none), and if it places batch."""

    schema: Mapping[str, Any]
    file: str
    places_batch: bool = False

    @property
    def summary(self) -> str:
        """First line of its documentation."""
        return str(self.schema["description"])


_kept: dict[tuple[str, str], tuple[Description | PolicyError, float]] = {}
"""(answer, its expiry on the monotonic clock in s) by request and version of the package."""


def describe(entry: EntryPoint, parameters: Mapping[str, object] | None = None) -> Description:
    """Describe the entry point's policy, made with parameters if any are given.

    Raises PolicyError where it cannot be loaded or made within LIMIT_S; PolicyParameterError naming
    the parameter.
    """
    request = json.dumps(
        {"name": entry.name, "value": entry.value, "parameters": parameters}, default=str
    )
    key = (request, entry.dist.version if entry.dist else "")
    answer, expires_s = _kept.get(key, (None, 0.0))
    if answer is None or expires_s < monotonic():
        answer = _ask(entry, request)
        expires_s = inf
        if isinstance(answer, PolicyError):
            expires_s = monotonic() + KEPT_S
        if len(_kept) >= MOST_KEPT:
            _kept.clear()
        _kept[key] = answer, expires_s
    if isinstance(answer, PolicyError):
        raise type(answer)(str(answer))  # anew: an error that is raised twice gathers tracebacks
    return answer


def forget() -> None:
    """Forget all answers."""
    _kept.clear()


def _ask(entry: EntryPoint, request: str) -> Description | PolicyError:
    """Ask another process about a policy; return its description, or why there is none."""
    try:
        return _read(entry, _answer_of_child(request))
    except PolicyError as error:
        return error
    except DeadlineError:
        subject = f"policy {entry.name!r} ({entry.value}) cannot be loaded"
        stopped = f"it took more than {LIMIT_S:g} s and was stopped"
        return PolicyError(f"{subject}: {stopped}; it is tried again after {KEPT_S:g} s")


def _answer_of_child(request: str) -> bytes:
    """Return the child's answer, or nothing if it ended without one. Raises DeadlineError."""
    command = python_module("policies.host.describing")
    deadline_s = monotonic() + LIMIT_S
    with ChildProcess(command, environment_without_secrets(), subprocess.DEVNULL) as child:
        try:
            child.send(request.encode(), deadline_s)
            return child.receive(deadline_s)
        except (OSError, EOFError, ValueError):
            return b""


def _read(entry: EntryPoint, answer: bytes) -> Description:
    """Return the description in the child's answer. Raises the error in it as PolicyError."""
    try:
        form = json.loads(answer)
    except ValueError:
        subject = f"policy {entry.name!r} ({entry.value}) cannot be loaded"
        raise PolicyError(f"{subject}: it ended the process that imported it") from None
    if "error" not in form:
        return Description(form["schema"], form["file"], form["places_batch"])
    if form["parameter"]:
        raise PolicyParameterError(form["error"])
    raise PolicyError(form["error"])
