"""Runs the loop on a simulated cluster: a round on every event (events of one moment are answered together) and every H seconds."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import inf

from controlplane.rounds import RoundResult, run_round
from controlplane.simulation.engine import Engine
from controlplane.simulation.world import Scene, SimulatedWorld
from policies.base import Policy
from policies.snapshot import JobView


class SimulationError(Exception):
    """A round failed, so that the simulation's figures would mean nothing."""


class Simulation:
    """A scene, jobs that come in at their `arrival_s`, and a policy. `rounds` holds what each round came to."""

    def __init__(self, scene: Scene, jobs: Iterable[JobView], policy: Policy, start_s: float = 0.0) -> None:
        self.scene, self.policy = scene, policy
        self.engine = Engine(start_s)
        self.world = SimulatedWorld(scene, self.engine, self._ask)
        self.rounds: list[RoundResult] = []
        self._asked = False
        self._last_round_s = start_s
        for job in sorted(jobs, key=lambda j: j.arrival_s):
            self.engine.at(job.arrival_s, partial(self.world.submit, job))

    def run(self, until_s: float = inf) -> Simulation:
        """Run until nothing is left to do, or until that time. SimulationError if a round fails."""
        self.engine.run(until_s)
        return self

    def _ask(self, reason: str) -> None:
        if not self._asked:
            self._asked = True
            self.engine.at(self.engine.now_s, self._round)

    def _round(self) -> None:
        self._asked = False
        result = run_round(self.world, self.policy)
        if result.failure is not None:
            raise SimulationError(f"round at {self.engine.now_s} s: {result.failure}")
        self.rounds.append(result)
        self._last_round_s = self.engine.now_s
        if len(result.snapshot.jobs):
            self.engine.after(self.scene.round_s, partial(self._periodic, self.engine.now_s))

    def _periodic(self, last_s: float) -> None:
        """A period after the round at `last_s`, unless there was another one since."""
        if last_s == self._last_round_s:
            self.world.tell("periodic")
