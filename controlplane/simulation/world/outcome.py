"""Result of a simulation: figures by job, totals, stays; decision times apart."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from controlplane.simulation.switches import Switches
from controlplane.simulation.world.job_table import JobEnd
from policies.contract.snapshot import Bools, Floats, Ints
from profiling.pairs.estimates import ErrorSummary
from profiling.run_times.errors import RunTimeErrors

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
    the GPUs held, a shared one by its share. `job_kwh`, `job_cost`: each job's part of `energy_kwh`
    and `energy_cost` (`meter.SplitMeter`); empty where no device is shared. `fastest_s`: best run
    time from scratch (inf if unplaceable). `preemptions`: stops without another place,
    `migrations`: with another place or size, `failures`: failed launches or lost nodes.

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
    rounds_changed: int = 0
    """Rounds that stopped, moved or resized a running job."""
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
        completed = self.state == JobEnd.COMPLETED
        ran: Bools = completed | (self.state == JobEnd.KILLED)
        return ran

    @property
    def jct_s(self) -> Floats:
        """float64[J]: end - arrival; nan for a job that did not run to its end."""
        spans: Floats = np.where(self.ran, self.ended_s, np.nan) - self.arrival_s
        return spans
