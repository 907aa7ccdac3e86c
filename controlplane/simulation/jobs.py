"""A simulated job and its launches. Steps are whole: what a launch has done of its next step when it is stopped is lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import floor, inf

from policies.snapshot import JobView, RankSeat

ROUNDING = 1e-6


@dataclass(slots=True)
class Launch:
    """A stay of a job on its devices: from `start_s` to `end_s`, from `start_steps` to `end_steps`."""

    job: str
    ranks: tuple[RankSeat, ...]
    start_s: float
    start_steps: int
    first_step_s: float
    steps_per_s: float
    until_s: float | None = None
    steps_quota: int | None = None
    stop_wanted_s: float | None = None
    end_s: float = inf
    end_steps: int | None = None

    @property
    def goes_on(self) -> bool:
        """Whether nobody has asked for its stop."""
        return self.stop_wanted_s is None and self.end_s == inf

    def steps_at(self, at_s: float) -> int:
        """Whole steps of the job done at that time; none are done after a stop is asked for."""
        if self.end_steps is not None:
            return self.end_steps
        working_s = min(at_s, self.stop_wanted_s if self.stop_wanted_s is not None else inf) - self.first_step_s
        return self.start_steps + max(0, floor(working_s * self.steps_per_s + ROUNDING))


@dataclass(slots=True)
class SimulatedJob:
    """A job: as submitted, with the steps it has behind it and the launch that holds devices for it."""

    view: JobView
    steps_done: int = 0
    launch: Launch | None = None
    completed_s: float | None = None
    launches: list[Launch] = field(default_factory=list)
    preemptions: int = 0
    migrations: int = 0

    @property
    def total_steps(self) -> int:
        """Steps of the whole job."""
        return round(self.view.total_steps or self.view.remaining_steps)

    @property
    def tardiness_s(self) -> float:
        """max(0, completion - due); of a job that is not completed, inf if it has a due date."""
        end_s = inf if self.completed_s is None else self.completed_s
        return 0.0 if self.view.due_s == inf else max(0.0, end_s - self.view.due_s)
