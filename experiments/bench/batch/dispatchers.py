"""Dispatchers by constraint programming: `python -m experiments.bench.batch.dispatchers [EVERY
[NAME ...]]`.

Snapshots are taken by simulating Eurora's trace, and a generated one on a cluster like KIT ForHLR
II, under EASY backfilling in slowdown order, one of every EVERY decisions. Each policy decides on
the same snapshots; times are of whole policy calls. Variables are compared where a model is made.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import yaml

from controlplane.simulation.cluster.cluster_file import scenario_of
from controlplane.simulation.workloads import load
from controlplane.simulation.world.run import simulate
from experiments.bench.figures import Figure, figure, seconds, show
from policies.batch.backfilling import Backfilling
from policies.batch.cp.instance import instance_of
from policies.batch.cp.optional_units import variables
from policies.batch.cp.pcp20 import Pcp20
from policies.batch.cp.waiting import Candidates
from policies.batch.plan import BatchPlan
from policies.contract.plan import Plan, PlanStatus
from policies.contract.policy import Policy
from policies.contract.snapshot import Floats, Snapshot
from policies.host.registry import make

WARM_UP = 20
EVERY, SELDOM = 20, 300
"""Decisions of a simulation of which one is measured; in a short run, of all benchmarks."""
LOG = Path(os.environ.get("LOADMASTER_DATA", "../shared/data")) / "hpc/eurora-2014-4days.swf"
CLUSTERS = Path(__file__).parents[2] / "reproduce/pcp20/clusters"
EURORA = {"type": "swf", "path": str(LOG), "gpus": "batch_fields"}
KIT = {"type": "kit", "jobs": 4000, "load": 0.95}
SETTINGS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Eurora, MIC first": ("eurora-mic-first-32gb", EURORA),
    "Eurora, GPU first": ("eurora-gpu-first-32gb", EURORA),
    "KIT-like": ("kit-forhlr2", KIT),
}
"""Name -> cluster file, workload."""

POLICIES = ("hcp19", "pcp20", "pcp19")
GOALS_MS: Mapping[tuple[str, str], tuple[float, float | None]] = {
    ("Eurora", "hcp19"): (200.0, 1000.0),
    ("Eurora", "pcp20"): (252.0, None),
    ("KIT-like", "pcp20"): (537.0, None),
}
"""(system, policy) -> goals of the mean and of the 99th percentile of a decision."""
MOST_RATIO = 0.1


@dataclass
class Recorder:
    """Policy that keeps one of every so many of its snapshots."""

    policy: Backfilling
    every: int
    seen: int = 0
    kept: list[Snapshot] = field(default_factory=list)
    places_batch: bool = True

    def __call__(self, snapshot: Snapshot) -> Plan:
        if self.seen % self.every == 0:
            self.kept.append(snapshot)
        self.seen += 1
        return self.policy(snapshot)


def snapshots(name: str, every: int) -> list[Snapshot]:
    """Snapshots of a simulation under EASY backfilling in slowdown order."""
    cluster, workload = SETTINGS[name]
    scenario = scenario_of(yaml.safe_load((CLUSTERS / f"{cluster}.yaml").read_text()))
    jobs = load(workload, 1, skip_bad=True, gpu_types=sorted({n.gpu_type for n in scenario.nodes}))
    recorder = Recorder(Backfilling(order="slowdown"), every)
    simulate(scenario, jobs, recorder, name="backfilling", seed=1)
    return recorder.kept


@dataclass(frozen=True, slots=True)
class Decided:
    """Processor time (ms) of every decision, and the plans."""

    times_ms: Floats
    plans: Sequence[Plan]

    @property
    def searched_ms(self) -> list[float]:
        """Times of the decisions that needed a search."""
        searched = [p.objective is not None or p.status is PlanStatus.KEPT for p in self.plans]
        return self.times_ms[searched].tolist() or [0.0]


def decided(policy: Policy, taken: Sequence[Snapshot]) -> Decided:
    """Decide on all snapshots, once more before on the first ones to warm up."""
    for snapshot in taken[:WARM_UP]:
        policy(snapshot)
    found = [seconds(partial(policy, snapshot)) for snapshot in taken]
    return Decided(np.array([1000.0 * s for s, _ in found]), [plan for _, plan in found])


def figures(every: int = EVERY, names: Sequence[str] = tuple(SETTINGS)) -> Iterator[Figure]:
    """Times of decisions by cluster and policy, effect of symmetry breaking, sizes of models."""
    for name in names:
        if SETTINGS[name][1] is EURORA and not LOG.exists():
            print(f"{LOG} is absent: set LOADMASTER_DATA to the folder of data", file=sys.stderr)
            continue
        taken = snapshots(name, every)
        for policy in POLICIES:
            yield from _times(name, policy, decided(make(policy), taken), every)
        whole = decided(Pcp20(symmetry=False), taken)
        yield from _times(name, "pcp20", whole, every, "no symmetry broken")
        if ratios := [of for snapshot in taken if (of := ratio(snapshot)) is not None]:
            words = f"{name}, variables of pcp20 over pcp19, largest of {len(ratios)}"
            yield figure(words, max(ratios), MOST_RATIO, "", mean=round(fmean(ratios), 4))


def _times(name: str, policy: str, of: Decided, every: int, variant: str = "") -> Iterator[Figure]:
    system = name.partition(",")[0]
    goal_ms, goal_p99_ms = GOALS_MS.get((system, policy), (None, None))
    kept = sum(plan.status is PlanStatus.KEPT for plan in of.plans)
    improved = [p.objective for p in of.plans if p.objective is not None]
    facts = {
        "decisions": len(of.plans),
        "of_every": every,
        "searched": len(of.searched_ms),
        "searched_mean_ms": round(fmean(of.searched_ms), 1),
        "median_ms": round(float(np.median(of.times_ms)), 1),
        "max_ms": round(float(of.times_ms.max()), 1),
        "without_answer": kept,
        "slowdowns": round(fmean(improved or [0.0]), 3),
    }
    words = ", ".join(filter(None, [name, policy, variant]))
    yield figure(f"{words}, mean decision", float(of.times_ms.mean()), goal_ms, "ms", **facts)
    p99_ms = float(np.percentile(of.times_ms, 99))
    yield figure(f"{words}, p99 decision", p99_ms, goal_p99_ms, "ms")


def ratio(snapshot: Snapshot) -> float | None:
    """Return the ratio of the numbers of variables; None where no waiting job fits."""
    plan = BatchPlan(snapshot, range(len(snapshot.jobs)), ())
    candidates = Candidates(plan)
    jobs = candidates.considered(Pcp20().window)
    if not any(job.fits_now for job in jobs):
        return None
    instance = instance_of(candidates, jobs, Pcp20().grid_s)
    model = Pcp20(hint=False).model(instance)
    return len(model.cp.proto.variables) / variables(instance)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    show(figures(int(arguments[0]) if arguments else EVERY, arguments[1:] or tuple(SETTINGS)))
