"""Restarts of kinds: their cost, and the work that a stop would lose.

A restart costs the time from the request to stop until the devices are free, and from the launch to
the first step. A stop loses the work since the launch's last checkpoint, and nothing if the last
stopped job of the kind had saved its state.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, Self

from jobs.models import Assignment, Kind
from loadmaster.protocol import AssignmentState, StopReason
from profiling.speeds import ALPHA, smoothed

LEAST_LEFT = 0.1
"""Fraction of the steps that counts as left at least, in a run without reports."""


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
    """Restart of a kind, in seconds.

    `cost_s`: without lost work. `launch_s`: part of `cost_s` after the stop. `saves`: True if its
    jobs save their state when they are stopped; None if none was stopped yet.
    """

    cost_s: float
    launch_s: float
    saves: bool | None = None
    reports_steps: bool = True

    @classmethod
    def of(cls, kind: Kind, usual_s: float) -> Self:
        """Return the measured restart of a kind; `usual_s`: cost if it was never stopped."""
        stop_s = 0.0
        launch_s = usual_s
        if kind.stop_s is not None:
            stop_s = kind.stop_s
            launch_s = kind.setup_s or 0.0
        return cls(
            cost_s=launch_s + stop_s,
            launch_s=launch_s,
            saves=kind.saves_at_stop,
            reports_steps=kind.reports_steps is not False,
        )

    def lost_s(self, launch: Progress, now_s: float) -> float:
        """Return the seconds of work that a stop of this launch would lose now."""
        return 0.0 if self.saves else unsaved_s(launch, now_s)

    def silent_steps(self, launch: Progress, total_steps: int, now_s: float) -> int:
        """Return the steps of a launch without reports, by its run time and predicted speed.

        It is 0 for a kind that reports steps.
        """
        speed = launch.predicted_steps_per_s
        if self.reports_steps or speed is None:
            return 0
        most_steps = total_steps * (1.0 - LEAST_LEFT)
        return int(min(most_steps, _ran_s(launch, now_s) * speed))


def unsaved_s(launch: Progress, now_s: float) -> float:
    """Return the part of a launch's run time since its last checkpoint, by steps, in seconds.

    Without reported steps it is the whole run time.
    """
    steps = launch.steps_done - launch.start_steps
    unsaved_steps = launch.steps_done - max(launch.checkpoint_steps, launch.start_steps)
    unsaved = 1.0
    if steps > 0:
        unsaved = min(1.0, max(0, unsaved_steps) / steps)
    return _ran_s(launch, now_s) * unsaved


def is_stopped(assignment: Assignment) -> bool:
    """Return True for a launch that ran and was pre-empted at the server's request."""
    was_asked = assignment.desired == StopReason.PREEMPT and assignment.desired_at is not None
    is_preempted = assignment.state == AssignmentState.PREEMPTED
    return is_preempted and was_asked and assignment.running_at is not None


def learn_stop(kind: Kind, assignment: Assignment) -> None:
    """Learn time and loss of a stop (`is_stopped`) for a locked kind.

    A launch without a step shows nothing about checkpoints, unless its kind reports no steps.
    """
    requested_at = assignment.desired_at
    ended = assignment.ended_at
    if requested_at is None or ended is None or ended < requested_at:
        return  # the clock was set back meanwhile
    kind.stop_s = smoothed(kind.stop_s, (ended - requested_at).total_seconds(), ALPHA)
    if assignment.steps_done > assignment.start_steps or kind.reports_steps is False:
        lost_s = unsaved_s(assignment, ended.timestamp())
        kind.lost_s = smoothed(kind.lost_s, lost_s, ALPHA)
        kind.saves_at_stop = lost_s == 0.0
    kind.save(update_fields=["stop_s", "lost_s", "saves_at_stop"])


def _ran_s(launch: Progress, now_s: float) -> float:
    """Return the run time of a launch until now; 0 before it runs."""
    if launch.running_at is None:
        return 0.0
    return max(0.0, now_s - launch.running_at.timestamp())
