"""Simulated jobs by column, and launches. A stop loses the current step."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from math import floor, inf, isnan, nan

import numpy as np

from policies.contract.snapshot import Ints, JobColumns, Jobs, JobView, RankPlacement, Running

ROUNDING = 1e-6


class JobEnd(IntEnum):
    """State of a job: not over; completed; killed at its walltime; not done at its deadline;
    waiting for an end of another job that can no longer come.
    """

    OPEN = 0
    COMPLETED = 1
    KILLED = 2
    OVERDUE = 3
    NEVER_READY = 4

    @property
    def words(self) -> str:
        return _ENDED[self]


_ENDED = {
    JobEnd.OPEN: "is not over",
    JobEnd.COMPLETED: "completed",
    JobEnd.KILLED: "was killed at its walltime",
    JobEnd.OVERDUE: "was not done at its deadline",
    JobEnd.NEVER_READY: "could never start",
}


@dataclass(frozen=True, slots=True)
class Before:
    """Launch before its speed changed: first step, last change, last checkpoint."""

    first_step_s: float
    changed_s: float
    saved_steps: int


@dataclass(slots=True)
class Launch:
    """Stay of a job on its devices: `start_s` to `end_s`, `start_steps` to `end_steps`.

    `row` is the job's in its workload, `number` the launch's in the journal. After a change of
    speed `first_step_s` is the time from which `steps_per_s` would have led to the present steps
    (`before` has the true one). `ends_s`, `breaks_s`: expected end and failure.
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
    before: Before | None = None

    @property
    def goes_on(self) -> bool:
        """Return True if no stop was requested."""
        return self.stop_wanted_s is None and self.end_s == inf

    @property
    def gpus(self) -> float:
        """Devices held over all ranks, a shared one by its share."""
        ranks = self.ranks
        if len(ranks) == 1:
            return len(ranks[0].devices) * ranks[0].share
        return sum(len(seat.devices) * seat.share for seat in ranks)

    def steps_at(self, at_s: float) -> int:
        """Whole steps of the job done at that time; none are done after a requested stop."""
        if self.end_steps is not None:
            return self.end_steps
        working_s = (
            min(at_s, self.stop_wanted_s if self.stop_wanted_s is not None else inf)
            - self.first_step_s
        )
        return self.start_steps + max(0, floor(working_s * self.steps_per_s + ROUNDING))

    def saved_at(self, at_s: float, every_s: float) -> int:
        """Steps of the last checkpoint, one per `every_s` seconds of work (0: only at start)."""
        before = self.before
        began_s = self.first_step_s if before is None else before.first_step_s
        working_s = at_s - began_s
        if every_s <= 0.0 or working_s < every_s:
            return self.start_steps
        last_s = began_s + floor(working_s / every_s) * every_s
        return (
            self.steps_at(last_s)
            if before is None or last_s >= before.changed_s
            else before.saved_steps
        )

    def change_speed(self, now_s: float, steps_per_s: float, every_s: float) -> None:
        """Change the speed from now on; done work stays done. `every_s`: as in `saved_at`."""
        began_s = self.first_step_s if self.before is None else self.before.first_step_s
        self.before = Before(began_s, now_s, self.saved_at(now_s, every_s))
        if now_s > self.first_step_s:
            self.first_step_s = now_s - (now_s - self.first_step_s) * self.steps_per_s / steps_per_s
        self.steps_per_s = steps_per_s

    def running(self) -> Running:
        return Running(0, self.ranks, self.start_s, self.until_s, self.steps_quota)


@dataclass(slots=True)
class SimulatedJob:
    """Job so far, for observers: as submitted, with its launches in order."""

    view: JobView
    total_steps: int
    steps_done: int
    completed_s: float | None
    launches: list[Launch] = field(default_factory=list)

    @property
    def tardiness_s(self) -> float:
        """max(0, completion - due); of a job that is not completed, inf if it has a due date."""
        end_s = inf if self.completed_s is None else self.completed_s
        return 0.0 if self.view.due_s == inf else max(0.0, end_s - self.view.due_s)


