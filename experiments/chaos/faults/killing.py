"""Kills: SIGKILL for a part of the system, which comes back by itself a moment later."""

import contextlib
import shutil

import psutil

from experiments.chaos.parts import Part
from experiments.chaos.schedule import EMPTY_BROKER, Blow
from experiments.chaos.system import System

CHILDREN = {"pool": "", "solver": "policies serve"}
BROKER_STATE = ("appendonlydir", "dump.rdb")


class Killing:
    """The field of `Run` that kills programs."""

    def __init__(self, system: System) -> None:
        self._system = system

    def strike(self, blow: Blow) -> str | None:
        """Kill the blow's target if it is alive."""
        if blow.part in CHILDREN:
            return self._kill_child(blow)
        part = self._target(blow)
        if part is None:
            return None
        part.kill(blow.hold_s)
        lost = self._forget() if blow.part == EMPTY_BROKER else ""
        return f"killed {part.name}{lost} (back in {blow.hold_s:.1f} s)"

    def mend(self) -> None:
        """Parts come back by themselves."""

    def _target(self, blow: Blow) -> Part | None:
        """Return the target, or one of several programs of that kind (of a busy blow one with
        launches); None while it is away.
        """
        parts = self._system.of(blow.target)
        if blow.busy:
            parts = [p for p in parts if self._has_launches(p) and self._is_ready(p, blow)]
        part = parts[blow.number % len(parts)] if parts else None
        return part if part is not None and self._is_ready(part, blow) else None

    def _is_ready(self, part: Part, blow: Blow) -> bool:
        return part.is_alive if blow.early else part.works_since(blow.work_s)

    def _has_launches(self, agent: Part) -> bool:
        runs = self._system.site.nodes / "agents" / agent.name / "runs"
        return any(runs.glob("*/guard.pid"))

    def _forget(self) -> str:
        """Remove what the broker would find again."""
        for name in BROKER_STATE:
            path = self._system.site.home / "valkey" / name
            shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True)
        return " and removed its state"

    def _kill_child(self, blow: Blow) -> str | None:
        workers = self._system.of("worker")
        child = workers[blow.number % len(workers)].child(CHILDREN[blow.part])
        if child is None:
            return None
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
            return f"killed the worker's {blow.part} ({child.pid})"
        return None
