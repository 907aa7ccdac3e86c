"""Who shares devices, and what an emulated device's clock must know of it: how fast each run goes
beside the others now.

A real GPU slows its jobs down by itself. An emulated one is a pacing clock in each job, so the
agent, which alone knows who shares what, writes the step time to the runs whenever that changes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from loadmaster.agent.journal import Entry
from loadmaster.agent.node.machine import Devices
from loadmaster.agent.runtimes.base import RunId, Runtime

logger = logging.getLogger(__name__)


class Sharing:
    """Step times of runs that share emulated devices, by their co-tenants at the last look."""

    def __init__(self, runtime: Runtime, devices: Devices) -> None:
        self._runtime, self._devices = runtime, devices
        self._kinds: dict[RunId, tuple[str, int]] = {}
        self._told: dict[RunId, tuple[str, ...]] = {}

    def shares(self, run: RunId) -> bool:
        """Return True if others were on its devices when last looked, shortly before it ended."""
        return bool(self._told.get(run))

    def keep_pace(self, running: Sequence[Entry]) -> list[Entry]:
        """Tell each of the running entries its pace where its neighbours have changed, and once
        where it is new to this agent.

        Returns those that are to be stopped because their kinds do not fit into one device's
        memory: of two the later one, as on a GPU, where who asks for memory last gets none.
        """
        self._forget({entry.run for entry in running})
        return [
            entry
            for at, entry in enumerate(running)
            if not self._keep(entry, running, at) and not entry.stop
        ]

    def _keep(self, entry: Entry, running: Sequence[Entry], at: int) -> bool:
        """True if it fits beside earlier runs; tells the run a changed step time."""
        near = [
            (i, self._kind(other))
            for i, other in enumerate(running)
            if i != at and set(other.devices) & set(entry.devices)
        ]
        if self._pace_s(entry, [kind for i, kind in near if i < at]) == math.inf:
            return False
        beside = tuple(sorted(kind for _, kind in near))
        if beside != self._told.get(entry.run):
            self._tell(entry, beside)
        return True

    def _tell(self, entry: Entry, beside: tuple[str, ...]) -> None:
        step_s = self._pace_s(entry, beside)
        try:
            if step_s is not None and math.isfinite(step_s):
                self._runtime.set_pace(entry.run, step_s)
        except OSError as error:  # a full disk, say: the next look tries again
            logger.warning("%s is not told its pace: %s", entry.run.name, error)
            return
        self._told[entry.run] = beside

    def _pace_s(self, entry: Entry, beside: Sequence[str]) -> float | None:
        kind, gpus = self._known(entry)
        return self._devices.shared_pace_s(kind, gpus, beside)

    def _kind(self, entry: Entry) -> str:
        return self._known(entry)[0]

    def _known(self, entry: Entry) -> tuple[str, int]:
        """Its kind, and the GPUs of its job: those of all ranks where it is one of a gang."""
        if entry.run not in self._kinds:
            spec = self._runtime.spec(entry.run)
            self._kinds[entry.run] = (
                (spec.kind_name, max(len(entry.devices), spec.gang_gpus))
                if spec
                else ("", len(entry.devices))
            )
        return self._kinds[entry.run]

    def _forget(self, running: set[RunId]) -> None:
        for known in (self._kinds, self._told):
            for run in known.keys() - running:
                del known[run]
