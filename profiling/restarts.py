"""Restarts of kinds: their cost, and the work that a stop would lose.

A restart costs the time from the request to stop until the devices are free, and from the launch to
the first step. A stop loses the part of the launch since its last checkpoint; nothing if jobs of
the kind have been seen to save their state when they are stopped.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, Self

from jobs.models import Assignment, Kind
from loadmaster.protocol import AssignmentState, StopReason
from profiling.speeds import ALPHA, smoothed

LEAST_LEFT = 0.1
"""Least fraction of a run without reports that is still to come: it takes longer than expected."""


class Progress(Protocol):
    """Progress of a launch, as an assignment has it."""

    @property
    def start_steps(self) -> int: ...
    @property
    def steps_done(self) -> int: ...
    @property
    def checkpoint_steps(self) -> int: ...
    @property
    def running_at(self) -> datetime | None: ...
    @property
    def predicted_steps_per_s(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Restart:
    """Restart of a kind: `cost_s` is without lost work; `saves` None: never seen to stop.

    `launch_s` is the part of `cost_s` after the stop.
    """

    cost_s: float
    launch_s: float
    saves: bool | None = None
    reports_steps: bool = True

    @classmethod
    def of(cls, kind: Kind, usual_s: float) -> Self:
        """Restart as measured; of a kind that was never stopped, the usual cost."""
        launch_s = usual_s if kind.stop_s is None else kind.setup_s or 0.0
        return cls(
            launch_s + (kind.stop_s or 0.0),
            launch_s,
            kind.saves_at_stop,
            kind.reports_steps is not False,
        )

    def lost_s(self, launch: Progress, now_s: float) -> float:
        """Seconds of work that a stop of this launch would lose now."""
        return 0.0 if self.saves else unsaved_s(launch, now_s)

    def silent_steps(self, launch: Progress, total_steps: int, now_s: float) -> int:
        """Steps that a launch without reports has done, by its time and its expected speed."""
        speed = launch.predicted_steps_per_s
        if self.reports_steps or speed is None:
            return 0
        most = total_steps * (1.0 - LEAST_LEFT)
        return int(min(most, _ran_s(launch, now_s) * speed))


def unsaved_s(launch: Progress, now_s: float) -> float:
    """Seconds since the launch's last checkpoint, by steps; its whole run without reports."""
    done = launch.steps_done - launch.start_steps
    unsaved = launch.steps_done - max(launch.checkpoint_steps, launch.start_steps)
    part = min(1.0, max(0, unsaved) / done) if done > 0 else 1.0
    return _ran_s(launch, now_s) * part


def is_stopped(assignment: Assignment) -> bool:
    """Return True for a launch that ran and was pre-empted at the server's request."""
    preempted = assignment.state == AssignmentState.PREEMPTED
    return preempted and assignment.running_at is not None and _was_asked(assignment)


def learn_stop(kind: Kind, assignment: Assignment) -> None:
    """Learn time and loss of a stop (`is_stopped`) for a locked kind.

    A launch without a step says nothing of checkpoints, unless its kind reports none.
    """
    asked, ended = assignment.desired_at, assignment.ended_at
    if asked is None or ended is None or ended < asked:
        return  # the clock was set back meanwhile
    kind.stop_s = smoothed(kind.stop_s, (ended - asked).total_seconds(), ALPHA)
    if assignment.steps_done > assignment.start_steps or kind.reports_steps is False:
        lost_s = unsaved_s(assignment, ended.timestamp())
        kind.lost_s = smoothed(kind.lost_s, lost_s, ALPHA)
        kind.saves_at_stop = lost_s == 0.0
    kind.save(update_fields=["stop_s", "lost_s", "saves_at_stop"])


def _was_asked(assignment: Assignment) -> bool:
    return assignment.desired == StopReason.PREEMPT and assignment.desired_at is not None


def _ran_s(launch: Progress, now_s: float) -> float:
    return max(0.0, now_s - launch.running_at.timestamp()) if launch.running_at else 0.0
