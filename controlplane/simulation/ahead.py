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
from controlplane.simulation.world.outcome import LEFT_WAITING, Progress
from controlplane.simulation.world.run import Simulation
from foundation.garbage import seldom_collected
from policies.contract.assumed import UnknownRuns, jobs_of_unknown_speed
from policies.contract.policy import Policy
from policies.contract.snapshot import (
    Floats,
    NodeState,
    NodeView,
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
    simulation.world.meter.settle(simulation.engine.now_s)
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
        "energy", "gpu_types", "cluster", "currency", "horizon_s", "seed", "power_cap_w",
        "power_caps", "emissions_cost_per_kg", "teams",
    )  # fmt: skip
    return Scenario(
        nodes=tuple(_free(node) for node in snapshot.nodes),
        kinds=(*snapshot.kinds, *BATCH_KINDS),
        round_s=max(SHORTEST_ROUND_S, snapshot.round_s),
        **{name: getattr(snapshot, name) for name in same},
    )


def _free(node: NodeView) -> NodeView:
    return replace(node, devices=tuple(replace(device, held=()) for device in node.devices))


def _resume(simulation: Simulation, snapshot: Snapshot) -> None:
    world = simulation.world
    world.memory = snapshot.memory
    running: tuple[tuple[Running, ...], ...] = world.table.columns.others["running"]
    for job, runs in zip(world.table.columns.ids, running, strict=True):
        for run in runs:
            world.resume(job, run)
    for node in snapshot.nodes:
        if node.state is NodeState.DRAINING and node.drain_until_s is not None:
            world.drain(node.id, node.drain_until_s)


def _run(simulation: Simulation, work: float, until_s: float) -> bool:
    """Run to the end; False if the rounds have seen `work` jobs or the time is over before."""
    seen, rounds = 0, 0
    while simulation.engine.step():
        if simulation.round_count > rounds:
            rounds = simulation.round_count
            seen += len(simulation.world.active)
            if (seen >= work or monotonic() >= until_s) and simulation.world.active:
                return False
    return True


def _result(simulation: Simulation, *, is_cut: bool) -> Ahead:
    world, table = simulation.world, simulation.world.table
    end_s = _ends(simulation)
    late_s = np.fmax(0.0, end_s - table.columns.numbers["due_s"])
    lateness = table.columns.numbers["tardiness_weight"] * late_s
    ended = np.isfinite(end_s)
    spans = (end_s - table.columns.numbers["arrival_s"])[ended]
    slowdown = np.maximum(1.0, spans / np.maximum(SHORTEST_S, world.fastest_s[ended]))
    return Ahead(
        _found(simulation, end_s, lateness, is_cut=is_cut),
        world.meter.energy_cost,
        world.meter.energy_kwh,
        float(lateness.sum()),
        float(spans.mean()) if len(spans) else nan,
        float(slowdown.max()) if len(spans) else nan,
        int((table.preempted + table.migrated).sum()),
        simulation.round_count,
        is_cut,
    )


def _found(
    simulation: Simulation, end_s: Floats, lateness: Floats, *, is_cut: bool
) -> dict[str, JobAhead]:
    world, table, meter = simulation.world, simulation.world.table, simulation.world.meter
    assert isinstance(meter, SplitMeter)
    first: dict[int, int] = {}
    for launch, of in enumerate(world.journal.row):
        first.setdefault(of, launch)
    found = {}
    for job, row in table.row_of.items():
        number, end = first.get(row), float(end_s[row])
        ranks = () if number is None else world.journal.ranks[number]
        found[job] = JobAhead(
            job,
            None if number is None else world.journal.start_s[number],
            end if isfinite(end) else None,
            tuple(dict.fromkeys(rank.node for rank in ranks)),
            sum(len(rank.devices) for rank in ranks),
            int(table.preempted[row] + table.migrated[row]),
            float(meter.job_cost[row]),
            float(lateness[row]),
            "" if isfinite(end) else _why(simulation, row, is_cut=is_cut),
        )
    return found


def _ends(simulation: Simulation) -> Floats:
    """float64[J]: completions, and expected ends of what still runs; nan if unknown."""
    end_s = simulation.world.table.completed_s.copy()
    for row, launch in simulation.world.launches.items():
        end_s[row] = launch.ends_s if launch.ends_s < inf else nan
    return end_s


def _why(simulation: Simulation, row: int, *, is_cut: bool) -> str:
    world = simulation.world
    if (found := world.unplaceable.get(world.table.columns.ids[row])) is not None:
        return found.reason
    if row in world.ends.reasons:
        return world.ends.reasons[row]
    if row in world.launches:
        is_batch = world.table.columns.others["batch"][row]
        return UNKNOWN_RUN_TIME if is_batch else UNKNOWN_SPEED
    if is_cut:
        return CUT
    endless = any(launch.ends_s == inf for launch in world.launches.values())
    return BEHIND_UNKNOWN if endless else LEFT_WAITING
