"""Loop on a simulated cluster: a round at every moment with events, and every H seconds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from time import perf_counter
from typing import TypeAlias

from controlplane.loop.changes import Migrate, Preempt, Resize, Start
from controlplane.loop.rounds import Applied, RejectCode, RoundResult, run_round
from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.switches import NO_SWITCHES, Switches
from controlplane.simulation.workloads.base import Workload
from controlplane.simulation.workloads.rules import NO_RULES, Rules
from controlplane.simulation.world.arrivals import seat, submit
from controlplane.simulation.world.engine import Engine
from controlplane.simulation.world.events import Event
from controlplane.simulation.world.job_table import JobTable
from controlplane.simulation.world.nodes import schedule_failures
from controlplane.simulation.world.outcome import Outcome, Progress
from controlplane.simulation.world.outcome_builder import outcome_of
from controlplane.simulation.world.shortcuts import Shortcuts, shortcuts_of, stops_at_once
from controlplane.simulation.world.state import WorldState
from controlplane.simulation.world.world import SimulatedWorld, answer
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
    kinds = {kind.id: kind for kind in (*scenario.kinds, *workload.kinds)}
    switched = replace(
        scenario,
        kinds=tuple(kinds.values()),
        seed=seed,
        launch_s=scenario.launch_s + switches.launch_s,
        stop_s=scenario.stop_s + switches.stop_s,
        restart_cost_s=scenario.restart_cost_s + switches.restart_cost_s,
    )
    simulation = Simulation(
        switched,
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
    return simulation.run().outcome(name, workload.name)


@dataclass(frozen=True, slots=True)
class _TimedPolicy:
    """Policy whose decisions are timed, in wall seconds; `look` sees each snapshot first."""

    policy: Policy
    decision_s: list[float]
    look: Callable[[Snapshot], None]

    @property
    def places_batch(self) -> bool:
        """Return True if the policy decides about batch jobs itself."""
        return places_batch(self.policy)

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Return the policy's plan."""
        self.look(snapshot)
        began_s = perf_counter()
        try:
            return self.policy(snapshot)
        finally:
            self.decision_s.append(perf_counter() - began_s)


