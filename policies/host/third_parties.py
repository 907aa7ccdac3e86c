"""Descriptions of third parties' policies, made in another process with a time limit.

Importing a module may do anything, never ending included: those who list policies or check
parameters ask here; only who runs a policy imports it (ADR 0020). Answers are kept while this
process lives, failures for KEPT_S.
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
    """JSON Schema of a policy's parameters, its file or "", and whether it places batch jobs."""

    schema: Mapping[str, Any]
    file: str
    places_batch: bool = False

    @property
    def summary(self) -> str:
        """First line of its documentation."""
        return str(self.schema["description"])


_kept: dict[tuple[str, str], tuple[Description | PolicyError, float]] = {}
"""Answers with their expiry, by request and version of the package."""


def describe(entry: EntryPoint, parameters: Mapping[str, object] | None = None) -> Description:
    """Describe the entry point's policy, made with parameters if any are given.

    Raises PolicyError where it cannot be loaded or made within LIMIT_S; PolicyParameterError naming
    the parameter.
    """
    request = json.dumps(
        {"name": entry.name, "value": entry.value, "parameters": parameters}, default=str
    )
    key = (request, entry.dist.version if entry.dist else "")
    found, until_s = _kept.get(key, (None, 0.0))
    if found is None or until_s < monotonic():
        found = _asked(entry, request)
        if len(_kept) >= MOST_KEPT:
            _kept.clear()
        _kept[key] = found, monotonic() + KEPT_S if isinstance(found, PolicyError) else inf
    if isinstance(found, PolicyError):
        raise type(found)(str(found))  # anew: an error that is raised twice gathers tracebacks
    return found


def forget() -> None:
    """Forget all answers."""
    _kept.clear()


def _asked(entry: EntryPoint, request: str) -> Description | PolicyError:
    try:
        return _read(entry, _answer_of_child(request))
    except PolicyError as error:
        return error
    except DeadlineError:
        told = f"took more than {LIMIT_S:g} s and was stopped; it is tried again after {KEPT_S:g} s"
        return PolicyError(f"policy {entry.name!r} ({entry.value}) cannot be loaded: it {told}")


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
    try:
        told = json.loads(answer)
    except ValueError:
        told = f"policy {entry.name!r} ({entry.value}) cannot be loaded"
        raise PolicyError(f"{told}: it ended the process that imported it") from None
    if "error" in told:
        raise (PolicyParameterError if told["parameter"] else PolicyError)(told["error"])
    return Description(told["schema"], told["file"], told["places_batch"])
