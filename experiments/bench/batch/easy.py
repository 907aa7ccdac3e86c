"""Batch jobs under backfilling: `python -m experiments.bench.batch.easy [--whole]`.

Eurora's 5,930 jobs on its 64 nodes (waits beside the prototype's engine, which knows nothing but
batch jobs), and 100,000 jobs on 64 nodes. A decision is a whole call of the policy. Without
`--whole` a tenth of the 100,000 jobs is run, and the goal is a tenth too.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.workloads import load
from controlplane.simulation.workloads.base import Workload
from controlplane.simulation.world.outcome import Outcome
from controlplane.simulation.world.run import simulate
from experiments.bench.figures import Figure, figure, seconds, show
from policies.contract.plan import Plan
from policies.contract.policy import Policy, keeps_started, places_batch
from policies.contract.snapshot import DeviceView, NodeView, PriceInterval, Snapshot
from policies.host.registry import make

DATA = Path(os.environ.get("LOADMASTER_DATA", "../shared/data")) / "hpc"
BYTES_PER_KIB, BYTES_PER_GB = 1024.0, 1e9
ENERGY = (PriceInterval(0.0, inf, 0.2, 1.2),)
MANY = 100_000
MANY_GOALS_S = {"backfilling": 60.0, "area_backfilling": 600.0}
"""Goal of the simulation of all these jobs under each policy."""
GATHER_S = 30.0
DECISION_GOAL_MS = 2.0


@dataclass(frozen=True)
class Waits:
    """Mean wait (s), mean slowdown and longest wait (s)."""

    wait_s: float
    slowdown: float
    longest_s: float


@dataclass(frozen=True)
class Clocked:
    """Policy whose decisions are timed: processor time of each whole call (s)."""

    policy: Policy
    took_s: list[float] = field(default_factory=list)

    @property
    def places_batch(self) -> bool:
        return places_batch(self.policy)

    @property
    def keeps_started(self) -> bool:
        return keeps_started(self.policy)

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Return the policy's plan."""
        began_s = process_time()
        plan = self.policy(snapshot)
        self.took_s.append(process_time() - began_s)
        return plan


PROTOTYPE: Mapping[str, Waits] = {
    "arrival": Waits(1666.0, 6.33, 46_491.0),
    "shortest": Waits(1568.0, 4.08, 112_211.0),
    "slowdown": Waits(1500.0, 4.39, 67_856.0),
}
"""Figures of the prototype under EASY with best fit and walltimes, by order."""


def eurora() -> tuple[Scenario, Workload]:
    """Return Eurora's four days: 32 nodes with two MICs, then 32 with two GPUs, of 16 cores."""
    rows = [line.split() for line in (DATA / "eurora-nodes-64.txt").read_text().splitlines()]
    nodes = tuple(_node(*map(int, row[:5])) for row in rows if row)
    spec: dict[str, Any] = {"type": "swf", "path": str(DATA / "eurora-2014-4days.swf")}
    workload = load({**spec, "gpus": "batch_fields"}, 1, gpu_types=["GPU", ""])
    return Scenario(nodes, workload.kinds, ENERGY), workload


def many(jobs: int = MANY, seed: int = 1) -> tuple[Scenario, Workload]:
    """Return jobs of 1 to 16 cores by a log-normal run time, which keep 64 nodes 85% busy."""
    rng = np.random.default_rng(seed)
    run_s = np.maximum(1.0, np.rint(rng.lognormal(np.log(600.0), 1.5, jobs)))
    cores = rng.choice([1, 2, 4, 8, 16], jobs, p=[0.5, 0.2, 0.15, 0.1, 0.05])
    gap_s = float((run_s * cores).mean()) / (0.85 * 64 * 16)
    arrival_s = np.floor(np.cumsum(rng.exponential(gap_s, jobs)))
    asked_s = np.ceil(run_s * rng.uniform(1.0, 5.0, jobs) / 60.0) * 60.0
    lines = [
        f"{i} {at:.0f} -1 {run:.0f} {n} -1 -1 {n} {wall:.0f} -1 1 {i % 50} 1 -1 0 -1 -1 -1"
        for i, (at, run, n, wall) in enumerate(
            zip(arrival_s, run_s, cores, asked_s, strict=True), start=1
        )
    ]
    spec = {"type": "swf", "text": "\n".join(lines), "gpus": "batch"}
    workload = load(spec, 1, gpu_types=[""])
    nodes = tuple(_node(n, 16, 0, 0, 32 << 20) for n in range(64))
    return Scenario(nodes, workload.kinds, ENERGY), workload