class JobTable:
    """Jobs of a workload by arrival, with their progress; row i of every array is job i.

    `launched` etc. count per job; `first_step_s`, `steps_per_s`, `start_steps` and `stop_wanted_s`
    are of the current launch; without one `steps_per_s` is 0 and `start_steps` the steps done.
    `restart_cost_s` is each job's own and the one given. `state`: JobEnd of each job, `ended_s`
    its end, nan while it is open.
    """

    def __init__(self, jobs: Iterable[JobView], restart_cost_s: float = 0.0) -> None:
        columns = _by_arrival(jobs)
        size = len(columns.ids)
        self.columns = columns
        self.row_of = {job: i for i, job in enumerate(columns.ids)}
        left = columns.numbers["remaining_steps"]
        self.total_steps = np.rint(
            np.where(columns.numbers["total_steps"] > 0.0, columns.numbers["total_steps"], left)
        ).astype(np.int64)
        self.steps_done = np.maximum(0, self.total_steps - np.rint(left).astype(np.int64))
        self.restart_cost_s = columns.numbers["restart_cost_s"] + restart_cost_s
        self.completed_s = np.full(size, nan)
        self.ended_s = np.full(size, nan)
        self.state = np.zeros(size, dtype=np.int64)
        self.first_start_s = np.full(size, nan)
        self.busy_s = np.zeros(size)
        self.gpu_s = np.zeros(size)
        self.launched = np.zeros(size, dtype=np.int64)
        self.preempted = np.zeros(size, dtype=np.int64)
        self.migrated = np.zeros(size, dtype=np.int64)
        self.failed = np.zeros(size, dtype=np.int64)
        self.first_step_s = np.zeros(size)
        self.steps_per_s = np.zeros(size)
        self.start_steps = self.steps_done.copy()
        self.stop_wanted_s = np.full(size, inf)

    def __len__(self) -> int:
        return len(self.columns.ids)

    def job(self, row: int, launches: list[Launch]) -> SimulatedJob:
        """Return one job as it is now, with these launches."""
        completed_s = float(self.completed_s[row])
        done = None if isnan(completed_s) else completed_s
        return SimulatedJob(
            self.columns.row(row),
            int(self.total_steps[row]),
            int(self.steps_done[row]),
            done,
            launches,
        )

    def restart_s(self, row: int) -> float:
        """Return the time that a launch needs to restart the job; 0 if it has never run."""
        has_run = self.launched[row] or self.steps_done[row]
        return float(self.restart_cost_s[row]) if has_run else 0.0

    def begin(self, launch: Launch) -> None:
        """Record a launch that takes its devices."""
        row = launch.row
        if not self.launched[row]:
            self.first_start_s[row] = launch.start_s
        self.launched[row] += 1
        self.first_step_s[row], self.steps_per_s[row] = launch.first_step_s, launch.steps_per_s
        self.start_steps[row], self.stop_wanted_s[row] = launch.start_steps, inf

    def change_speed(self, launch: Launch) -> None:
        """Record the changed speed of a launch."""
        self.first_step_s[launch.row], self.steps_per_s[launch.row] = (
            launch.first_step_s,
            launch.steps_per_s,
        )

    def end(self, launch: Launch, now_s: float, steps: int) -> None:
        """Record the end of a launch with `steps` of the job done."""
        row = launch.row
        launch.end_s, launch.end_steps = now_s, steps
        self.steps_done[row] = self.start_steps[row] = steps
        self.steps_per_s[row] = 0.0
        self.busy_s[row] += now_s - launch.start_s
        self.gpu_s[row] += (now_s - launch.start_s) * launch.gpus

    def finish(self, row: int, state: JobEnd, now_s: float) -> None:
        """Record the end of a job."""
        self.state[row], self.ended_s[row] = state, now_s
        if state is JobEnd.COMPLETED:
            self.completed_s[row] = now_s

    def steps_at(self, rows: Ints, now_s: float) -> Ints:
        """int64[len(rows)]: whole steps done of each job; see `Launch.steps_at`."""
        working_s = np.minimum(now_s, self.stop_wanted_s[rows]) - self.first_step_s[rows]
        of_launch = np.maximum(0.0, np.floor(working_s * self.steps_per_s[rows] + ROUNDING))
        done: Ints = self.start_steps[rows] + of_launch.astype(np.int64)
        return done


def _by_arrival(jobs: Iterable[JobView]) -> JobColumns:
    if isinstance(jobs, Jobs) and np.all(np.diff(jobs.columns.numbers["arrival_s"]) >= 0.0):
        return jobs.columns
    rows: Sequence[JobView] = sorted(jobs, key=lambda j: j.arrival_s)
    return JobColumns.of(rows)
