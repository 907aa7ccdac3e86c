"""Loop on a simulated cluster: a round at every moment with events, and every H seconds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from time import perf_counter
from typing import TypeAlias

from controlplane.loop.changes import Start
from controlplane.loop.rounds import Applied, RejectCode, RoundResult, run_round
from controlplane.simulation.switches import NO_SWITCHES, Switches
from controlplane.simulation.workloads.base import Workload
from controlplane.simulation.workloads.rules import NO_RULES, Rules
from controlplane.simulation.world.engine import Engine
from controlplane.simulation.world.failures import NodeFailures
from controlplane.simulation.world.job_table import JobTable
from controlplane.simulation.world.outcome import Outcome, Progress, outcome_of
from controlplane.simulation.world.shortcuts import may_hide_running, may_skip_empty
from controlplane.simulation.world.world import Scenario, SimulatedWorld
from foundation.garbage import seldom_collected
from policies.contract.plan import Placement, Plan
from policies.contract.policy import Policy, places_batch
from policies.contract.snapshot import JobView, Snapshot

logger = logging.getLogger(__name__)

OnSnapshot: TypeAlias = Callable[[int, Snapshot], None]

PROGRESS_S = 0.25
"""Wall seconds between two reports of progress."""

FRUITLESS_ROUNDS = 200
"""Rounds in a row without anything running, started or expected, before giving up."""


class SimulationError(Exception):
    """Failed round, after which the simulation's figures would mean nothing."""


def simulate(
    scenario: Scenario,
    workload: Workload,
    policy: Policy,
    *,
    name: str,
    seed: int,
    switches: Switches = NO_SWITCHES,
    on_progress: Callable[[Progress], None] | None = None,
    on_snapshot: OnSnapshot | None = None,
) -> Outcome:
    """Run a workload on a scenario under a policy to its end.

    Equal arguments give equal outcomes (but for `decision_s`). `name` is the policy's. The
    workload's kinds replace the scenario's of the same id. SimulationError if a round fails;
    exceptions of `on_progress` end the run. `on_snapshot` is called with the snapshot of each round
    before the policy, and the round's number from 1.
    """
    kinds = {k.id: k for k in (*scenario.kinds, *workload.kinds)}
    staged = replace(
        scenario,
        kinds=tuple(kinds.values()),
        seed=seed,
        launch_s=scenario.launch_s + switches.launch_s,
        stop_s=scenario.stop_s + switches.stop_s,
        restart_cost_s=scenario.restart_cost_s + switches.restart_cost_s,
    )
    simulation = Simulation(
        staged,
        workload.jobs,
        policy,
        switches=switches,
        rules=workload.rules,
        shortcuts=True,
        whole_snapshots=on_snapshot is not None,
        keep_rounds=False,
        seats=workload.seats,
    )
    simulation.on_snapshot = on_snapshot
    simulation.on_progress = on_progress
    return outcome_of(simulation.run(), name, workload.name)


@dataclass(frozen=True, slots=True)
class _Timed:
    """Policy whose decisions are timed; `look` sees each snapshot first."""

    policy: Policy
    decision_s: list[float]
    look: Callable[[Snapshot], None]

    @property
    def places_batch(self) -> bool:
        return places_batch(self.policy)

    def __call__(self, snapshot: Snapshot) -> Plan:
        self.look(snapshot)
        began_s = perf_counter()
        try:
            return self.policy(snapshot)
        finally:
            self.decision_s.append(perf_counter() - began_s)


