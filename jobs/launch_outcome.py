"""Outcome of a launch: the ends of its ranks become one move of the job. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.assignment_lifecycle import USES_RETRY
from jobs.lifecycle import JobMove
from loadmaster.protocol import AssignmentState, ReasonClass

S = AssignmentState

FRUITLESS_LAUNCHES = 5
"""Launches in a row that may begin and fail by a machine's fault without progress."""

IMAGE_NODES = 3
"""Nodes that may fail to pull a job's image before the image is blamed."""

LONGEST_BACKOFF_S = 300.0


@dataclass(frozen=True, slots=True)
class End:
    """End of a rank; `exit_code` is None without a process. `began`: one of it ran."""

    state: AssignmentState
    reason_class: str = ""
    reason: str = ""
    exit_code: int | None = None
    cancelled: bool = False
    began: bool = True
    memory_gb: float | None = None

    @property
    def own_fault(self) -> bool:
        """Return True if the job itself is to blame, which uses up a retry."""
        return self.state in (S.FAILED, S.REJECTED) and self.reason_class in USES_RETRY

    @property
    def fell(self) -> bool:
        """True if it ended only because another rank of its gang did."""
        return self.state is S.FAILED and self.reason_class == ReasonClass.GANG

    @property
    def over_limit(self) -> bool:
        """Return True if its walltime or its deadline was over: another try would end alike."""
        return self.state is S.FAILED and self.reason_class == ReasonClass.LIMIT

    @property
    def trouble(self) -> bool:
        """Return True if a machine, an image or the network is to blame."""
        if self.state is S.PREEMPTED:
            return self.reason_class == ReasonClass.NODE
        return self.state is S.LOST or (
            self.state in (S.FAILED, S.REJECTED)
            and not (self.own_fault or self.fell or self.over_limit)
        )

    @property
    def unprepared(self) -> bool:
        """Return True if an agent could not start it, for want of room or a feature of its own."""
        refused = self.state in (S.FAILED, S.REJECTED) and not self.began
        return refused and self.trouble and self.reason_class != ReasonClass.IMAGE

    def words(self) -> str:
        told = self.exit_code is None or f"exit code {self.exit_code}" in self.reason
        code = "" if told else f" with exit code {self.exit_code}"
        kind = f" ({self.reason_class})" if self.reason_class else ""
        said = f"{self.state}{code}{kind}" + (f": {self.reason}" if self.reason else "")
        if self.reason_class != ReasonClass.OOM or self.memory_gb is None:
            return said
        return (
            f"{said}; it asked for {self.memory_gb:g} GB of memory; raise memory_gb, or make the"
            " job use less"
        )


@dataclass(frozen=True, slots=True)
class EndOutcome:
    """Move of the job and its reason; a requeued job backs off `units` of time first."""

    move: JobMove
    reason_class: str = ""
    reason: str = ""
    units: int = 0

    def backoff_s(self, unit_s: float) -> float:
        """Seconds before the next try; a unit lasts `unit_s`."""
        return min(LONGEST_BACKOFF_S, self.units * unit_s)


@dataclass(frozen=True, slots=True)
class Past:
    """Earlier launches: retries, failures in a row with this one, nodes without the image.

    Failures in a row are `fruitless`, or `unprepared`, which fail no job.
    """

    retries_used: int = 0
    retries_left: int = 0
    fruitless: int = 1
    unprepared: int = 0
    without_image: tuple[str, ...] = ()


def end_outcome(
    ends: Sequence[End], past: Past, *, cancelling: bool, work_done: bool
) -> EndOutcome:
    """Return the move of a job after all ranks ended; trouble on one excuses crashes of others."""
    complete = work_done and all(end.state is S.SUCCEEDED for end in ends)
    if cancelling:
        return EndOutcome(JobMove.COMPLETE if complete else JobMove.CANCELLED)
    if complete:
        return EndOutcome(JobMove.COMPLETE)
    if any(end.cancelled and end.state is S.CANCELLED for end in ends):
        return EndOutcome(JobMove.CANCEL)
    if over := [end for end in ends if end.over_limit]:
        return EndOutcome(JobMove.FAIL, over[0].reason_class, over[0].words())
    if trouble := trouble_of(ends):
        return _after_trouble(trouble, past)
    if faults := [end for end in ends if end.own_fault]:
        if past.retries_left <= 0:
            return EndOutcome(JobMove.FAIL, faults[0].reason_class, faults[0].words())
        return EndOutcome(
            JobMove.RETRY, faults[0].reason_class, faults[0].words(), 2**past.retries_used
        )
    return EndOutcome(JobMove.STOPPED)


def trouble_of(ends: Sequence[End]) -> End | None:
    """Return the first end that a machine, an image or the network caused; those unprepared last.

    Ranks that all report each other lost were cut off from each other: these are the trouble.
    """
    fallen = [end for end in ends if end.fell]
    blamed = [end for end in ends if end.state is not S.SUCCEEDED and not end.fell]
    troubles = [end for end in blamed if end.trouble] if blamed else fallen
    return min(troubles, key=lambda end: end.unprepared, default=None)


def _after_trouble(end: End, past: Past) -> EndOutcome:
    no_image = end.reason_class == ReasonClass.IMAGE
    too_many = past.fruitless >= FRUITLESS_LAUNCHES
    if end.unprepared or not (too_many or (no_image and len(past.without_image) >= IMAGE_NODES)):
        times = past.fruitless + past.unprepared - (not no_image)
        return EndOutcome(
            JobMove.STOPPED, end.reason_class, end.words(), 2 ** (times - 1) if times > 0 else 0
        )
    return EndOutcome(JobMove.FAIL, end.reason_class, _given_up(end, past))


def _given_up(end: End, past: Past) -> str:
    if end.reason_class != ReasonClass.IMAGE:
        return (
            f"{past.fruitless} launches in a row ended without progress and without a fault of the"
            f" job; the last one: {end.words()}"
        )
    where = f" on {', '.join(past.without_image)}" if past.without_image else ""
    return (
        f"its image could not be pulled in {past.fruitless} tries{where}:"
        f" {end.reason or 'no reason given'}; check the image's name and that the nodes may pull it"
        " from its registry, then requeue the job"
    )