class Simulation:
    """Scenario, jobs that arrive at their `arrival_s`, and a policy.

    Jobs of before `start_s` arrive then. `rounds`: results of the rounds, if kept; `seats`:
    placements of jobs that run from the start; `shortcuts`: leave out rounds that change nothing;
    `whole_snapshots`: no shortcut hides running jobs; `splits_energy`: meter each job's part of
    the energy, as always where devices are shared.
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
        # 1. The world, which calls back for each event that is due, and for rounds.
        self.scenario = scenario
        self.engine = Engine(start_s)
        table = JobTable(jobs, scenario.restart_cost_s)
        taken = Shortcuts(stops_at_once=stops_at_once(scenario, switches))
        if shortcuts:
            taken = shortcuts_of(scenario, table.columns, policy, switches, rules)
        if whole_snapshots:
            taken = replace(taken, hides_running=False)
        self.state = WorldState.of(
            scenario,
            self.engine,
            table,
            switches=switches,
            rules=rules,
            shortcuts=taken,
            answer=self._answer,
            want_round=self._want_round,
            splits_energy=splits_energy,
        )
        self.world = SimulatedWorld(self.state)

        # 2. Rounds: the policy, and when they are held.
        self.decision_s: list[float] = []
        self._policy = _TimedPolicy(policy, self.decision_s, self._show)
        self._is_round_wanted = False
        self._is_in_round = False
        self._last_round_s = -inf
        self._fruitless_rounds = 0

        # 3. What observers get to see of them.
        self.on_progress: Callable[[Progress], None] | None = None
        self.on_snapshot: OnSnapshot | None = None
        self.keep_rounds = keep_rounds
        self.rounds: list[RoundResult] = []
        self.round_count = 0
        self.rounds_skipped = 0
        self.rounds_changed = 0
        self._has_warned = False
        self._progress_reported_at = perf_counter()

        # 4. What happens by itself.
        self._seats = seats
        self._schedule_arrivals(0)
        schedule_failures(self.state)

    def run(self, until_s: float = inf) -> Simulation:
        """Run until nothing is left to do, or until that time. SimulationError if a round fails."""
        with seldom_collected():
            self.engine.run(until_s)
        self.state.meter.settle(self.engine.now_s)
        self._report_progress()
        return self

    def outcome(self, policy: str, workload: str) -> Outcome:
        """Return the outcome so far. `policy`, `workload`: their names."""
        return outcome_of(
            self.state,
            policy,
            workload,
            rounds=self.round_count,
            rounds_skipped=self.rounds_skipped,
            rounds_changed=self.rounds_changed,
            decision_s=self.decision_s,
        )

    # ---- arrivals

    def _schedule_arrivals(self, row: int) -> None:
        """Schedule the arrival of the jobs from `row` on that arrive together."""
        table = self.state.table
        if row < len(table):
            arrival_s = table.columns.numbers["arrival_s"]
            at_s = max(self.engine.now_s, float(arrival_s[row]))
            end = int(arrival_s.searchsorted(at_s, side="right"))
            self.engine.at(at_s, partial(self._arrive, range(row, end)))

    def _arrive(self, rows: range) -> None:
        self._schedule_arrivals(rows.stop)
        submit(self.state, rows)
        seat(self.state, self._seats)
        self._seats = ()

    # ---- rounds

    def _want_round(self) -> None:
        """Hold a round soon; events during a round wait for its end."""
        if not self._is_round_wanted:
            self._is_round_wanted = True
            if not self._is_in_round:
                self._schedule_round()

    def _schedule_round(self) -> None:
        """Schedule a round now, or when the last one is `gather_s` ago."""
        at_s = max(self.engine.now_s, self._last_round_s + self.scenario.gather_s)
        self.engine.at(at_s, self._hold_round)

    def _hold_round(self) -> None:
        state = self.state
        self._is_round_wanted = False
        if state.is_settled:
            self.rounds_skipped += 1
            return
        self._last_round_s = self.engine.now_s
        most = self.scenario.round_jobs
        sees_a_part = most is not None and len(state.queue) > most

        # 1. The round itself.
        self._is_in_round = True
        result = run_round(self.world, self._policy)
        self._is_in_round = False
        if result.failure is not None:
            raise SimulationError(f"round at {self._last_round_s} s: {result.failure}")

        # 2. Observers.
        self._warn_of_refusals(result)
        self.round_count += 1
        if _changes_a_running_job(result.applied):
            self.rounds_changed += 1
        if self.keep_rounds:
            self.rounds.append(result)

        # 3. Rounds that follow.
        if self._is_round_wanted:
            self._schedule_round()
        elif sees_a_part and _starts_any(result.applied):
            state.request_round("leftover")
        self._schedule_periodic_round()
        if perf_counter() - self._progress_reported_at >= PROGRESS_S:
            self._report_progress()

    def _schedule_periodic_round(self) -> None:
        """Schedule a round a period after the last one, while one could change something."""
        state = self.state
        if state.active and not state.shows_queue_only and not self._is_hopeless():
            at_s = self._last_round_s + self.scenario.round_s
            self.engine.at(at_s, partial(self._hold_periodic_round, self._last_round_s))

    def _hold_periodic_round(self, last_s: float) -> None:
        """Hold a round a period after that at `last_s`, unless there was another since."""
        if last_s == self._last_round_s:
            self.state.request_round("periodic")

    def _is_hopeless(self) -> bool:
        """Return True if nothing that ends ran, arrived or started for too many rounds."""
        state = self.state
        is_any_end_expected = any(launch.ends_s < inf for launch in state.launches.values())
        have_all_arrived = state.arrived == len(state.table)
        if is_any_end_expected or not have_all_arrived or state.is_any_node_away:
            self._fruitless_rounds = 0
            return False
        self._fruitless_rounds += 1
        is_past_last_change = self.engine.now_s >= self._last_price_change_s()
        return self._fruitless_rounds >= FRUITLESS_ROUNDS and is_past_last_change

    def _last_price_change_s(self) -> float:
        """Return the time of the last known change of prices and caps."""
        moments = [step.from_s for step in self.scenario.energy]
        for step in self.scenario.power_caps:
            moments.append(step.from_s)
            if step.to_s < inf:
                moments.append(step.to_s)
        return max(moments, default=-inf)

    # ---- callbacks and observers

    def _answer(self, event: Event) -> None:
        """Answer an event of the world that is due."""
        answer(self.state, event)

    def _show(self, snapshot: Snapshot) -> None:
        """Show an observer the snapshot of a round before the policy sees it."""
        if self.on_snapshot is not None:
            self.on_snapshot(self.round_count + 1, snapshot)

    def _warn_of_refusals(self, result: RoundResult) -> None:
        """Log the first gangs that were left out of a plan because they break a rule."""
        refused = [r for r in result.applied.rejected if r.code is RejectCode.REFUSED]
        if refused and not self._has_warned:
            self._has_warned = True
            logger.warning("round at %g s: %s", self._last_round_s, result.plan.message)

    def _report_progress(self) -> None:
        self._progress_reported_at = perf_counter()
        if self.on_progress is not None:
            state = self.state
            over = state.arrived - len(state.active)
            progress = Progress(self.engine.now_s, state.arrived, over, len(state.table))
            self.on_progress(progress)


def _starts_any(applied: Applied) -> bool:
    """Return True if a round started a job."""
    return any(isinstance(change, Start) for change in applied.changes)


def _changes_a_running_job(applied: Applied) -> bool:
    """Return True if a round stopped, moved or resized a job that was running (Hadar, IV-B)."""
    return any(isinstance(change, Preempt | Migrate | Resize) for change in applied.changes)
