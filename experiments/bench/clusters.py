"""Clusters and workloads to measure on: those of ANDREAS' first scenario, and a year's jobs."""

from math import inf

import numpy as np

from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.workloads.andreas import SECONDS_PER_EPOCH
from controlplane.simulation.workloads.base import Workload
from experiments.reproduce.andreas.armida import PRICE_PER_KWH, PUE, a_node
from policies.contract.snapshot import (
    Floats,
    JobColumns,
    JobPhase,
    Jobs,
    JobView,
    KindView,
    NodeView,
    PriceInterval,
    Snapshot,
    Source,
    Throughput,
)

NAMES = list(SECONDS_PER_EPOCH)
KINDS = tuple(
    KindView(
        name,
        throughputs=tuple(Throughput(t, g, 1.0 / s, Source.MEASURED) for (t, g), s in of.items()),
    )
    for name, of in SECONDS_PER_EPOCH.items()
)
"""A step is an epoch."""

ENERGY = (PriceInterval(0.0, inf, PRICE_PER_KWH, PUE),)
LEAST_WEIGHT, MOST_WEIGHT = 0.00025371, 0.00044399
EPOCHS = (120, 160, 320)
YEAR_S = 365 * 86_400.0
MILLION = 1_000_000


def a_cluster(nodes: int, jobs: int, seed: int = 0) -> Snapshot:
    """A snapshot of waiting jobs, due dates from hopeless to comfortable."""
    rng = np.random.default_rng(seed)
    epochs, due = rng.choice(EPOCHS, jobs), rng.uniform(1.0, 6.0, jobs)
    names = rng.choice(NAMES, jobs)
    weights = rng.uniform(LEAST_WEIGHT, MOST_WEIGHT, jobs)
    rows = []
    for i in range(jobs):
        name, work = str(names[i]), float(epochs[i])
        due_s = 5000.0 + i + float(due[i]) * work * SECONDS_PER_EPOCH[name]["V100", 1]
        rows.append(_job(i, name, float(i), work, due_s, float(weights[i])))
    columns = Jobs(JobColumns.of(rows))
    return Snapshot("bench", 10_000.0, 300.0, seed, _nodes(nodes), KINDS, columns, energy=ENERGY)


def andreas(nodes: int, jobs: int, seed: int = 1) -> tuple[Scenario, Workload]:
    """Bursts of ten jobs at the load of the paper's margins."""
    rng = np.random.default_rng(seed)
    rows, now_s = [], 0.0
    for i in range(jobs):
        name, epochs = str(rng.choice(NAMES)), float(rng.choice(EPOCHS))
        run_s = {config: epochs * s for config, s in SECONDS_PER_EPOCH[name].items()}
        rate = 2 * nodes / run_s["V100", 1] / (4 if i // 10 % 2 else 1)
        now_s += rng.exponential(1.0 / rate)
        due_s = now_s + rng.uniform(run_s["V100", 2], run_s["T4", 1])
        rows.append(_job(i, name, now_s, epochs, due_s, rng.uniform(LEAST_WEIGHT, MOST_WEIGHT)))
    workload = Workload(f"N={nodes},J={jobs}", Jobs(JobColumns.of(rows)), KINDS)
    return Scenario(_nodes(nodes), KINDS, ENERGY), workload


def year(jobs: int, seed: int = 1) -> tuple[Scenario, Workload]:
    """Jobs over their part of a year of a million on 100 nodes of four GPUs, which are 70% busy."""
    rng = np.random.default_rng(seed)
    arrival_s = np.sort(rng.uniform(0.0, YEAR_S * jobs / MILLION, jobs))
    which = rng.integers(len(NAMES), size=jobs)
    run_s = rng.lognormal(np.log(3600.0), 1.2, jobs)
    epoch_s = np.array([SECONDS_PER_EPOCH[name]["V100", 1] for name in NAMES])
    steps = np.maximum(1.0, np.rint(run_s / epoch_s[which]))
    due_s = arrival_s + run_s * rng.uniform(1.0, 6.0, jobs)
    columns = _columns(arrival_s, [NAMES[w] for w in which], steps, due_s)
    nodes = tuple(a_node(f"n{i}", "V100", 4) for i in range(100))
    return Scenario(nodes, KINDS, ENERGY), Workload(f"{jobs} jobs of a year", Jobs(columns), KINDS)


def _job(
    i: int, kind: str, arrival_s: float, epochs: float, due_s: float, weight: float
) -> JobView:
    return JobView(
        f"j{i}",
        kind,
        arrival_s,
        epochs,
        1,
        2,
        due_s=due_s,
        tardiness_weight=weight,
        total_steps=epochs,
    )


def _nodes(count: int) -> tuple[NodeView, ...]:
    """Alternately two V100 and one T4."""
    return tuple(a_node(f"n{i}", *(("T4", 1) if i % 2 else ("V100", 2))) for i in range(count))


def _columns(arrival_s: Floats, kinds: list[str], steps: Floats, due_s: Floats) -> JobColumns:
    plain, size = JobColumns.of([JobView("j", "k", 0.0, 1.0, 1, 2)]), len(arrival_s)
    given = {"arrival_s": arrival_s, "remaining_steps": steps, "total_steps": steps, "due_s": due_s}
    given["tardiness_weight"] = np.full(size, 0.0003)
    numbers = {
        name: given.get(name, np.repeat(column, size)) for name, column in plain.numbers.items()
    }
    counts = {name: np.repeat(column, size) for name, column in plain.counts.items()}
    others = {name: column * size for name, column in plain.others.items()}
    others["phase"] = (JobPhase.WAITING,) * size
    return JobColumns(tuple(f"j{i}" for i in range(size)), tuple(kinds), numbers, counts, others)
