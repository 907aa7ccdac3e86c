"""Simulation of a live snapshot to the end of its queue, with any policy and without new arrivals.

    found = run_ahead(snapshot, policy, work=20_000)
    found.jobs["17"].start_s, found.energy_cost, found.is_cut

Jobs run on from where they are; profile runs end at once. Stops take no time. Batch jobs and jobs
without GPUs run for what is expected of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite, nan
from time import monotonic

import numpy as np

from controlplane.simulation.batch_ahead import BATCH_KINDS, jobs_ahead
from controlplane.simulation.cluster.meter import SplitMeter
from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.report.run_metrics import SHORTEST_S
from controlplane.simulation.world.launches import resume
from controlplane.simulation.world.nodes import drain_node
from controlplane.simulation.world.outcome import LEFT_WAITING, Progress
from controlplane.simulation.world.run import Simulation
from controlplane.simulation.world.state import WorldState
from foundation.garbage import seldom_collected
from policies.contract.assumed import UnknownRuns, jobs_of_unknown_speed
from policies.contract.policy import Policy
from policies.contract.snapshot import (
    Floats,
    NodeState,
    NodeView,
    RankPlacement,
    Running,
    Snapshot,
)

SHORTEST_ROUND_S = 1.0

CUT = "the simulation was cut before its end was known"
UNKNOWN_SPEED = "its speed where it runs is not known"
UNKNOWN_RUN_TIME = "its run time is not known: it has no walltime, and no similar job has ended"
FIRST_RUN = "its kind runs for the first time"
BEHIND_FIRST_RUN = "a job before it runs for the first time"
BEHIND_UNKNOWN = "a job that runs before it has no known end; give that job a walltime"


@dataclass(frozen=True, slots=True)
class JobAhead:
    """Predicted rest of a job; times are None where it never starts or ends, or it is not known.

    `start_s`, `nodes` and `gpus` are of its first launch, the present one of a running job. `why`:
    why it has no end.
    """

    job: str
    start_s: float | None
    end_s: float | None
    nodes: tuple[str, ...] = ()
    gpus: int = 0
    moves: int = 0
    energy_cost: float = 0.0
    lateness_cost: float = 0.0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Ahead:
    """Predicted rest of a queue: jobs by id, and totals from now on.

    `mean_completion_s` is of arrival to end, `worst_slowdown` the greatest bounded slowdown, both
    of the jobs that end (nan: none). `moves`: pre-emptions and migrations. `is_cut`: the budget of
    work or time was used up.
    """

    jobs: Mapping[str, JobAhead]
    energy_cost: float
    energy_kwh: float
    lateness_cost: float
    mean_completion_s: float
    worst_slowdown: float
    moves: int
    rounds: int
    is_cut: bool


def run_ahead(
    snapshot: Snapshot,
    policy: Policy,
    *,
    work: float = inf,
    budget_s: float = inf,
    on_progress: Callable[[Progress], None] | None = None,
) -> Ahead:
    """Simulate until nothing is left to do, rounds have seen `work` jobs, or the time is over.

    The snapshot's memory must be the policy's own. SimulationError if a round fails.
    """
    simulation = Simulation(
        _scenario(snapshot),
        jobs_ahead(snapshot),
        policy,
        snapshot.now_s,
        shortcuts=True,
        keep_rounds=False,
        splits_energy=True,
    )
    simulation.on_progress = on_progress
    with seldom_collected():
        simulation.engine.step()  # in which all jobs arrive
        _resume(simulation, snapshot)
        is_cut = not _run(simulation, work, monotonic() + budget_s)
    simulation.state.meter.settle(simulation.engine.now_s)
    return _result(simulation, is_cut=is_cut)


def without_assumed_times(ahead: Ahead, snapshot: Snapshot) -> Ahead:
    """Return the simulated queue without ends and starts that rest on assumed speeds.

    A start behind a run of unknown length is unknown, too, and no interval, though people read one
    for the run itself: the bounds of several runs do not add up to bounds of a start, and with a
    short run the policy might have chosen another order than with a long one.
    """
    unknown = jobs_of_unknown_speed(snapshot)
    if not unknown:
        return ahead

    # 1. Runs of assumed speed, by their simulated start.
    runs = UnknownRuns()
    for job in unknown & ahead.jobs.keys():
        start_s = ahead.jobs[job].start_s
        if start_s is not None:
            runs.add(ahead.jobs[job].nodes, start_s)

    # 2. Their ends are left out, and all that comes after them.
    columns = snapshot.jobs.columns
    runs_now = {columns.ids[row] for row, of in enumerate(columns.others["running"]) if of}
    jobs = {}
    for job, of_job in ahead.jobs.items():
        start_s = of_job.start_s
        if job not in runs_now and start_s is not None and runs.precede(of_job.nodes, start_s):
            of_job = replace(of_job, start_s=None, end_s=None, why=BEHIND_FIRST_RUN)
        if job in unknown:
            of_job = replace(of_job, end_s=None, why=of_job.why or FIRST_RUN)
        jobs[job] = of_job
    return replace(ahead, jobs=jobs)


def _scenario(snapshot: Snapshot) -> Scenario:
    same = (
        "energy",
        "gpu_types",
        "cluster",
        "currency",
        "horizon_s",
        "seed",
        "power_cap_w",
        "power_caps",
        "emissions_cost_per_kg",
        "teams",
    )
    return Scenario(
        nodes=tuple(_free(node) for node in snapshot.nodes),
        kinds=(*snapshot.kinds, *BATCH_KINDS),
        round_s=max(SHORTEST_ROUND_S, snapshot.round_s),
        **{name: getattr(snapshot, name) for name in same},
    )


def _free(node: NodeView) -> NodeView:
    return replace(node, devices=tuple(replace(device, held=()) for device in node.devices))


def _resume(simulation: Simulation, snapshot: Snapshot) -> None:
    """Let the simulation go on from a snapshot: its launches, its drains, the policy's memory."""
    state = simulation.state
    state.memory = snapshot.memory
    columns = state.table.columns
    running: tuple[tuple[Running, ...], ...] = columns.others["running"]
    for job, runs in zip(columns.ids, running, strict=True):
        for run in runs:
            resume(state, job, run)
    for node in snapshot.nodes:
        if node.state is NodeState.DRAINING and node.drain_until_s is not None:
            drain_node(state, node.id, node.drain_until_s)


