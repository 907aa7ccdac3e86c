"""Result of a simulation: figures by job, totals, stays; decision times apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from controlplane.simulation.cluster.meter import SplitMeter, remaining_work
from controlplane.simulation.switches import Switches
from controlplane.simulation.world.job_table import JobEnd
from policies.contract.plan import seat_demand
from policies.contract.snapshot import Bools, Floats, Ints
from profiling.pairs.estimates import ErrorSummary
from profiling.run_times.errors import RunTimeErrors

if TYPE_CHECKING:
    from controlplane.simulation.world.run import Simulation

LEFT_WAITING = "the policy left it waiting although nothing else was left to wait for"


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run: virtual time, jobs arrived, jobs done or unplaceable, all jobs."""

    now_s: float
    arrived: int
    completed: int
    total: int


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """Job that was never completed: its row in the workload, its id, and the reason."""

    index: int
    job: str
    reason: str


@dataclass(frozen=True, slots=True)
class Stays:
    """Placements over time, by start: one row per launch and node.

    `job` int64[S] row in the workload; `node` int64[S] row in `Outcome.nodes`; `devices[i]` ids of
    the node's devices; `start_s`, `end_s` float64[S].
    """

    job: Ints
    node: Ints
    devices: tuple[tuple[str, ...], ...]
    start_s: Floats
    end_s: Floats

    def __len__(self) -> int:
        return len(self.job)


@dataclass(frozen=True, slots=True)
class Utilisation:
    """GPUs in use: `gpus_in_use[i]` int64 from `time_s[i]` to the next; `gpus` in all."""

    time_s: Floats
    gpus_in_use: Ints
    gpus: int


@dataclass(frozen=True, slots=True)
class PairEstimates:
    """Errors of estimated pairs that share a GPU.

    `all`: of every unmeasured pair, against the truth; `ran`: of those that ran, against their
    first measurement. `measured`: measurements in the run.
    """

    all: ErrorSummary
    ran: ErrorSummary
    measured: int


