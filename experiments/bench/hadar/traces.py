"""Hadar's evaluation on 480 jobs of Philly: `python -m experiments.bench.hadar.traces`.

All jobs are there at the start, on 15 nodes of four GPUs (20 V100, 20 P100, 20 K80); rounds of 360
s, 10 s a restart. Shown are the time until the last job has ended, the mean and the median
completion time. The goals are those of one policy for all of them.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.workloads import load
from controlplane.simulation.workloads.base import Workload
from controlplane.simulation.world.outcome import Outcome
from controlplane.simulation.world.run import simulate
from experiments.bench.figures import Figure, figure, show
from policies.contract.snapshot import DeviceView, NodeView, PriceInterval
from policies.host.registry import make

DATA = Path(os.environ.get("LOADMASTER_DATA", "../shared/data"))
TABLES = "gavel/simulation_throughputs.json"
CAPPED = "philly/philly480_h3-10_le20h_seed0.trace"
UNCAPPED = "philly/philly480_h3-10_seed0.trace"
HOUR_S = 3600.0
TYPES = ("V100", "P100", "K80")
NODES_OF_TYPE = 5
GPUS = 4

POLICIES: Mapping[str, Mapping[str, Any]] = {
    "hadar": {},
    "shortest_first": {"spread": True},
    "max_min_fairness": {"spread": True},
    "makespan": {"spread": True},
    "tiresias": {},
    "yarn_cs": {},
}
"""Hadar, and those beside it, with their parameters."""


@dataclass(frozen=True, slots=True)
class Goals:
    """Goals on a trace in hours: end of the last job, mean and median completion."""

    total_h: float
    mean_h: float
    median_h: float | None


TRACES: Mapping[str, Goals] = {CAPPED: Goals(24.0, 3.1, 1.9), UNCAPPED: Goals(89.5, 3.3, None)}


def run(trace: str, policy: str, parameters: Mapping[str, Any], data: Path) -> Outcome:
    """Simulate a trace under a policy to its end."""
    scenario, workload = on_philly(trace, data)
    return simulate(scenario, workload, make(policy, dict(parameters)), name=policy, seed=1)


def on_philly(trace: str, data: Path) -> tuple[Scenario, Workload]:
    """Return the cluster of the evaluation and the jobs of a trace."""
    spec = {
        "type": "gavel",
        "path": str(data / trace),
        "throughputs": str(data / TABLES),
        "pairs": False,
    }
    devices = tuple(DeviceView(f"gpu{d}", 16.0) for d in range(GPUS))
    watts = (100.0, 200.0, 300.0, 400.0, 500.0)
    nodes = []
    for gpu_type in TYPES:
        for number in range(NODES_OF_TYPE):
            name = f"{gpu_type}-{number}".lower()
            nodes.append(NodeView(name, name, gpu_type, devices, watts))
    energy = (PriceInterval(0.0, inf, 0.1, 1.0),)
    scenario = Scenario(tuple(nodes), (), energy, round_s=360.0, restart_cost_s=10.0)
    return scenario, load(spec, 1)


def figures(data: Path, only: str) -> Iterator[Figure]:
    """Yield the figures of every trace and policy whose name contains this, as they are made."""
    for trace, goals in TRACES.items():
        for policy, parameters in POLICIES.items():
            if only not in policy:
                continue
            outcome = run(trace, policy, parameters, data)
            jct_h = outcome.jct_s / HOUR_S
            facts = {
                "rounds": outcome.rounds,
                "migrations": int(outcome.migrations.sum()),
                "preemptions": int(outcome.preemptions.sum()),
                "decisions_s": round(sum(outcome.decision_s), 1),
            }
            name = f"{policy}, {Path(trace).stem}"
            is_ours = policy == "hadar"
            yield figure(
                f"end of the last job, {name}", outcome.makespan_s / HOUR_S,
                goals.total_h if is_ours else None, "h", **facts,
            )  # fmt: skip
            mean_h = float(np.mean(jct_h))
            yield figure(
                f"mean completion time, {name}", mean_h, goals.mean_h if is_ours else None, "h"
            )
            median_h = float(np.median(jct_h))
            goal_h = goals.median_h if is_ours else None
            yield figure(f"median completion time, {name}", median_h, goal_h, "h")


def main(arguments: list[str] | None = None) -> None:
    """Print the figures; without the traces, say that there is nothing to measure."""
    parser = argparse.ArgumentParser(description="Hadar on 480 jobs of Philly")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with gavel/ and philly/")
    parser.add_argument("--only", default="", help="policies whose name contains this")
    asked = parser.parse_args(arguments)
    if not (asked.data / CAPPED).exists():
        missing = f"no {asked.data / CAPPED}: Philly's traces are not simulated"
        print(f"experiments.bench.hadar.traces: {missing}", file=sys.stderr)
        return
    show(figures(asked.data, asked.only))


if __name__ == "__main__":
    main()