def figures(*, whole: bool) -> Iterator[Figure]:
    """Decisions and waits of Eurora by order, then the many jobs."""
    for order, goal in PROTOTYPE.items():
        yield from _eurora(order, goal)
    yield from of_many(MANY if whole else MANY // 10)


def of_many(jobs: int) -> Iterator[Figure]:
    """Whole simulations of so many of the 100,000 jobs under both policies."""
    for name, goal_s in MANY_GOALS_S.items():
        scenario, workload = many(jobs)
        policy = Clocked(make(name))
        gathered = replace(scenario, gather_s=GATHER_S)
        took_s, run = seconds(partial(_run, gathered, workload, policy))
        facts = {"rounds": run.rounds, "deciding_s": round(sum(policy.took_s), 2)}
        words = f"{name}, {jobs:,} of {MANY:,} jobs, 64 nodes, a round every {GATHER_S:g} s at most"
        yield figure(words, took_s, goal_s * jobs / MANY, "s", **facts)


def _eurora(order: str, goal: Waits) -> Iterator[Figure]:
    policy = Clocked(make("backfilling", {"order": order}))
    took_s, run = seconds(partial(_run, *eurora(), policy))
    decisions_ms, found = 1000.0 * np.array(policy.took_s), waits(run)
    name = f"easy by {order}, Eurora"
    facts = {"p99_ms": round(float(np.quantile(decisions_ms, 0.99)), 3), "rounds": run.rounds}
    mean_ms = float(decisions_ms.mean())
    yield figure(f"{name}, a decision", mean_ms, DECISION_GOAL_MS, "ms", **facts)
    yield figure(f"{name}, whole", took_s, None, "s")
    yield figure(f"{name}, mean wait", found.wait_s, goal.wait_s, "s")
    yield figure(f"{name}, mean slowdown", found.slowdown, goal.slowdown, "")
    yield figure(f"{name}, longest wait", found.longest_s, goal.longest_s, "s")


def waits(run: Outcome) -> Waits:
    """Return the waits of a run; a job of less than a second counts as one of a second."""
    wait_s = run.first_start_s - run.arrival_s
    run_s = run.completion_s - run.first_start_s
    slowdown = (wait_s + run_s) / np.maximum(run_s, 1.0)
    return Waits(float(wait_s.mean()), float(slowdown.mean()), float(wait_s.max()))


def _run(scenario: Scenario, workload: Workload, policy: Policy) -> Outcome:
    return simulate(scenario, workload, policy, name="backfilling", seed=1)


def _node(number: int, cores: int, gpus: int, mics: int, memory_kib: int) -> NodeView:
    devices = tuple(DeviceView(f"gpu{i}", 6.0) for i in range(gpus))
    memory_gb = memory_kib * BYTES_PER_KIB / BYTES_PER_GB
    return NodeView(
        f"n{number}",
        f"n{number}",
        "GPU" if gpus else "",
        devices,
        cores=float(cores),
        memory_gb=memory_gb,
        resources=(("mic", float(mics)),) if mics else (),
        power_w=tuple(100.0 + 100.0 * i for i in range(gpus + 1)),
    )


if __name__ == "__main__":
    show(figures(whole="--whole" in sys.argv))
