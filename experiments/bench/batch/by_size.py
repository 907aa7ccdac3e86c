"""The batch policy for every day on real traces: `python -m experiments.bench.batch.by_size`.

`area_backfilling` beside EASY: waits, slowdowns (bounded ones count a job of less than ten seconds
as one of ten) and whole decisions. Goals stand beside the figures.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import yaml

from controlplane.simulation.cluster.cluster_file import scenario_of
from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.workloads import load
from controlplane.simulation.workloads.base import Workload
from controlplane.simulation.world.outcome import Outcome
from controlplane.simulation.world.run import simulate
from experiments.bench.batch.dispatchers import CLUSTERS
from experiments.bench.batch.easy import DATA, ENERGY, Clocked, eurora, waits
from experiments.bench.figures import Figure, figure, show
from policies.contract.snapshot import NodeView
from policies.host.registry import make

POLICIES: Mapping[str, Mapping[str, Any]] = {"backfilling": {}, "area_backfilling": {}}
LEAST_RUN_S = 10.0


@dataclass(frozen=True, slots=True)
class Trace:
    """Trace with the goals of `area_backfilling`: figures that it is to stay below."""

    read: Callable[[], tuple[Scenario, Workload]]
    parameters: Mapping[str, Any]
    goals: Mapping[str, float]


def real_durations() -> tuple[Scenario, Workload]:
    """Return Eurora with each job's run time as its walltime."""
    scenario, _ = eurora()
    lines = (DATA / "eurora-2014-4days.swf").read_text().splitlines()
    text = "\n".join(_with_real(line) for line in lines)
    spec: dict[str, Any] = {"type": "swf", "text": text, "gpus": "batch_fields"}
    return scenario, load(spec, 1, gpu_types=["GPU", ""])


def kit() -> tuple[Scenario, Workload]:
    """Return jobs drawn for KIT ForHLR II's 1,173 nodes, more than it can do: jobs wait."""
    scenario = scenario_of(yaml.safe_load((CLUSTERS / "kit-forhlr2.yaml").read_text()))
    workload = load({"type": "kit", "jobs": 3000, "load": 1.5}, 1, gpu_types=["Titan", ""])
    return scenario, workload


def processors(file: str, count: int) -> tuple[Scenario, Workload]:
    """Return a trace of single processors, as one node of so many cores."""
    spec: dict[str, Any] = {"type": "swf", "path": str(DATA / file), "gpus": "batch"}
    workload = load(spec, 1, skip_bad=True, gpu_types=[""])
    node = NodeView("n0", "n0", "", (), cores=float(count), memory_gb=1e6, power_w=(100.0,))
    return Scenario((node,), workload.kinds, ENERGY), workload


WALLTIMES = {"mean wait s": 1250.0, "mean slowdown": 4.1, "longest wait s": 80_000.0}
TRACES: Mapping[str, Trace] = {
    "Eurora": Trace(eurora, {}, {**WALLTIMES, "a decision ms": 5.0, "p99 of a decision ms": 100.0}),
    "Eurora, nodes reversed": Trace(eurora, {"node_order": "reversed"}, WALLTIMES),
    "Eurora, real durations": Trace(
        real_durations,
        {},
        {"mean wait s": 1050.0, "mean slowdown": 1.5, "longest wait s": 90_000.0},
    ),
    "Seth": Trace(partial(processors, "hpc2n-seth-slice.swf", 240), {}, {"bounded slowdown": 11.4}),
    "Lublin": Trace(
        partial(processors, "lublin_256.swf", 256),
        {},
        {"bounded slowdown": 30.0, "longest wait s": 2.06e6},
    ),
    "KIT-like": Trace(kit, {}, {"a decision ms": 15.0, "p99 of a decision ms": 300.0}),
}


def figures() -> Iterator[Figure]:
    """All traces under both policies."""
    for name, trace in TRACES.items():
        for policy, parameters in POLICIES.items():
            goals = trace.goals if policy == "area_backfilling" else {}
            clocked = Clocked(make(policy, {**parameters, **trace.parameters}))
            scenario, workload = trace.read()
            run = simulate(scenario, workload, clocked, name=policy, seed=1)
            for what, value in _measured(run, clocked).items():
                yield figure(f"{policy}, {name}, {what}", value, goals.get(what), "")


def _measured(run: Outcome, policy: Clocked) -> dict[str, float]:
    found, decisions_ms = waits(run), 1000.0 * np.array(policy.took_s)
    run_s = run.completion_s - run.first_start_s
    slowdown = (run.completion_s - run.arrival_s) / np.maximum(run_s, LEAST_RUN_S)
    return {
        "mean wait s": found.wait_s,
        "mean slowdown": found.slowdown,
        "bounded slowdown": float(np.maximum(1.0, slowdown).mean()),
        "longest wait s": found.longest_s,
        "a decision ms": float(decisions_ms.mean()),
        "p99 of a decision ms": float(np.quantile(decisions_ms, 0.99)),
    }


def _with_real(line: str) -> str:
    values = line.split()
    if line.startswith(";") or not values:
        return line
    values[8] = str(max(1.0, float(values[3])))
    return " ".join(values)


if __name__ == "__main__":
    show(figures())
