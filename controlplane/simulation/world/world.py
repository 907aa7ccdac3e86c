"""Cluster on a virtual clock: jobs advance by their kind's throughput and stop in two phases.

As in `controlplane.loop.live`, a stopping launch holds its devices, its job waits, a launch on
those devices is deferred, and the end of the stop requests the next round. Launching, stopping and
restarting take no time by default. Profile runs are not simulated.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import inf
from typing import Any

import numpy as np

from controlplane.loop.changes import (
    Change,
    Keep,
    Migrate,
    PlacementKey,
    Preempt,
    Resize,
    Start,
    changes,
)
from controlplane.loop.rounds import ENDED_STOP, Applied, Decision, LastPlan, Rejected
from controlplane.simulation.cluster.fleet import Fleet
from controlplane.simulation.cluster.meter import meter_of
from controlplane.simulation.cluster.noise import Noise
from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.cluster.speeds import Speeds, highest_cap_w
from controlplane.simulation.switches import NO_SWITCHES, Switches
from controlplane.simulation.workloads.rules import NO_RULES, Rules
from controlplane.simulation.world.arrivals import Arrivals
from controlplane.simulation.world.colocation import Colocation
from controlplane.simulation.world.ends import Ends
from controlplane.simulation.world.engine import Engine
from controlplane.simulation.world.gates import Gates
from controlplane.simulation.world.job_table import JobEnd, JobTable, Launch, SimulatedJob
from controlplane.simulation.world.journal import Journal
from controlplane.simulation.world.launching import new_launch, refusal, setup_s
from controlplane.simulation.world.observation.first_runs import FirstRuns
from controlplane.simulation.world.observation.observed_pairs import ObservedPairs
from controlplane.simulation.world.observation.predictions import Predictions
from controlplane.simulation.world.observation.snapshot_builder import SnapshotBuilder
from controlplane.simulation.world.outcome import Unplaceable
from controlplane.simulation.world.shortcuts import stops_at_once
from policies.contract.plan import Placement
from policies.contract.snapshot import NodeState, Purpose, Running, Snapshot, Trigger

__all__ = ["Scenario", "SimulatedWorld"]

LAUNCHES = (Start, Migrate, Resize)
TRAINING = Purpose.TRAINING
"""Looked up once, for every change and running job of every round."""


class SimulatedWorld:
    """World of a simulation. `on_event` is called with the reason of each wanted round.

    `table` holds all jobs of the workload; `submit` adds them. `hides_running`: snapshots show the
    queue only, see `controlplane.simulation.world.shortcuts`; `skips_empty`: rounds without a
    waiting job change nothing. `splits_energy`: meter each job's
    part of the energy, as always where devices are shared.
    """

    def __init__(
        self,
        scenario: Scenario,
        engine: Engine,
        table: JobTable,
        on_event: Callable[[str], None],
        *,
        switches: Switches = NO_SWITCHES,
        rules: Rules = NO_RULES,
        hides_running: bool = False,
        skips_empty: bool = False,
        splits_energy: bool = False,
    ) -> None:
        self.scenario, self.engine, self.table, self.on_event = scenario, engine, table, on_event
        self.rules, self.gates = rules, Gates(table, rules)
        self.switches, self._hides_running = switches, hides_running
        self._skips_empty = skips_empty
        self._stops_at_once = stops_at_once(scenario, switches)
        self._stopping: list[Launch] = []
        self.noise = Noise(scenario.seed, switches)
        self.fleet = Fleet(scenario.nodes, table.columns)
        cap_w = highest_cap_w(scenario.power_cap_w, scenario.power_caps)
        self.speeds = Speeds(scenario.nodes, scenario.kinds, cap_w, scenario.gpu_types)
        noise = self.noise.power if switches.power_noise else None
        self.colocation = Colocation(self, self.fleet) if self.fleet.shares else None
        splits = self.fleet.shares or splits_energy
        self.meter = meter_of(self.fleet, scenario.energy, len(table), noise, splits=splits)
        self.pairs = ObservedPairs.of(scenario.kinds, switches.pairs_observed, scenario.seed)
        self.predictions = Predictions(self)
        self.builder = SnapshotBuilder(
            table,
            self.noise.seen(scenario.kinds if self.pairs is None else self.pairs.kinds),
            scenario,
            self.predictions,
        )
        self.first_runs = FirstRuns(self) if switches.first_run_steps else None
        self.journal = Journal()
        self.ends, self._arrivals = Ends(self), Arrivals(self)
        self.active: list[int] = []
        self.queue: list[int] = []
        self.launches: dict[int, Launch] = {}
        self.arrived = 0
        self.unplaceable: dict[str, Unplaceable] = {}
        self.fastest_s = np.full(len(table), inf)
        self.number = 0
        self._running: dict[int, tuple[Running, ...]] = {}
        self._reasons: list[str] = []
        self._last = scenario.empty_snapshot()
        self.memory: Mapping[str, Any] = {}
        self._last_plan: LastPlan | None = None

    @property
    def jobs(self) -> Mapping[str, SimulatedJob]:
        """Submitted jobs by id as they are now, for observers."""
        return self.journal.jobs(self.table, self.launches, self.arrived)

    @property
    def hides_running(self) -> bool:
        """Return True if snapshots show the queue only; False while a node must be emptied."""
        return self._hides_running and not self.fleet.draining

    @property
    def is_settled(self) -> bool:
        """Return True if a round could change nothing: only starts, and none is possible."""
        if self._skips_empty and not self.queue and not self.fleet.draining:
            return True
        return self.hides_running and (not self.queue or self.fleet.free <= 0)

    @property
    def completed(self) -> int:
        """Number of jobs that are done."""
        return int(np.count_nonzero(self.table.state == JobEnd.COMPLETED))

    @property
    def is_over(self) -> bool:
        """Return True if every job has arrived and is done, or can never run."""
        return self.arrived == len(self.table) and not self.active

    @property
    def is_any_node_away(self) -> bool:
        """Return True if a lost node will come back."""
        return bool(self.switches.node_failures_per_day) and any(
            n.state is NodeState.LOST for n in self.fleet.nodes.values()
        )

    def submit(self, rows: range) -> None:
        """Submit these jobs of the workload; one that no node can ever run is reported."""
        self.arrived = rows.stop
        let_in = [row for row in rows if self._arrivals.let_in(row)]
        for row in let_in:
            self.active.append(row)
            self.predictions.wait(row)
            self.queue.append(row)
            if self.builder.enter(row):
                self._arrivals.meet(row)
        for row in let_in:
            self.ends.entered(row)
        if let_in:
            self.tell("submission")

    def seat(self, placements: Iterable[Placement]) -> None:
        """Launch jobs that run from the start; others wait.

        A job waits if its devices are missing or taken, or if it has not arrived; its first
        placement counts.
        """
        waiting, row_of = set(self.queue), self.table.row_of
        for placement in placements:
            if row_of.get(placement.job) in waiting and self.fleet.has(placement.ranks):
                self._launch(placement)

    def resume(self, job: str, run: Running) -> None:
        """Go on with a launch of before the simulation; it never ends if its speed is unknown."""
        placement = Placement(job, run.ranks, steps_quota=run.steps_quota, until_s=run.until_s)
        if self.fleet.has(run.ranks) and not self.fleet.taken(run.ranks):
            launch = new_launch(self, placement, self._rate(placement))
            started_s = run.since_s + setup_s(self, launch.row)
            launch.start_s, launch.first_step_s = run.since_s, max(self.engine.now_s, started_s)
            self._begin(launch)

    def snapshot(self) -> Snapshot:
        """Snapshot as `controlplane.loop.live.observe` would make it, for the next round."""
        self.number += 1
        if self.pairs is not None:
            self.pairs.look(self.engine.now_s, self.table.columns.kinds)
            self.builder.learn(self.pairs.changed)
        rows = self._shown()
        running = None if self.hides_running else self._running
        self._last = self._last.following(
            now_s=self.engine.now_s,
            seed=self.scenario.seed + self.number,
            nodes=self.fleet.views(),
            kinds=self.builder.kinds(),
            jobs=self.builder.jobs(rows, running, self.launches, self.engine.now_s),
            trigger=Trigger(tuple(dict.fromkeys(self._reasons))),
            memory=dict(self.memory),
        )
        self._reasons.clear()
        return self._last if self.first_runs is None else self.first_runs.shown(self._last)

    def _shown(self) -> tuple[int, ...]:
        """Return the rows of the jobs that the round sees."""
        gates, hides = self.gates, self.hides_running
        if gates.are_open:
            return self.builder.rows(self.queue, self.active, self.number, hides_running=hides)
        queue, active = (
            gates.within_limits(rows, self.launches, self.engine.now_s)
            for rows in (self.queue, self.active)
        )
        rows = self.builder.rows(queue, active, self.number, hides_running=hides)
        return tuple(gates.without_blocked(rows))

    def last_plan(self) -> LastPlan | None:
        """Outcome of the round before; a policy that fails ends the simulation."""
        return self._last_plan

    def apply(self, decision: Decision) -> Applied:
        """Apply the plan: stop, keep, then launch on free devices."""
        plan = decision.plan
        self._take_time()
        todo = changes(self._current(), plan)
        real = [c for c in todo if not isinstance(c, Keep) or c.changes_term]
        for change in real:
            self._stop_or_keep(change)
        self._end_stops()
        launches = [c.placement for c in real if isinstance(c, LAUNCHES)]
        rejected = [r for p in launches if (r := self._launch(p)) is not None]
        self.memory = plan.memory
        self._last_plan = LastPlan.of(plan, decision.carried or self.number, rejected)
        return Applied(todo, tuple(rejected)).with_refused(decision.refused)

    def tell(self, reason: str) -> None:
        """Report an event that needs a round."""
        self._reasons.append(reason)
        self.on_event(reason)

    def lose(self, node: str) -> None:
        """Fail a node: its jobs wait, with the steps of their last checkpoints."""
        if self.fleet.nodes[node].state is NodeState.LOST:
            return
        for launch in self.fleet.launches_on(node):
            self.fail(launch)
        self.fleet.change_state(node, NodeState.LOST)
        self.tell("node_lost")

    def restore(self, node: str) -> None:
        """Make a node ready again."""
        self.fleet.change_state(node, NodeState.READY)
        self.tell("node_joined")

    def drain(self, node: str, until_s: float) -> None:
        """Drain a node by `until_s`, when remaining jobs are stopped."""
        self.fleet.change_state(node, NodeState.DRAINING, until_s)
        self.engine.at(max(until_s, self.engine.now_s), partial(self._end_drain, node, until_s))
        self.tell("node_drained")

    def fail(self, launch: Launch) -> None:
        """Fail a launch: its job waits, with the steps of its last checkpoint."""
        if launch.end_s == inf:
            self.table.failed[launch.row] += 1
            saves = self.table.columns.others["preemptible"][launch.row]
            every_s = self.switches.checkpoint_every_s if saves else 0.0
            self.release(launch, launch.saved_at(self.engine.now_s, every_s))
            self.tell("failure")

    def _end_drain(self, node: str, until_s: float) -> None:
        if self.fleet.nodes[node].drain_until_s == until_s:
            for launch in self.fleet.launches_on(node):
                self.ask_to_stop(launch)

    def _take_time(self) -> None:
        """Let time pass during a decision, whose plan is applied to the later state."""
        takes_s = self.switches.decides_in_s(len(self.active))
        if takes_s:
            self.engine.pass_until(self.engine.now_s + takes_s)

    def _current(self) -> dict[PlacementKey, Running]:
        if self.hides_running:
            return {}
        ids = self.table.columns.ids
        return {(ids[row], TRAINING, 0): self._running[row][0] for row in sorted(self._running)}

    def _stop_or_keep(self, change: Change) -> None:
        match change:
            case Preempt(key=(job, _, _)):
                self.table.preempted[self.table.row_of[job]] += 1
                self._stop_for_plan(self.launches[self.table.row_of[job]])
            case Migrate(placement=Placement(job=job)) | Resize(placement=Placement(job=job)):
                self.table.migrated[self.table.row_of[job]] += 1
                self._stop_for_plan(self.launches[self.table.row_of[job]])
            case Keep(key=(job, _, _), placement=Placement() as wanted):
                self._keep(self.launches[self.table.row_of[job]], wanted)

    def _stop_for_plan(self, launch: Launch) -> None:
        if self._stops_at_once and launch.goes_on:
            self._stopping.append(launch)
        else:
            self.ask_to_stop(launch)

    def _keep(self, launch: Launch, wanted: Placement) -> None:
        launch.until_s, launch.steps_quota = wanted.until_s, wanted.steps_quota
        self._running[launch.row] = (launch.running(),)
        self.ends.by_term(launch)

    def _launch(self, placement: Placement) -> Rejected | None:
        is_stopping, rate = self.table.row_of[placement.job] in self.launches, self._rate(placement)
        why = refusal(self.table, self.fleet, placement, is_stopping=is_stopping, rate=rate)
        if why is None:
            self._begin(new_launch(self, placement, rate))
        return why

    def _rate(self, placement: Placement) -> float:
        if self.colocation is not None:
            return self.colocation.rate(placement)
        row = self.table.row_of[placement.job]
        return self.speeds.alone(self.table.columns, row, placement.ranks)

    def _begin(self, launch: Launch) -> None:
        row = launch.row
        self.table.begin(launch)
        self.journal.begin(launch)
        self.predictions.begin(launch)
        self.fleet.take(launch)
        self.launches[row] = launch
        self._running[row] = (launch.running(),)
        del self.queue[bisect_left(self.queue, row)]
        self._measure(launch)
        self.ends.foresee(launch)
        self.ends.by_walltime(launch)
        if self.first_runs is not None:
            self.first_runs.began(launch)
        self.ends.by_term(launch)
        if self.colocation is not None:
            self.colocation.changed(launch)
        self.ends.started(row)

    def ask_to_stop(self, launch: Launch) -> None:
        """Begin the stop of a launch that goes on; its job waits."""
        if not launch.goes_on:
            return
        launch.stop_wanted_s = self.table.stop_wanted_s[launch.row] = self.engine.now_s
        self._queue(launch)
        self.engine.after(self.scenario.stop_s, partial(self._stopped, launch))

    def _queue(self, launch: Launch) -> None:
        del self._running[launch.row]
        insort(self.queue, launch.row)
        self.predictions.wait(launch.row)

    def _end_stops(self) -> None:
        """End stops that take no time; skip the saved round's number, which seeds depend on."""
        for launch in self._stopping:
            self.release(launch, launch.steps_at(self.engine.now_s))
        self.number += bool(self._stopping)
        self._stopping.clear()

    def _stopped(self, launch: Launch) -> None:
        if launch.end_s == inf:
            self.release(launch, launch.steps_at(self.engine.now_s))
            self.tell(ENDED_STOP)

    def complete(self, launch: Launch) -> None:
        """End a launch whose last step is due: its job is done."""
        if not launch.goes_on or launch.ends_s > self.engine.now_s:
            return
        self.release(launch, int(self.table.total_steps[launch.row]))
        self.predictions.end(launch)
        self.ends.finish(launch.row, JobEnd.COMPLETED)

    def release(self, launch: Launch, steps: int) -> None:
        """Free the devices of a launch; its job waits."""
        if launch.goes_on:
            self._queue(launch)
        self.table.end(launch, self.engine.now_s, steps)
        self.journal.end(launch)
        self.fleet.release(launch)
        self.builder.receive(launch)
        del self.launches[launch.row]
        self._measure(launch)
        if self.colocation is not None:
            self.colocation.changed(launch)

    def _measure(self, launch: Launch) -> None:
        for node in {seat.node for seat in launch.ranks}:
            works = self.fleet.works(node)
            self.meter.use(self.engine.now_s, node, self.fleet.in_use[node], works=works)
