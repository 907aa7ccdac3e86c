"""What a launch's end means for its job. Pure: ends of all ranks in, one move out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusters.lifecycle import USES_RETRY
from jobs.lifecycle import JobMove
from loadmaster.protocol import AssignmentState, ReasonClass

S = AssignmentState

FRUITLESS_LAUNCHES = 5
"""So many launches in a row may end by a machine's fault without progress; then the job fails, so that nothing spins forever."""


@dataclass(frozen=True, slots=True)
class End:
    """How one rank ended. `exit_code` is None where no process was; `cancelled` whether its stop was wished as a cancellation."""

    state: AssignmentState
    reason_class: str = ""
    reason: str = ""
    exit_code: int | None = None
    cancelled: bool = False

    @property
    def own_fault(self) -> bool:
        """Whether the job itself is to blame: such ends use up its retries."""
        return self.state in (S.FAILED, S.REJECTED) and self.reason_class in USES_RETRY

    @property
    def trouble(self) -> bool:
        """Whether a machine, an image or the network is to blame."""
        if self.state is S.PREEMPTED:
            return self.reason_class == ReasonClass.NODE
        return self.state is S.LOST or (self.state in (S.FAILED, S.REJECTED) and not self.own_fault)

    def words(self) -> str:
        """The end as people read it."""
        told = self.exit_code is None or f"exit code {self.exit_code}" in self.reason
        code = "" if told else f" with exit code {self.exit_code}"
        kind = f" ({self.reason_class})" if self.reason_class else ""
        return f"{self.state}{code}{kind}" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The job's move, with the reason an attempt or job that fails is remembered by."""

    move: JobMove
    reason_class: str = ""
    reason: str = ""


def judge(ends: Sequence[End], *, cancelling: bool, work_done: bool, retries_left: int, fruitless: int) -> Verdict:
    """The move of a job whose launch is over on all ranks.

    `work_done` is whether a launch that succeeded has done all of the job, `fruitless` how many launches in a row, with
    this one, ended in trouble without a step of progress. Trouble on one rank excuses the crash of another: gangs fall together.
    """
    complete = work_done and all(end.state is S.SUCCEEDED for end in ends)
    if cancelling:
        return Verdict(JobMove.COMPLETE if complete else JobMove.CANCELLED)
    if complete:
        return Verdict(JobMove.COMPLETE)
    if any(end.cancelled and end.state is S.CANCELLED for end in ends):
        return Verdict(JobMove.CANCEL)
    if troubles := [end for end in ends if end.trouble]:
        return _after_trouble(troubles[0], fruitless)
    if faults := [end for end in ends if end.own_fault]:
        move = JobMove.RETRY if retries_left > 0 else JobMove.FAIL
        return Verdict(move, faults[0].reason_class, faults[0].words())
    return Verdict(JobMove.STOPPED)


def _after_trouble(end: End, fruitless: int) -> Verdict:
    if fruitless < FRUITLESS_LAUNCHES:
        return Verdict(JobMove.STOPPED, end.reason_class, end.words())
    text = f"{fruitless} launches in a row ended without progress and not by the job's own fault; the last one: {end.words()}"
    return Verdict(JobMove.FAIL, end.reason_class, text)
