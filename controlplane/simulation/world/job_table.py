"""Simulated jobs by column. A stop loses the current step."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from math import inf, isnan, nan

import numpy as np

from controlplane.simulation.cluster.launch import ROUNDING, Launch
from policies.contract.snapshot import Ints, JobColumns, Jobs, JobView


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
        """State in words, after "which"."""
        return _STATE_WORDS[self]


_STATE_WORDS = {
    JobEnd.OPEN: "is not over",
    JobEnd.COMPLETED: "completed",
    JobEnd.KILLED: "was killed at its walltime",
    JobEnd.OVERDUE: "was not done at its deadline",
    JobEnd.NEVER_READY: "could never start",
}


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
        if self.view.due_s == inf:
            return 0.0
        if self.completed_s is None:
            return inf
        return max(0.0, self.completed_s - self.view.due_s)


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
        total = columns.numbers["total_steps"]
        remaining = columns.numbers["remaining_steps"]
        self.total_steps = np.rint(np.where(total > 0.0, total, remaining)).astype(np.int64)
        self.steps_done = np.maximum(0, self.total_steps - np.rint(remaining).astype(np.int64))
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
        return SimulatedJob(
            self.columns.row(row),
            int(self.total_steps[row]),
            int(self.steps_done[row]),
            None if isnan(completed_s) else completed_s,
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
        self.first_step_s[row] = launch.first_step_s
        self.steps_per_s[row] = launch.steps_per_s
        self.start_steps[row] = launch.start_steps
        self.stop_wanted_s[row] = inf

    def want_stop(self, launch: Launch, now_s: float) -> None:
        """Record the request to stop a launch."""
        launch.stop_wanted_s = now_s
        self.stop_wanted_s[launch.row] = now_s

    def change_speed(self, launch: Launch) -> None:
        """Record the changed speed of a launch."""
        self.first_step_s[launch.row] = launch.first_step_s
        self.steps_per_s[launch.row] = launch.steps_per_s

    def end(self, launch: Launch, now_s: float, steps: int) -> None:
        """Record the end of a launch with `steps` of the job done."""
        row = launch.row
        launch.end_s = now_s
        launch.end_steps = steps
        self.steps_done[row] = steps
        self.start_steps[row] = steps
        self.steps_per_s[row] = 0.0
        self.busy_s[row] += now_s - launch.start_s
        self.gpu_s[row] += (now_s - launch.start_s) * launch.gpus

    def finish(self, row: int, state: JobEnd, now_s: float) -> None:
        """Record the end of a job."""
        self.state[row] = state
        self.ended_s[row] = now_s
        if state is JobEnd.COMPLETED:
            self.completed_s[row] = now_s

    def steps_at(self, rows: Ints, now_s: float) -> Ints:
        """int64[len(rows)]: whole steps done of each job; see `Launch.steps_at`."""
        working_s = np.minimum(now_s, self.stop_wanted_s[rows]) - self.first_step_s[rows]
        since_start = np.maximum(0.0, np.floor(working_s * self.steps_per_s[rows] + ROUNDING))
        done: Ints = self.start_steps[rows] + since_start.astype(np.int64)
        return done


def _by_arrival(jobs: Iterable[JobView]) -> JobColumns:
    """Return the jobs in the order of their arrival."""
    if isinstance(jobs, Jobs) and np.all(np.diff(jobs.columns.numbers["arrival_s"]) >= 0.0):
        return jobs.columns
    rows: Sequence[JobView] = sorted(jobs, key=lambda j: j.arrival_s)
    return JobColumns.of(rows)