def _no_floats() -> Floats:
    return np.zeros(0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Run of one policy. Arrays have one entry per job in workload order; times are virtual
    seconds.

    `first_start_s`, `completion_s`, `ended_s`: nan if never; `state` (JobEnd) is that of the job's
    end, with a completion or without, whose reasons are `not_completed`. `due_s`: inf if none;
    `tardiness_weight` cost per second. `busy_s`: time on devices over all launches; `gpu_s`: times
    the GPUs held, a shared one
    by its share. `job_kwh`, `job_cost`: each job's part of `energy_kwh` and `energy_cost`
    (`meter.SplitMeter`); empty where no device is shared. `fastest_s`: best run time from scratch
    (inf if unplaceable). `preemptions`: stops without another place, `migrations`: with another
    place or size, `failures`: failed launches or lost nodes.

    `tardiness_cost` is sum_j w_j max(0, completion_j - due_j) over completed jobs. `unplaceable`
    jobs can never run, `unfinished` ones were left waiting; `unfinished_cost` is the least energy
    and tardiness that these would still cost, each started alone at the end. `energy_kwh` is IT
    energy, `energy_cost` with tariff and PUE, `emissions_kg` CO2. `makespan_s`: from first arrival
    to last completion. `rounds_skipped` could not have changed anything. `pair_estimates`: only
    with `pairs_observed`. `run_time_errors`: of predictions at launches. `decision_s`: wall seconds
    of each decision, all that differs between runs of one seed.
    """

    policy: str
    workload: str
    seed: int
    switches: Switches
    job_ids: tuple[str, ...]
    nodes: tuple[str, ...]
    arrival_s: Floats
    first_start_s: Floats
    completion_s: Floats
    due_s: Floats
    tardiness_weight: Floats
    busy_s: Floats
    gpu_s: Floats
    fastest_s: Floats
    launches: Ints
    preemptions: Ints
    migrations: Ints
    failures: Ints
    energy_kwh: float
    energy_cost: float
    tardiness_cost: float
    emissions_kg: float
    rounds: int
    makespan_s: float
    stays: Stays
    utilisation: Utilisation
    ended_s: Floats
    state: Ints
    used: Mapping[str, float] = field(default_factory=dict)
    """Mean fraction of cores, memory and named resources in use, over the makespan."""
    not_completed: tuple[Unplaceable, ...] = ()
    unplaceable: tuple[Unplaceable, ...] = ()
    unfinished: tuple[Unplaceable, ...] = ()
    unfinished_cost: float = 0.0
    rounds_skipped: int = 0
    round_jobs: int | None = None
    gather_s: float = 0.0
    decision_s: Floats = field(default_factory=_no_floats)
    job_kwh: Floats = field(default_factory=_no_floats)
    job_cost: Floats = field(default_factory=_no_floats)
    pair_estimates: PairEstimates | None = None
    run_time_errors: RunTimeErrors = field(default_factory=RunTimeErrors)

    @property
    def total_cost(self) -> float:
        """Energy and tardiness, those of unfinished jobs too, in the cluster's currency."""
        return self.energy_cost + self.tardiness_cost + self.unfinished_cost

    @property
    def tardiness_s(self) -> Floats:
        """float64[J]: max(0, completion - due); 0 without due date, nan if unfinished."""
        late: Floats = np.maximum(0.0, self.completion_s - self.due_s)
        return late

    @property
    def ran(self) -> Bools:
        """bool[J]: jobs that ran to their end: completed, or killed at their walltime."""
        found: Bools = (self.state == JobEnd.COMPLETED) | (self.state == JobEnd.KILLED)
        return found

    @property
    def jct_s(self) -> Floats:
        """float64[J]: end - arrival; nan for a job that did not run to its end."""
        spans: Floats = np.where(self.ran, self.ended_s, np.nan) - self.arrival_s
        return spans


def outcome_of(simulation: Simulation, name: str, workload: str) -> Outcome:
    """Return the outcome of the simulation, jobs by arrival."""
    world, scenario = simulation.world, simulation.scenario
    table, meter, columns = world.table, world.meter, world.table.columns
    arrival_s, due_s = columns.numbers["arrival_s"], columns.numbers["due_s"]
    weight, completion_s = columns.numbers["tardiness_weight"], table.completed_s
    late = np.where(np.isnan(completion_s), 0.0, np.maximum(0.0, completion_s - due_s))
    ended = table.ended_s[~np.isnan(table.ended_s) & ~np.isnan(table.first_start_s)]
    makespan_s = float(ended.max() - arrival_s[0]) if len(ended) else 0.0
    own_arrival_s = np.maximum(arrival_s, world.gates.ready_s)
    split = meter if isinstance(meter, SplitMeter) else None
    gpus = sum(len(node.devices) for node in scenario.nodes)
    return Outcome(
        policy=name, workload=workload, seed=scenario.seed, switches=simulation.switches,
        job_ids=columns.ids, nodes=tuple(world.fleet.nodes), arrival_s=own_arrival_s,
        first_start_s=table.first_start_s, completion_s=completion_s, due_s=due_s,
        tardiness_weight=weight, busy_s=table.busy_s, gpu_s=table.gpu_s,
        fastest_s=world.fastest_s, launches=table.launched, preemptions=table.preempted,
        migrations=table.migrated, failures=table.failed, energy_kwh=meter.energy_kwh,
        energy_cost=meter.energy_cost, tardiness_cost=float((weight * late).sum()),
        emissions_kg=meter.emissions_g / 1000.0, rounds=simulation.round_count,
        makespan_s=makespan_s, ended_s=table.ended_s, state=table.state,
        used=_used(simulation, makespan_s),
        not_completed=tuple(
            Unplaceable(row, columns.ids[row], why)
            for row, why in sorted(world.ends.reasons.items())
        ),
        stays=world.journal.stays(world.fleet.index),
        utilisation=world.journal.utilisation(gpus, shared=world.fleet.shares),
        unplaceable=tuple(sorted(world.unplaceable.values(), key=lambda u: u.index)),
        unfinished=tuple(Unplaceable(row, columns.ids[row], LEFT_WAITING) for row in world.active),
        unfinished_cost=_unfinished_cost(simulation), rounds_skipped=simulation.rounds_skipped,
        round_jobs=scenario.round_jobs, gather_s=scenario.gather_s,
        decision_s=np.array(simulation.decision_s),
        pair_estimates=None if world.pairs is None else world.pairs.estimates(),
        run_time_errors=RunTimeErrors.of(world.predictions.ended),
        job_kwh=np.zeros(0) if split is None else split.job_kwh,
        job_cost=np.zeros(0) if split is None else split.job_cost,
    )  # fmt: skip


def _unfinished_cost(simulation: Simulation) -> float:
    """Least energy and tardiness that unfinished jobs still cost if each starts alone now."""
    world, scenario, now_s = simulation.world, simulation.scenario, simulation.engine.now_s
    table, numbers, rows = world.table, world.table.columns.numbers, world.active
    steps = (table.total_steps - table.steps_done)[rows]
    left = remaining_work(
        table.columns, rows, steps, now_s, scenario.nodes, scenario.kinds, scenario.energy
    )
    due_s, weight = numbers["due_s"][rows], numbers["tardiness_weight"][rows]
    late_s = np.maximum(0.0, now_s + left.run_s - due_s)
    return float(left.energy_cost.sum() + (weight * late_s)[weight > 0.0].sum())


def _used(simulation: Simulation, makespan_s: float) -> dict[str, float]:
    """Mean fraction of each resource but GPUs in use; only where all nodes have a limit of it."""
    world, nodes = simulation.world, simulation.scenario.nodes
    columns, journal = world.table.columns, world.journal
    has: dict[str, float] = defaultdict(float)
    for node in nodes:
        amounts = {"cores": node.cores, "memory_gb": node.memory_gb, **dict(node.resources)}
        for name, amount in amounts.items():
            has[name] += amount
    used: dict[str, float] = defaultdict(float)
    for number, ranks in enumerate(journal.ranks if makespan_s > 0.0 else ()):
        end_s = min(journal.end_s[number], simulation.engine.now_s)
        for seat in ranks:
            demand = seat_demand(columns, journal.row[number], seat.units)
            for name, amount in demand.items():
                used[name] += amount * (end_s - journal.start_s[number])
    return {
        name: used[name] / (amount * makespan_s)
        for name, amount in sorted(has.items())
        if amount > 0.0 and isfinite(amount) and makespan_s > 0.0
    }
