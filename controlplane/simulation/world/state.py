"""State of a simulated world: the cluster, its jobs, and what policies know of them.

The state is changed by the functions of this folder, each for an event: jobs arrive (`arrivals`),
launches begin and stop (`launches`), jobs end (`ends`), nodes fail (`nodes`). A later change is
scheduled as an event (`events`), which `controlplane.simulation.world.world` answers when it is
due.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

import numpy as np

from controlplane.loop.rounds import LastPlan
from controlplane.simulation.cluster.fleet import Fleet
from controlplane.simulation.cluster.launch import Launch
from controlplane.simulation.cluster.meter import Meter, meter_of
from controlplane.simulation.cluster.noise import Noise
from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.cluster.speeds import Speeds, highest_cap_w
from controlplane.simulation.switches import Switches
from controlplane.simulation.workloads.rules import Rules
from controlplane.simulation.world.engine import Engine
from controlplane.simulation.world.events import Event
from controlplane.simulation.world.job_table import JobEnd, JobTable, SimulatedJob
from controlplane.simulation.world.journal import Journal
from controlplane.simulation.world.observation.first_runs import FirstRuns
from controlplane.simulation.world.observation.observed_pairs import ObservedPairs
from controlplane.simulation.world.observation.predictions import Predictions
from controlplane.simulation.world.observation.snapshot_builder import SnapshotBuilder
from controlplane.simulation.world.outcome import Unplaceable
from controlplane.simulation.world.shortcuts import Shortcuts
from controlplane.simulation.world.start_rules import StartRules
from policies.contract.snapshot import Floats, NodeState, Running, Snapshot


@dataclass(slots=True, eq=False)
class WorldState:
    """Simulated cluster with its jobs; jobs are named by their rows of `table`.

    `answer` is called with each event that is due, `want_round` when a round is requested.
    """

    # ---- the simulation
    scenario: Scenario
    switches: Switches
    """Failures, noise and delays."""
    rules: Rules
    """Rules of the workload that policies do not see: dependencies, arrays, ends at walltimes."""
    shortcuts: Shortcuts
    """Parts of rounds that are left out because they would change nothing but time."""
    engine: Engine
    """Virtual clock with the calls that are due later."""
    answer: Callable[[Event], None]
    want_round: Callable[[], None]

    # ---- the truth
    table: JobTable
    start_rules: StartRules
    fleet: Fleet
    speeds: Speeds
    noise: Noise
    meter: Meter
    journal: Journal

    # ---- what policies know
    pairs: ObservedPairs | None
    predictions: Predictions
    first_runs: FirstRuns | None
    builder: SnapshotBuilder
    last_snapshot: Snapshot

    # ---- jobs
    fastest_s: Floats
    """float64[J]: each job's shortest run time; inf before its arrival, or if it can never run."""
    arrived: int = 0
    active: list[int] = field(default_factory=list)
    """Jobs that have arrived and are not over, rising."""
    queue: list[int] = field(default_factory=list)
    """Active jobs that wait, also those whose stop has not ended yet; rising."""
    launches: dict[int, Launch] = field(default_factory=dict)
    """Launches that hold devices, by row of their job; also those that are being stopped."""
    running: dict[int, tuple[Running, ...]] = field(default_factory=dict)
    """Launches that are not being stopped, as snapshots show them, by row of their job."""
    unplaceable: dict[str, Unplaceable] = field(default_factory=dict)
    """Jobs that can never run, by id."""
    end_reasons: dict[int, str] = field(default_factory=dict)
    """Why jobs ended without completion."""

    # ---- rounds
    round_number: int = 0
    round_reasons: list[str] = field(default_factory=list)
    """Reasons of the next round so far."""
    last_plan: LastPlan | None = None
    memory: Mapping[str, Any] = field(default_factory=dict)
    """Memory that the policy's last plan hands to its next one."""

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        engine: Engine,
        table: JobTable,
        *,
        switches: Switches,
        rules: Rules,
        shortcuts: Shortcuts,
        answer: Callable[[Event], None],
        want_round: Callable[[], None],
        splits_energy: bool,
    ) -> WorldState:
        """Return the state before anything has happened. `table`: all jobs of the workload.

        `splits_energy`: meter each job's part of the energy, as always where devices are shared.
        """
        # 1. The truth.
        fleet = Fleet(scenario.nodes, table.columns)
        cap_w = highest_cap_w(scenario.power_cap_w, scenario.power_caps)
        speeds = Speeds(scenario.nodes, scenario.kinds, cap_w, scenario.gpu_types)
        noise = Noise(scenario.seed, switches)
        meter = meter_of(
            fleet,
            scenario.energy,
            len(table),
            noise.power if switches.power_noise else None,
            splits=fleet.shares or splits_energy,
        )

        # 2. What policies know of it.
        pairs = ObservedPairs.of(scenario.kinds, switches.pairs_observed, scenario.seed)
        predictions = Predictions(table, switches.predictor)
        kinds = noise.seen(scenario.kinds if pairs is None else pairs.kinds)
        first_runs = None
        if switches.first_run_steps:
            first_runs = FirstRuns(scenario, table, speeds, switches.first_run_steps)
        return cls(
            scenario=scenario,
            switches=switches,
            rules=rules,
            shortcuts=shortcuts,
            engine=engine,
            answer=answer,
            want_round=want_round,
            table=table,
            start_rules=StartRules(table, rules),
            fleet=fleet,
            speeds=speeds,
            noise=noise,
            meter=meter,
            journal=Journal(),
            pairs=pairs,
            predictions=predictions,
            first_runs=first_runs,
            builder=SnapshotBuilder(table, kinds, scenario, predictions),
            last_snapshot=scenario.empty_snapshot(),
            fastest_s=np.full(len(table), inf),
        )

    # ---- what happens later

    def schedule(self, at_s: float, event: Event) -> None:
        """Have an event answered at this virtual time."""
        self.engine.at(at_s, partial(self.answer, event))

    def schedule_in(self, delay_s: float, event: Event) -> None:
        """Have an event answered in `delay_s` virtual seconds."""
        self.engine.after(delay_s, partial(self.answer, event))

    def request_round(self, reason: str) -> None:
        """Report a change that needs a round."""
        self.round_reasons.append(reason)
        self.want_round()

    # ---- questions

    @property
    def jobs(self) -> Mapping[str, SimulatedJob]:
        """Submitted jobs by id as they are now, for observers."""
        return self.journal.jobs(self.table, self.launches, self.arrived)

    @property
    def completed(self) -> int:
        """Number of jobs that have completed."""
        return int(np.count_nonzero(self.table.state == JobEnd.COMPLETED))

    @property
    def is_over(self) -> bool:
        """Return True if every job has arrived and is over, or can never run."""
        return self.arrived == len(self.table) and not self.active

    @property
    def is_any_node_away(self) -> bool:
        """Return True if a lost node will come back.

        Only nodes that fail by the switch are repaired; any other lost node stays lost.
        """
        if not self.switches.node_failures_per_day:
            return False
        return any(node.state is NodeState.LOST for node in self.fleet.nodes.values())

    @property
    def shows_queue_only(self) -> bool:
        """Return True if snapshots show no running job; False while a node is drained of them."""
        return self.shortcuts.hides_running and not self.fleet.draining

    @property
    def is_settled(self) -> bool:
        """Return True if no round is needed: only starts could follow, and none can be made."""
        # 1. Drains stop jobs.
        if self.fleet.draining:
            return False

        # 2. This policy keeps all started jobs, and no job waits.
        if self.shortcuts.skips_empty and not self.queue:
            return True

        # 3. This policy decides about the queue alone, and no job can start.
        return self.shortcuts.hides_running and (not self.queue or self.fleet.free <= 0)

    def is_active(self, row: int) -> bool:
        """Return True if a job has arrived and is not over."""
        index = bisect_left(self.active, row)
        return index < len(self.active) and self.active[index] == row
