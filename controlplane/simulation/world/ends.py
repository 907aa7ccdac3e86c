"""Moments at which a launch ends by itself: its last step, a drawn failure, its term."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from controlplane.simulation.workloads.base import ENDLESS_S
from controlplane.simulation.world.job_table import Launch

if TYPE_CHECKING:
    from controlplane.simulation.world.world import SimulatedWorld


class Ends:
    """Ends of a world's launches, scheduled on its engine."""

    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world

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

    def _break(self, launch: Launch) -> None:
        if launch.breaks_s <= self._world.engine.now_s:
            self._world.fail(launch)

    def _term_over(self, launch: Launch, until_s: float) -> None:
        if launch.until_s == until_s:
            self._world.ask_to_stop(launch)
