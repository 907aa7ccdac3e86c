"""Kills: SIGKILL for a part of the system, which comes back by itself a moment later."""

import contextlib

import psutil

from experiments.chaos.parts import Part
from experiments.chaos.schedule import Blow
from experiments.chaos.system import System

CHILDREN = {"pool": "", "solver": "policies serve"}


class Killing:
    """The field of `Run` that kills programs."""

    def __init__(self, system: System) -> None:
        self._system = system

    def strike(self, blow: Blow) -> str | None:
        """Kill the blow's target if it is alive."""
        if blow.part in CHILDREN:
            return self._kill_child(blow.part)
        part = self._system.parts[blow.target]
        if not (part.is_alive if blow.early else part.works_since(blow.work_s)):
            return None
        part.kill(blow.hold_s)
        return f"killed {part.name} (back in {blow.hold_s:.1f} s)"

    def mend(self) -> None:
        """Parts come back by themselves."""

    def _kill_child(self, which: str) -> str | None:
        worker: Part = self._system.parts["worker"]
        child = worker.child(CHILDREN[which])
        if child is None:
            return None
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
            return f"killed the worker's {which} ({child.pid})"
        return None
