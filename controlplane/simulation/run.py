"""Runs the loop on a simulated cluster: a round on every event (events of one moment are answered together) and every H seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from math import inf
from time import perf_counter
from typing import Protocol

from controlplane.rounds import RoundResult, run_round
from controlplane.simulation.engine import Engine
from controlplane.simulation.outcome import Outcome, Progress
from controlplane.simulation.results import outcome_of
from controlplane.simulation.switches import Switches
from controlplane.simulation.world import Scene, SimulatedWorld
from policies.base import Policy
from policies.snapshot import Jobs, JobView, KindView


class SimulationError(Exception):
    """A round failed, so that the simulation's figures would mean nothing."""


NO_SWITCHES = Switches()


class Trace(Protocol):
    """What of a workload is simulated: its jobs by arrival, and their kinds."""

    @property
    def name(self) -> str: ...

    @property
    def jobs(self) -> Jobs: ...

    @property
    def kinds(self) -> tuple[KindView, ...]: ...


def simulate(
    scene: Scene,
    workload: Trace,
    policy: Policy,
    *,
    name: str,
    seed: int,
    switches: Switches = NO_SWITCHES,
    on_progress: Callable[[Progress], None] | None = None,
) -> Outcome:
    """Run a workload on a scene under a policy to its end; same arguments, same outcome (but for `decision_s`).

    `name` is the policy's, for the outcome. The workload's kinds stand in for the scene's of the same id. SimulationError if a
    round fails; what `on_progress` raises ends the run.
    """
    kinds = {k.id: k for k in (*scene.kinds, *workload.kinds)}
    staged = replace(
        scene,
        kinds=tuple(kinds.values()),
        seed=seed,
        launch_s=max(scene.launch_s, switches.launch_s),
        stop_s=max(scene.stop_s, switches.stop_s),
        restart_cost_s=max(scene.restart_cost_s, switches.restart_cost_s),
    )
    simulation = Simulation(staged, workload.jobs, policy).run()
    return outcome_of(simulation, name, workload.name, seed, switches)


class Simulation:
    """A scene, jobs that come in at their `arrival_s`, and a policy. `rounds` holds what each round came to."""

    def __init__(self, scene: Scene, jobs: Iterable[JobView], policy: Policy, start_s: float = 0.0) -> None:
        self.scene, self.policy = scene, policy
        self.engine = Engine(start_s)
        self.world = SimulatedWorld(scene, self.engine, self._ask)
        self.rounds: list[RoundResult] = []
        self.decision_s: list[float] = []
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
        started_s = perf_counter()
        result = run_round(self.world, self.policy)
        self.decision_s.append(perf_counter() - started_s)
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