def _run(simulation: Simulation, work: float, until_s: float) -> bool:
    """Run to the end; False if the rounds have seen `work` jobs or the time is over before."""
    jobs_seen = 0
    rounds = 0
    active = simulation.state.active
    while simulation.engine.step():
        if simulation.round_count > rounds:
            rounds = simulation.round_count
            jobs_seen += len(active)
            if active and (jobs_seen >= work or monotonic() >= until_s):
                return False
    return True


def _result(simulation: Simulation, *, is_cut: bool) -> Ahead:
    """Return the rest of the queue as it was simulated."""
    state = simulation.state
    table = state.table
    numbers = table.columns.numbers
    end_s = _ends(state)
    late_s = np.fmax(0.0, end_s - numbers["due_s"])
    lateness = numbers["tardiness_weight"] * late_s
    ended = np.isfinite(end_s)
    completion_s = (end_s - numbers["arrival_s"])[ended]
    shortest_s = np.maximum(SHORTEST_S, state.fastest_s[ended])
    slowdown = np.maximum(1.0, completion_s / shortest_s)
    return Ahead(
        _jobs(state, end_s, lateness, is_cut=is_cut),
        energy_cost=state.meter.energy_cost,
        energy_kwh=state.meter.energy_kwh,
        lateness_cost=float(lateness.sum()),
        mean_completion_s=float(completion_s.mean()) if len(completion_s) else nan,
        worst_slowdown=float(slowdown.max()) if len(slowdown) else nan,
        moves=int((table.preempted + table.migrated).sum()),
        rounds=simulation.round_count,
        is_cut=is_cut,
    )


def _jobs(
    state: WorldState, end_s: Floats, lateness: Floats, *, is_cut: bool
) -> dict[str, JobAhead]:
    """Return the rest of each job by id. `end_s`, `lateness`: float64[J]."""
    table = state.table
    journal = state.journal
    meter = state.meter
    assert isinstance(meter, SplitMeter)
    first_launch: dict[int, int] = {}
    for number, row in enumerate(journal.row):
        first_launch.setdefault(row, number)
    jobs = {}
    for job, row in table.row_of.items():
        start_s = None
        ranks: tuple[RankPlacement, ...] = ()
        if row in first_launch:
            start_s = journal.start_s[first_launch[row]]
            ranks = journal.ranks[first_launch[row]]
        has_end = isfinite(end_s[row])
        jobs[job] = JobAhead(
            job,
            start_s,
            float(end_s[row]) if has_end else None,
            nodes=tuple(dict.fromkeys(rank.node for rank in ranks)),
            gpus=sum(len(rank.devices) for rank in ranks),
            moves=int(table.preempted[row] + table.migrated[row]),
            energy_cost=float(meter.job_cost[row]),
            lateness_cost=float(lateness[row]),
            why="" if has_end else _reason_without_end(state, row, is_cut=is_cut),
        )
    return jobs


def _ends(state: WorldState) -> Floats:
    """float64[J]: completions, and expected ends of what still runs; nan if unknown."""
    end_s = state.table.completed_s.copy()
    for row, launch in state.launches.items():
        end_s[row] = launch.ends_s if launch.ends_s < inf else nan
    return end_s


def _reason_without_end(state: WorldState, row: int, *, is_cut: bool) -> str:
    """Return why a job has no end."""
    columns = state.table.columns
    unplaceable = state.unplaceable.get(columns.ids[row])
    if unplaceable is not None:
        return unplaceable.reason
    if row in state.end_reasons:
        return state.end_reasons[row]
    if row in state.launches:
        return UNKNOWN_RUN_TIME if columns.others["batch"][row] else UNKNOWN_SPEED
    if is_cut:
        return CUT
    is_any_endless = any(launch.ends_s == inf for launch in state.launches.values())
    return BEHIND_UNKNOWN if is_any_endless else LEFT_WAITING
