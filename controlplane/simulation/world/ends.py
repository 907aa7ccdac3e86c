"""Ends of jobs and launches: last step, drawn failure, term, walltime, deadline, dependency."""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from controlplane.simulation.workloads.base import ENDLESS_S
from controlplane.simulation.world.job_table import JobEnd, Launch

if TYPE_CHECKING:
    from controlplane.simulation.world.world import SimulatedWorld


class Ends:
    """Ends of a world's jobs and launches, scheduled on its engine.

    `reasons`: why a job ended without completion, by row. A kill takes no time.
    """

    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world
        self.reasons: dict[int, str] = {}

    def entered(self, row: int) -> None:
        """Schedule what may end a submitted job while it waits."""
        world, now_s = self._world, self._world.engine.now_s
        deadline_s = float(world.table.columns.numbers["deadline_s"][row])
        if deadline_s < inf:
            world.engine.at(max(now_s, deadline_s), partial(self._overdue, row))
        self._look_at(row)

    def foresee(self, launch: Launch) -> None:
        """Schedule the end and failure of a launch whose speed is known."""
        if not launch.steps_per_s:
            return
        world, now_s = self._world, self._world.engine.now_s
        steps = int(world.table.total_steps[launch.row]) - launch.start_steps
        work_s = steps / launch.steps_per_s
        if work_s >= ENDLESS_S:
            return
        launch.ends_s = max(now_s, launch.first_step_s + work_s)
        world.engine.at(launch.ends_s, partial(world.complete, launch))
        part = world.noise.fails_after(launch.job, int(world.table.launched[launch.row]))
        if part is not None:
            launch.breaks_s = max(now_s, launch.first_step_s + part * work_s)
            world.engine.at(launch.breaks_s, partial(self._break, launch))

    def by_term(self, launch: Launch) -> None:
        """Schedule the stop at the end of the launch's term, if it has one."""
        if launch.until_s is not None:
            at_s = max(launch.until_s, self._world.engine.now_s)
            self._world.engine.at(at_s, partial(self._term_over, launch, launch.until_s))

    def by_walltime(self, launch: Launch) -> None:
        """Schedule the kill of a launch whose job is killed at its walltime.

        As live, the walltime counts from the start of the process, a restart included.
        """
        if self.is_killed(launch.row):
            world = self._world
            limit_s = float(world.table.columns.numbers["walltime_s"][launch.row])
            at_s = max(world.engine.now_s, launch.start_s + limit_s)
            world.engine.at(at_s, partial(self._kill, launch))

    def is_killed(self, row: int) -> bool:
        """Return True if a launch of the job ends at its walltime."""
        columns, world = self._world.table.columns, self._world
        usual = bool(world.switches.kill_at_walltime) and columns.others["batch"][row]
        killed = world.rules.kills.get(columns.ids[row], usual)
        return killed and bool(columns.numbers["walltime_s"][row] < inf)

    def finish(self, row: int, state: JobEnd, reason: str = "") -> None:
        """End a job that holds no node; others may wait for it."""
        world = self._world
        del world.queue[bisect_left(world.queue, row)]
        del world.active[bisect_left(world.active, row)]
        world.table.finish(row, state, world.engine.now_s)
        world.builder.leave(row)
        if reason:
            self.reasons[row] = reason
        world.tell("completion" if state is JobEnd.COMPLETED else "failure")
        self._look_at_waiters(row)

    def started(self, row: int) -> None:
        """Ask for a round if others wait for the start of a job that has been launched."""
        world = self._world
        if world.table.launched[row] == 1 and world.gates.starts_matter(row):
            world.tell("submission")
            self._look_at_waiters(row)

    def _look_at_waiters(self, row: int) -> None:
        for waiter in self._world.gates.waiters(row):
            self._look_at(waiter)

    def _look_at(self, row: int) -> None:
        """End a job whose dependencies can no longer be satisfied, or begin its delay."""
        world, now_s = self._world, self._world.engine.now_s
        if not self._is_open(row) or row in world.launches:
            return
        if never := world.gates.never(row):
            self.finish(row, JobEnd.NEVER_READY, never)
        elif (until_s := world.gates.delay_until(row, now_s)) is not None:
            world.engine.at(until_s, partial(world.tell, "submission"))

    def _is_open(self, row: int) -> bool:
        active = self._world.active
        at = bisect_left(active, row)
        return at < len(active) and active[at] == row

    def _kill(self, launch: Launch) -> None:
        if launch.goes_on:
            limit_s = float(self._world.table.columns.numbers["walltime_s"][launch.row])
            reason = f"it was killed at its walltime of {limit_s:,.0f} s"
            self._end(launch, JobEnd.KILLED, reason)

    def _overdue(self, row: int) -> None:
        """End a job at its deadline; one that is being stopped when its nodes are free."""
        world = self._world
        if not self._is_open(row):
            return
        launch, reason = world.launches.get(row), "it was not done at its deadline"
        if launch is None:
            self.finish(row, JobEnd.OVERDUE, reason)
        elif launch.goes_on and launch.ends_s > world.engine.now_s:
            self._end(launch, JobEnd.OVERDUE, reason)
        elif not launch.goes_on:
            world.engine.after(world.scenario.stop_s, partial(self._overdue, row))

    def _end(self, launch: Launch, state: JobEnd, reason: str) -> None:
        world = self._world
        world.release(launch, launch.steps_at(world.engine.now_s))
        if state is JobEnd.KILLED:
            world.predictions.end(launch)
        self.finish(launch.row, state, reason)

    def _break(self, launch: Launch) -> None:
        if launch.breaks_s <= self._world.engine.now_s:
            self._world.fail(launch)

    def _term_over(self, launch: Launch, until_s: float) -> None:
        if launch.until_s == until_s:
            self._world.ask_to_stop(launch)
