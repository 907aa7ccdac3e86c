"""The interface between agent and runtimes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from loadmaster.protocol import LaunchSpec, ReasonClass

GB = 1e9
STREAMS = ("stdout", "stderr")
PROGRESS = "progress"
"""The stream of progress lines (JSON), read like a log."""

_SAFE_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class LaunchError(Exception):
    """The runtime cannot do this on this machine (space, rights); nothing was started."""


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
    """Return True if an id may become a part of a file's name."""
    return bool(_SAFE_ID.fullmatch(text))


class StopBy(StrEnum):
    """Author of a stop."""

    PREEMPT = "preempt"
    CANCEL = "cancel"
    LEASE = "lease"
    OOM = "oom"
    GPU_MEMORY = "gpu_memory"
    SIGNAL = "signal"
    WALLTIME = "walltime"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class StopOrder:
    """PREEMPT: term file, SIGTERM after half the grace; others: SIGTERM. Then SIGKILL."""

    by: StopBy
    grace_s: float


@dataclass(frozen=True, slots=True)
class Term:
    """A placement's end: `until_s` by the server's clock, `ends_s` by the boot clock."""

    until_s: float | None = None
    ends_s: float | None = None


@dataclass(frozen=True, slots=True)
class Warned:
    """Signal that a run gets `before_s` before its end.

    `to` is its `first` process, its `steps` (what a script starts by `srun`), or `all` of it.
    """

    number: int
    before_s: float
    to: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Ends of a run: seconds after its start, and a moment on the boot clock; None: no end."""

    walltime_s: float | None = None
    deadline_s: float | None = None
    signal: Warned | None = None


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Launch:
    """The specification of one launch and what the node adds to it.

    `environment` is the contract with the training library over the job's values over the node's.
    `gpus` are the uuids of hardware devices, `gpu_files` theirs below /dev; `gpu_numbers` are the
    places of all its devices among the node's. `grace_s` counts at the lease's end.
    """

    run: RunId
    spec: LaunchSpec
    environment: dict[str, str]
    grace_s: float
    boot_id: str
    gpus: tuple[str, ...] = ()
    gpu_files: tuple[str, ...] = ()
    gpu_numbers: tuple[int, ...] = ()
    checkpoints: Path | None = None
    term: Term = Term()
    limits: Limits = NO_LIMITS


@dataclass(frozen=True, slots=True)
class Exit:
    """End of a run; `exit_code` is negative for a signal, `blame` the runtime's word on fault.

    `started` is False if no process of the job ever ran.
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
    """State of a launch as its runtime sees it."""

    ABSENT = "absent"
    PREPARING = "preparing"
    PREPARED = "prepared"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class RunStatus:
    """State of a launch; `lease_until_s` on the boot clock as the run itself knows it."""

    state: RunState
    exit: Exit | None = None
    lease_until_s: float | None = None
    prepared_fraction: float = 0.0
    image_digest: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Current use of a launch's processes: cores (since the last reading) and memory.

    An exact count may be called for where `most_memory_gb` is too much: it is never less than that.
    """

    cores: float
    memory_gb: float
    most_memory_gb: float = 0.0


class Runtime(Protocol):
    """A way of running jobs. Calls never wait for the job; every call may be repeated.

    Unless it `limits_memory`, the agent stops jobs that use more memory than they asked for.
    `features` are those of the node that come from this runtime, besides its name.
    """

    name: str
    limits_memory: bool
    features: tuple[str, ...] = ()

    def environment(self) -> dict[str, str]:
        """The variables every job gets from the node, below all others."""
        return {}

    def address(self, own: str) -> str:
        """Address of a launch for other nodes, on a machine with address `own`."""
        return own

    def objection(self, launch: Launch) -> tuple[ReasonClass, str] | None:
        """Reason why this runtime must refuse the launch, or None."""
        return None

    def trouble(self) -> str:
        """Reason why this runtime takes no new work now, or empty."""
        return ""

    def prepare(self, launch: Launch) -> None:
        """Prepare a start, or begin to (`poll` says PREPARING); LaunchError if impossible."""

    def start(self, run: RunId, lease_until_s: float) -> None:
        """Start a prepared run under a lease until then (boot clock). Idempotent."""

    def renew(self, run: RunId, lease_until_s: float) -> None:
        """Let the run go on until then (boot clock)."""

    def update(self, run: RunId, term: Term) -> None:
        """Tell the run its new term."""

    def set_pace(self, run: RunId, step_s: float) -> None:
        """Tell the run the new step time of its emulated devices."""

    def stop(self, run: RunId, order: StopOrder) -> None:
        """Order the run to end; `poll` says when it has."""

    def poll(self, run: RunId) -> RunStatus:
        """State of the launch; one that can no longer start has ENDED, never started."""

    def list(self) -> tuple[RunId, ...]:
        """Every launch of which this runtime has anything, for a restarted agent to adopt."""

    def tell_ends(self, wake: Callable[[], None]) -> None:
        """Call `wake`, in any thread, when a run has ended; a runtime that cannot is polled."""
        return

    def abandon(self, run: RunId) -> RunStatus:
        """Settle a launch: as `poll`, but one not started never will be."""

    def spec(self, run: RunId) -> LaunchSpec | None:
        """The launch's specification with secrets, or None once it is gone."""

    def read(self, run: RunId, stream: str, offset: int, limit: int) -> bytes:
        """Up to `limit` bytes of stdout, stderr or progress from an offset; empty at the end."""

    def size(self, run: RunId, stream: str) -> int:
        """The bytes of a stream so far."""

    def note(self, run: RunId, text: str | None) -> str:
        """Store a small note with the launch and return it; None only reads."""

    def started_at_s(self, run: RunId) -> float | None:
        """Time of the first `start` (Unix seconds, this machine's clock), or None."""
        return None

    def usage(self, run: RunId, *, exact: bool = False) -> Usage | None:
        """Use of the run's processes, None without; `exact` counts shared memory once."""

    def remove(self, run: RunId) -> None:
        """Remove an ended launch and its files; cancels a preparation."""

    def close(self) -> None:
        """Release what the runtime holds in this process; jobs go on."""
        return
