"""Arrival of jobs: which can ever run, and kinds whose speed has to be measured first."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from controlplane.simulation.world.launching import fastest_run
from controlplane.simulation.world.outcome import Unplaceable

if TYPE_CHECKING:
    from controlplane.simulation.world.world import SimulatedWorld


class Arrivals:
    """Arrivals at a world."""

    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world

    def let_in(self, row: int) -> bool:
        """Return False for a job that can never run, which is reported."""
        world = self._world
        columns, blocked = world.table.columns, world.unplaceable
        fastest_s, why = fastest_run(world.table, world.speeds, row, blocked)
        if why and not columns.others["running"][row]:
            blocked[columns.ids[row]] = Unplaceable(row, columns.ids[row], why)
            return False
        killed_s = float(columns.numbers["walltime_s"][row])
        world.fastest_s[row] = min(fastest_s, killed_s) if world.ends.is_killed(row) else fastest_s
        return True

    def meet(self, row: int) -> None:
        """Begin to measure the new kind of a job, where its speed is not known beforehand."""
        world = self._world
        if world.first_runs is not None:
            world.first_runs.meet(row)
        if world.switches.profiling_s:
            kind = world.table.columns.kinds[row]
            world.builder.profiling.add(kind)
            world.engine.after(world.switches.profiling_s, partial(self._profiled, kind))

    def _profiled(self, kind: str) -> None:
        self._world.builder.profiling.discard(kind)
        self._world.tell("profile")
