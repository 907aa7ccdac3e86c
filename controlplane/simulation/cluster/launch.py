"""Launch of a simulated job: its devices, its speed, and the steps that it has done."""

from dataclasses import dataclass
from math import floor, inf

from policies.contract.snapshot import RankPlacement, Running

ROUNDING = 1e-6
"""Part of a step that may be missing from a whole one, because times are rounded."""


@dataclass(frozen=True, slots=True)
class SpeedChange:
    """Last change of a launch's speed.

    `first_step_s`: time of the launch's first step; `changed_s`: time of the change;
    `saved_steps`: steps of the last checkpoint before it.
    """

    first_step_s: float
    changed_s: float
    saved_steps: int


@dataclass(slots=True)
class Launch:
    """Stay of a job on its devices: `start_s` to `end_s`, `start_steps` to `end_steps`.

    `row` is the job's in its workload, `number` the launch's in the journal. After a change of
    speed `first_step_s` is the time from which `steps_per_s` would have led to the present steps;
    `speed_change` has the true one. `ends_s`, `breaks_s`: expected end and failure.
    """

    job: str
    ranks: tuple[RankPlacement, ...]
    start_s: float
    start_steps: int
    first_step_s: float
    steps_per_s: float
    until_s: float | None = None
    steps_quota: int | None = None
    stop_wanted_s: float | None = None
    end_s: float = inf
    end_steps: int | None = None
    row: int = -1
    number: int = -1
    ends_s: float = inf
    breaks_s: float = inf
    speed_change: SpeedChange | None = None

    @property
    def goes_on(self) -> bool:
        """Return True if no stop was requested."""
        return self.stop_wanted_s is None and self.end_s == inf

    @property
    def is_over(self) -> bool:
        """Return True if the launch has given up its devices."""
        return self.end_s < inf

    @property
    def gpus(self) -> float:
        """Devices held over all ranks, a shared one by its share."""
        ranks = self.ranks
        if len(ranks) == 1:
            return len(ranks[0].devices) * ranks[0].share
        return sum(len(seat.devices) * seat.share for seat in ranks)

    @property
    def began_s(self) -> float:
        """Time of the launch's first step."""
        if self.speed_change is None:
            return self.first_step_s
        return self.speed_change.first_step_s

    def steps_at(self, at_s: float) -> int:
        """Return the whole steps of the job done at that time; none follow a requested stop."""
        if self.end_steps is not None:
            return self.end_steps
        if self.stop_wanted_s is not None:
            at_s = min(at_s, self.stop_wanted_s)
        working_s = at_s - self.first_step_s
        return self.start_steps + max(0, floor(working_s * self.steps_per_s + ROUNDING))

    def saved_at(self, at_s: float, every_s: float) -> int:
        """Return the steps of the last checkpoint before that time.

        There is one at the start, and one per `every_s` seconds of work (0: none).
        """
        working_s = at_s - self.began_s
        if every_s <= 0.0 or working_s < every_s:
            return self.start_steps
        saved_s = self.began_s + floor(working_s / every_s) * every_s
        change = self.speed_change
        if change is not None and saved_s < change.changed_s:
            return change.saved_steps
        return self.steps_at(saved_s)

    def change_speed(self, now_s: float, steps_per_s: float, every_s: float) -> None:
        """Change the speed from now on; done work stays done. `every_s`: as in `saved_at`."""
        saved_steps = self.saved_at(now_s, every_s)
        self.speed_change = SpeedChange(self.began_s, now_s, saved_steps)
        if now_s > self.first_step_s:
            # The time that the steps done so far would have taken at the new speed.
            worked_s = (now_s - self.first_step_s) * self.steps_per_s / steps_per_s
            self.first_step_s = now_s - worked_s
        self.steps_per_s = steps_per_s

    def running(self) -> Running:
        """Return the launch as snapshots show it."""
        return Running(0, self.ranks, self.start_s, self.until_s, self.steps_quota)
