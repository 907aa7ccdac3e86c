"""What the agent asks of a runtime, and what it gets back."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from loadmaster.protocol import LaunchSpec, ReasonClass

STREAMS = ("stdout", "stderr")
PROGRESS = "progress"
"""The stream of progress lines (JSON), read like a log."""

_SAFE_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class LaunchError(Exception):
    """The runtime cannot do what was asked on this machine (no room, no rights); nothing was
    started.
    """


@dataclass(frozen=True, slots=True, order=True)
class RunId:
    """One launch: an assignment and its fence. There is never a second launch of the same one."""

    assignment: str
    fence: int

    @property
    def name(self) -> str:
        """The launch's name in folders and containers, `lm-{assignment}-{fence}`."""
        return f"lm-{self.assignment}-{self.fence}"

    @classmethod
    def parse(cls, name: str) -> RunId | None:
        """The launch of that name, or None if it is not one of ours."""
        assignment, _, fence = name.removeprefix("lm-").rpartition("-")
        if not name.startswith("lm-") or not fence.isdigit() or not is_safe_id(assignment):
            return None
        return cls(assignment, int(fence))


def is_safe_id(text: str) -> bool:
    """Whether an id may become a part of a file's name."""
    return bool(_SAFE_ID.fullmatch(text))


class StopBy(StrEnum):
    """Why a run is stopped."""

    PREEMPT = "preempt"
    CANCEL = "cancel"
    LEASE = "lease"
    OOM = "oom"
    GPU_MEMORY = "gpu_memory"
    SIGNAL = "signal"


@dataclass(frozen=True, slots=True)
class StopOrder:
    """PREEMPT asks by the term file, with SIGTERM after half the grace; others are SIGTERM at once.
    SIGKILL ends the grace.
    """

    by: StopBy
    grace_s: float


@dataclass(frozen=True, slots=True)
class Term:
    """A placement's intended end, if any: `until_s` by the server's clock (Unix seconds), `ends_s`
    by this machine's boot clock.
    """

    until_s: float | None = None
    ends_s: float | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything a runtime needs for one launch: the specification and what the node adds to it.

    `gpus` are the uuids of those devices that are hardware, `checkpoints` the folder the node's
    jobs share. `environment` is the contract with the training library and the node's variables;
    the specification's own values come on top of the node's, never over the contract's. `grace_s`
    counts at the lease's end.
    """

    run: RunId
    spec: LaunchSpec
    environment: dict[str, str]
    grace_s: float
    boot_id: str
    gpus: tuple[str, ...] = ()
    checkpoints: Path | None = None
    term: Term = Term()


@dataclass(frozen=True, slots=True)
class Exit:
    """How a run ended. `exit_code` is negative for a signal; `started` False: no process of the job
    ever ran.

    `blame` is who is at fault when nothing was started, where the runtime knows better than the
    outcome's rules.
    """

    ended_at_s: float
    started: bool = True
    exit_code: int | None = None
    stopped_by: StopBy | None = None
    killed: bool = False
    oom: bool = False
    error: str = ""
    blame: ReasonClass | None = None


class RunState(StrEnum):
    """What a runtime knows of a launch."""

    ABSENT = "absent"
    PREPARING = "preparing"
    PREPARED = "prepared"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A launch's state; `exit` when it has ended; `lease_until_s` on the boot clock as the run
    itself knows it.

    `prepared_fraction` says how far a PREPARING one is, `image_digest` which image a PREPARED one
    is going to use.
    """

    state: RunState
    exit: Exit | None = None
    lease_until_s: float | None = None
    prepared_fraction: float = 0.0
    image_digest: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a launch's processes use now: cores (since the last reading) and memory."""

    cores: float
    memory_gb: float


class Runtime(Protocol):
    """A way of running jobs. Calls never wait for the job; every call may be repeated.

    Attributes:
        name: "process" or "docker".
        limits_memory: jobs cannot use more memory than they asked for; else the agent watches them
        and stops those that do.
    """

    name: str
    limits_memory: bool

    def environment(self) -> dict[str, str]:
        """The variables every job gets from the node, below all others."""
        ...

    def address(self, own: str) -> str:
        """Where other nodes reach what a launch listens on (see `SessionRequest.address`), on a
        machine with the address `own`.
        """
        ...

    def objection(self, launch: Launch) -> tuple[ReasonClass, str] | None:
        """Why this runtime must not do what the launch asks for, whatever happens on the machine;
        or None.
        """
        ...

    def trouble(self) -> str:
        """What keeps this runtime from taking new work now, or empty."""
        ...

    def prepare(self, launch: Launch) -> None:
        """Make ready all that a start needs, or begin to (`poll` then says PREPARING); LaunchError
        when the machine cannot.
        """
        ...

    def start(self, run: RunId, lease_until_s: float) -> None:
        """Start a prepared run once, under a lease until then (boot clock). A second start of the
        same launch does nothing.
        """
        ...

    def renew(self, run: RunId, lease_until_s: float) -> None:
        """Let the run go on until then (boot clock)."""
        ...

    def update(self, run: RunId, term: Term) -> None:
        """Tell the run its new term."""
        ...

    def set_pace(self, run: RunId, step_s: float) -> None:
        """Tell the run the step time of its emulated devices from now on: who shares them has
        changed.
        """
        ...

    def stop(self, run: RunId, order: StopOrder) -> None:
        """Order the run to end; `poll` says when it has."""
        ...

    def poll(self, run: RunId) -> RunStatus:
        """What the launch does now. One that was meant to start and can no longer do so has ENDED,
        never started.
        """
        ...

    def list(self) -> tuple[RunId, ...]:
        """Every launch this runtime has anything of, in whatever state: what a restarted agent may
        adopt.
        """
        ...

    def abandon(self, run: RunId) -> RunStatus:
        """Settle a launch that may or may not have been started: as `poll`, but one that was not
        started never will be.
        """
        ...

    def spec(self, run: RunId) -> LaunchSpec | None:
        """The specification a launch was prepared with, secrets included, or None once it is
        gone.
        """
        ...

    def read(self, run: RunId, stream: str, offset: int, limit: int) -> bytes:
        """At most `limit` bytes of a stream (stdout, stderr, progress) from an offset; empty at its
        end.
        """
        ...

    def size(self, run: RunId, stream: str) -> int:
        """The bytes of a stream so far."""
        ...

    def note(self, run: RunId, text: str | None) -> str:
        """Keep a small note with the launch (how far its logs are shipped) and return the kept one;
        None only reads.
        """
        ...

    def started_at_s(self, run: RunId) -> float | None:
        """When `start` was first called (Unix seconds, by this machine's clock), or None where that
        is not known.
        """
        ...

    def usage(self, run: RunId, *, exact: bool = False) -> Usage | None:
        """What the run's processes use, or None when nothing runs; `exact` counts shared memory
        once, and takes longer.
        """
        ...

    def remove(self, run: RunId) -> None:
        """Forget an ended launch and all it left; one that is still being prepared is called
        off.
        """
        ...

    def close(self) -> None:
        """Let go of what the runtime holds in this process; jobs go on."""
        ...
