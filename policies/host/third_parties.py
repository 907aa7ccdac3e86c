"""What a third party's policy is, learnt in a process of its own with a limit of time: nobody else
imports it to list or check it.

Its module may do anything while it is imported, never ending included. Those who list policies or
check parameters (web pages above all) ask here; only who runs a policy imports it (ADR 0020). An
answer is kept as long as this process lives, a failure for KEPT_S.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from math import inf
from time import monotonic
from typing import Any

from policies.contract.policy import PolicyError, PolicyParameterError
from policies.host.environment import of_a_child

LIMIT_S = 20.0
"""Time that importing a module and making its policy may take, Python's own start included."""

KEPT_S = 300.0
"""Time for which a failure is remembered, as its cause may pass."""

MOST_KEPT = 1000
"""Answers kept at most; there is one for all parameters that somebody tried."""


@dataclass(frozen=True, slots=True)
class Description:
    """A policy described: JSON Schema of its parameters, and its file or ""."""

    schema: Mapping[str, Any]
    file: str

    @property
    def summary(self) -> str:
        """Its first line of documentation."""
        return str(self.schema["description"])


@dataclass(frozen=True, slots=True)
class _Answer:
    found: Description | PolicyError
    until_s: float


_kept: dict[tuple[str, ...], _Answer] = {}


def describe(entry: EntryPoint, parameters: Mapping[str, object] | None = None) -> Description:
    """What the policy of the entry point is. With parameters it is made with them as well.

    Raises PolicyError where it cannot be loaded or made, within LIMIT_S among others;
    PolicyParameterError naming the parameter.
    """
    request = json.dumps(
        {"name": entry.name, "value": entry.value, "parameters": parameters}, default=str
    )
    key = (request, entry.dist.version if entry.dist else "")
    answer = _kept.get(key)
    if answer is None or answer.until_s < monotonic():
        answer = _asked(entry, request)
        _keep(key, answer)
    if isinstance(answer.found, PolicyError):
        raise type(answer.found)(
            str(answer.found)
        )  # anew: an error that is raised twice gathers tracebacks
    return answer.found


def forget() -> None:
    """Ask anew about every policy."""
    _kept.clear()


def _keep(key: tuple[str, ...], answer: _Answer) -> None:
    if len(_kept) >= MOST_KEPT:
        _kept.clear()
    _kept[key] = answer


def _asked(entry: EntryPoint, request: str) -> _Answer:
    try:
        return _Answer(_read(entry, _answer_of_child(request)), inf)
    except PolicyError as error:
        return _Answer(error, monotonic() + KEPT_S)
    except subprocess.TimeoutExpired:
        told = f"took more than {LIMIT_S:g} s and was stopped; it is tried again after {KEPT_S:g} s"
        return _Answer(
            PolicyError(f"policy {entry.name!r} ({entry.value}) cannot be loaded: it {told}"),
            monotonic() + KEPT_S,
        )


def _answer_of_child(request: str) -> bytes:
    """The child's answer, or nothing; the child and its children are gone afterwards."""
    command = [sys.executable, "-m", "policies.host.describing", str(os.getpid())]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=nothing, start_new_session=True, env=of_a_child()
    ) as child:
        try:
            return child.communicate(request.encode(), timeout=LIMIT_S)[0]
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)


def _read(entry: EntryPoint, answer: bytes) -> Description:
    try:
        told = json.loads(answer)
    except ValueError:
        told = f"policy {entry.name!r} ({entry.value}) cannot be loaded"
        raise PolicyError(f"{told}: it ended the process that imported it") from None
    if "error" in told:
        raise (
            PolicyParameterError(told["error"]) if told["parameter"] else PolicyError(told["error"])
        )
    return Description(told["schema"], told["file"])
