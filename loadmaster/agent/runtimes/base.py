"""Interface between the agent and its runtimes."""

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


class QuotaError(Exception):
    """A run cannot be limited to so many cores; the message says why."""


@dataclass(frozen=True, slots=True, order=True)
class RunId:
    """Id of a launch: an assignment and its fence. No id is launched twice."""

    assignment: str
    fence: int

    @property
    def name(self) -> str:
        """Name of the launch's folder and container, `lm-{assignment}-{fence}`."""
        return f"lm-{self.assignment}-{self.fence}"

    @classmethod
    def parse(cls, name: str) -> RunId | None:
        """Return the launch with this name; None if it is not the name of a launch."""
        assignment, _, fence = name.removeprefix("lm-").rpartition("-")
        if not name.startswith("lm-") or not fence.isdigit() or not is_safe_id(assignment):
            return None
        return cls(assignment, int(fence))


def is_safe_id(text: str) -> bool:
    """Return True if an id may be used as a part of a file's name."""
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
    """Order to stop a run: SIGTERM, and SIGKILL after `grace_s`.

    A job that is pre-empted learns of it from its term file first, and gets SIGTERM after half of
    the grace.
    """

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

    `to`: `first` (its first process), `steps` (those that a script started by `srun`), or `all`.
    """

    number: int
    before_s: float
    to: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a run: seconds after its start, and a time on the boot clock; None: no limit."""

    walltime_s: float | None = None
    deadline_s: float | None = None
    signal: Warned | None = None


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Launch:
    """Specification of a launch, with the node's own settings for it.

    `environment`: the job's variables. `gpus`: uuids of its hardware devices; `gpu_files`: their
    files below /dev. `gpu_numbers`: positions of all its devices, emulated ones too, in the node's
    list. `grace_s`: seconds to stop after the lease's end. `checkpoints`: folder of the
    checkpoints of all jobs.
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
    """End of a run.

    `ended_at_s`: Unix seconds. `started`: a process of the job has run. `exit_code`: negative for a
    signal. `killed`: by the guard, or with it. `oom`: by the kernel, for memory. `blame`: class of
    the reason, if the runtime knows it.
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
    """Use of a run's processes: mean cores since the last reading, and memory now.

    `most_memory_gb`: an upper bound; an exact count, which takes longer, gives no more than that.
    `throttled_cores`: mean cores since the last reading that the run's quota withheld from it.
    """

    cores: float
    memory_gb: float
    most_memory_gb: float = 0.0
    throttled_cores: float = 0.0


class Runtime(Protocol):
    """Way of running jobs. Calls never wait for the job; every call may be repeated.

    `features`: the node's features that this runtime adds, besides its name.
    """

    name: str
    features: tuple[str, ...] = ()

    def limits_memory(self, run: RunId) -> bool:
        """Return True if the kernel keeps a run within the memory that it asked for.

        The agent stops other runs that use more.
        """
        return False

    def environment(self) -> dict[str, str]:
        """Return the variables that every job gets from the node; all others replace them."""
        return {}

    def address(self, own: str) -> str:
        """Return the address of a launch for other nodes; `own`: the machine's address."""
        return own

    def objection(self, launch: Launch) -> tuple[ReasonClass, str] | None:
        """Return why this runtime cannot run a launch, with the reason's class, or None."""
        return None

    def trouble(self) -> str:
        """Return why this runtime takes no new work now; "" if it does."""
        return ""

    def prepare(self, launch: Launch) -> None:
        """Prepare a start, or begin to do so: then `poll` returns PREPARING. Raises LaunchError."""

    def start(self, run: RunId, lease_until_s: float) -> None:
        """Start a prepared run with a lease (boot clock), once. Raises LaunchError."""

    def renew(self, run: RunId, lease_until_s: float) -> None:
        """Prolong the run's lease (boot clock)."""

    def update(self, run: RunId, term: Term) -> None:
        """Tell the run its new term."""

    def set_pace(self, run: RunId, step_s: float) -> None:
        """Tell the run the new step time of its emulated devices."""

    def stop(self, run: RunId, order: StopOrder) -> None:
        """Order the run to end; `poll` tells when it has."""

    def poll(self, run: RunId) -> RunStatus:
        """Return the state of a launch; one that can no longer start has ENDED, not started."""

    def list(self) -> tuple[RunId, ...]:
        """Return all launches that have a folder or container here, for a new agent to adopt."""

    def tell_ends(self, wake: Callable[[], None]) -> None:
        """Call `wake`, in any thread, when a run has ended; a runtime that cannot is polled."""
        return

    def abandon(self, run: RunId) -> RunStatus:
        """Prevent the start of a launch that has not started, then return its state."""

    def spec(self, run: RunId) -> LaunchSpec | None:
        """Return the launch's specification with its secrets; None if it is gone."""

    def read(self, run: RunId, stream: str, offset: int, limit: int) -> bytes:
        """Return up to `limit` bytes of a stream from an offset; none at its end."""

    def size(self, run: RunId, stream: str) -> int:
        """Return the number of bytes of a stream so far."""

    def write_note(self, run: RunId, text: str) -> None:
        """Keep a short text with the launch, in place of the one before."""

    def read_note(self, run: RunId) -> str:
        """Return the text that is kept with the launch; "" if there is none."""

    def started_at_s(self, run: RunId) -> float | None:
        """Return the time of the first `start` (Unix seconds, this machine's clock), or None."""
        return None

    def usage(self, run: RunId, *, exact: bool = False) -> Usage | None:
        """Return the use of the run's processes, None if it has none.

        `exact`: memory that processes share counts once.
        """

    def quota(self, run: RunId) -> float | None:
        """Return the cores to which the kernel limits a run, as last read from it.

        None: no limit, or the run's limit is not known.
        """
        return None

    def set_quota(self, run: RunId, cores: float) -> None:
        """Limit a run to so many cores from now on; `quota` tells once that holds.

        Raises QuotaError.
        """
        raise QuotaError("the runtime of this node changes no quotas")

    def remove(self, run: RunId) -> None:
        """Remove an ended launch and its files; cancels a preparation."""

    def close(self) -> None:
        """End the runtime's threads and connections; jobs go on."""
        return