class Simulation:
    """Scenario, jobs that arrive at their `arrival_s`, and a policy.

    Jobs of before `start_s` arrive then. `rounds`: results of the rounds, if kept; `seats`:
    placements of jobs that run from the start; `whole_snapshots`: no shortcut hides running jobs.
    """

    def __init__(
        self,
        scenario: Scenario,
        jobs: Iterable[JobView],
        policy: Policy,
        start_s: float = 0.0,
        *,
        switches: Switches = NO_SWITCHES,
        rules: Rules = NO_RULES,
        shortcuts: bool = False,
        whole_snapshots: bool = False,
        keep_rounds: bool = True,
        seats: tuple[Placement, ...] = (),
        splits_energy: bool = False,
    ) -> None:
        self.scenario, self.policy, self.switches, self.keep_rounds = (
            scenario,
            policy,
            switches,
            keep_rounds,
        )
        self.engine = Engine(start_s)
        table = JobTable(jobs, scenario.restart_cost_s)
        hides = shortcuts and not whole_snapshots
        hides = hides and may_hide_running(scenario, table.columns, policy, switches, rules)
        self.world = SimulatedWorld(
            scenario,
            self.engine,
            table,
            self._ask,
            switches=switches,
            rules=rules,
            hides_running=hides,
            skips_empty=shortcuts and may_skip_empty(scenario, policy, switches),
            splits_energy=splits_energy,
        )
        self.on_progress: Callable[[Progress], None] | None = None
        self.on_snapshot: OnSnapshot | None = None
        self.rounds: list[RoundResult] = []
        self._faults_told = False
        self.round_count = self.rounds_skipped = 0
        self.decision_s: list[float] = []
        self._seats = seats
        self._asked = self._in_round = self._saw_a_part = False
        self._last_round_s = -inf
        self._fruitless = 0
        self._told_s = perf_counter()
        self._arrivals(0)
        NodeFailures(self.world)

    def run(self, until_s: float = inf) -> Simulation:
        """Run until nothing is left to do, or until that time. SimulationError if a round fails."""
        with seldom_collected():
            self.engine.run(until_s)
        self.world.meter.settle(self.engine.now_s)
        self._report()
        return self

    def _arrivals(self, row: int) -> None:
        """Schedule the arrival of the jobs from `row` on that arrive together."""
        table = self.world.table
        if row < len(table):
            arrival_s = table.columns.numbers["arrival_s"]
            at_s = max(self.engine.now_s, float(arrival_s[row]))
            last = int(arrival_s.searchsorted(at_s, side="right"))
            self.engine.at(at_s, partial(self._arrive, range(row, last)))

    def _arrive(self, rows: range) -> None:
        self._arrivals(rows.stop)
        self.world.submit(rows)
        self.world.seat(self._seats)
        self._seats = ()

    def _ask(self, reason: str) -> None:
        if not self._asked:
            self._asked = True
            if not self._in_round:
                self._put_in()

    def _put_in(self) -> None:
        self.engine.at(
            max(self.engine.now_s, self._last_round_s + self.scenario.gather_s), self._round
        )

    def _round(self) -> None:
        self._asked = False
        if self.world.is_settled:
            self.rounds_skipped += 1
            return
        self._last_round_s = self.engine.now_s
        self._saw_a_part = (
            self.scenario.round_jobs is not None
            and len(self.world.queue) > self.scenario.round_jobs
        )
        self._in_round = True
        result = run_round(self.world, _Timed(self.policy, self.decision_s, self._looking))
        self._in_round = False
        if result.failure is not None:
            raise SimulationError(f"round at {self._last_round_s} s: {result.failure}")
        self._tell_faults(result)
        self.round_count += 1
        if self.keep_rounds:
            self.rounds.append(result)
        self._after_round(result.applied)

    def _tell_faults(self, result: RoundResult) -> None:
        """Log the first gangs that were left out of a plan because they break a rule."""
        if self._faults_told or not any(
            rejected.code is RejectCode.REFUSED for rejected in result.applied.rejected
        ):
            return
        self._faults_told = True
        logger.warning("round at %g s: %s", self._last_round_s, result.plan.message)

    def _looking(self, snapshot: Snapshot) -> None:
        if self.on_snapshot is not None:
            self.on_snapshot(self.round_count + 1, snapshot)

    def _after_round(self, applied: Applied) -> None:
        if self._asked:
            self._put_in()
        elif self._saw_a_part and any(isinstance(c, Start) for c in applied.changes):
            self.world.tell("leftover")
        if self.world.active and not self.world.hides_running and not self._is_hopeless():
            self.engine.at(
                self._last_round_s + self.scenario.round_s,
                partial(self._periodic, self._last_round_s),
            )
        if perf_counter() - self._told_s >= PROGRESS_S:
            self._report()

    def _is_hopeless(self) -> bool:
        """Return True if nothing that ends ran, arrived or started for too many rounds."""
        waits = (
            not any(launch.ends_s < inf for launch in self.world.launches.values())
            and self.world.arrived == len(self.world.table)
            and not self.world.is_any_node_away
        )
        self._fruitless = self._fruitless + 1 if waits else 0
        return self._fruitless >= FRUITLESS_ROUNDS and self.engine.now_s >= self._last_change_s()

    def _last_change_s(self) -> float:
        """Time of the last known change of prices and caps."""
        prices = (s.from_s for s in self.scenario.energy)
        caps = (at_s for s in self.scenario.power_caps for at_s in (s.from_s, s.to_s) if at_s < inf)
        return max((*prices, *caps), default=-inf)

    def _periodic(self, last_s: float) -> None:
        """Hold a round a period after that at `last_s`, unless there was another since."""
        if last_s == self._last_round_s:
            self.world.tell("periodic")

    def _report(self) -> None:
        self._told_s = perf_counter()
        if self.on_progress is not None:
            world = self.world
            done = world.arrived - len(world.active)
            self.on_progress(Progress(self.engine.now_s, world.arrived, done, len(world.table)))
