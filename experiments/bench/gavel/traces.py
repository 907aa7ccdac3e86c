"""Gavel's traces beside the published program's: `python -m experiments.bench.gavel.traces`.

A stream's jobs come in every so many seconds in the mean on 36 GPUs of each type, and the mean
completion time is that of jobs 4000 to 5000; the goal of time is 30 s (the published program takes
74 to 120 s on a machine of this size), that of completion the published program's figure. Shares
are made anew at every arrival and end, time slices given every 360 s.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from statistics import fmean, median
from typing import Any

from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.workloads import load
from controlplane.simulation.workloads.base import Workload
from controlplane.simulation.world.outcome import Outcome
from controlplane.simulation.world.run import simulate
from experiments.bench.figures import Figure, figure, seconds, show
from policies.contract.snapshot import DeviceView, NodeView, PriceInterval
from policies.host.registry import make

STREAM, TABLES = "gavel_stream_single_seed0.csv", "simulation_throughputs.json"
STATIC, TOGETHER, PHYSICAL = (
    "max_min_fairness.trace",
    "minimize_makespan.trace",
    "physical_cluster_throughputs.json",
)
DATA = Path(os.environ.get("LOADMASTER_DATA", "../shared/data")) / "gavel"
GOAL_S = 30.0
HOUR_S = 3600.0
TYPES = ("V100", "P100", "K80")


@dataclass(frozen=True)
class Case:
    """A trace under a policy, on `gpus` of each of TYPES that take `slots` jobs each.

    `gap_s`: between arrivals in the mean; `counted`: jobs of which the completion time counts (with
    `whole`: all jobs' end); `published_h`: that of the published program. `takes_goal`: its
    processor time has a goal. `seeds`: runs whose mean is shown.
    """

    name: str
    policy: str
    params: Mapping[str, Any]
    published_h: float
    gap_s: float = 900.0
    takes_goal: bool = False
    restart_s: float = 0.0
    trace: str = STREAM
    tables: str = TABLES
    gpus: tuple[int, int, int] = (36, 36, 36)
    round_s: float = 360.0
    counted: tuple[int, int] = (4000, 5000)
    whole: bool = False
    slots: int = 1
    seeds: int = 1

    @property
    def figure(self) -> str:
        """The name of the figure that is compared with the published program's."""
        return f"{'makespan' if self.whole else 'mean completion time'}, {self.name}"


LAS = "max_min_fairness"
AGNOSTIC: Mapping[str, Any] = {"form": "agnostic"}
NONE: Mapping[str, Any] = {}
PHYSICAL_CLUSTER: Mapping[str, Any] = {
    "tables": PHYSICAL,
    "gpus": (8, 16, 24),
    "round_s": 1200.0,
    "gap_s": 1.0,
}
WINDOW: Mapping[str, Any] = {**PHYSICAL_CLUSTER, "trace": STATIC, "counted": (36, 61)}
"""The window of 25 jobs of the paper's table 3, numbered from 0."""
AT_ONCE: Mapping[str, Any] = {**PHYSICAL_CLUSTER, "trace": TOGETHER, "whole": True}
"""A hundred jobs, all there from the beginning."""
CASES = (
    Case("LAS aware, jobs 36-60 of a trace", LAS, NONE, 3.39, **WINDOW),
    Case("LAS agnostic, jobs 36-60 of a trace", LAS, AGNOSTIC, 5.10, **WINDOW),
    Case("makespan aware, jobs that come together", "makespan", NONE, 17.58, **AT_ONCE),
    Case("Gandiva, jobs that come together", "gandiva", NONE, 22.11, **AT_ONCE, slots=2, seeds=12),
    Case("LAS aware, 900 s", LAS, NONE, 17.07, takes_goal=True),
    Case("LAS aware, 900 s, restarts take 30 s", LAS, NONE, 17.07, restart_s=30.0),
    Case("LAS aware, 720 s", LAS, NONE, 20.45, gap_s=720.0),
    Case("AlloX, 900 s", "allox", NONE, 18.02),
    Case("FIFO aware, 900 s", "fifo_shares", NONE, 17.33),
    Case("LAS agnostic, 900 s", LAS, AGNOSTIC, 23.75),
    Case("LAS agnostic, 720 s", LAS, AGNOSTIC, 51.40, gap_s=720.0),
)


@dataclass(frozen=True)
class Run:
    """The outcome of a case, and its processor time."""

    case: Case
    outcome: Outcome
    took_s: float

    @property
    def hours(self) -> float:
        """The makespan, or the mean completion time of the counted jobs; nan if one has no end."""
        if self.case.whole:
            return self.outcome.makespan_s / HOUR_S
        first, last = self.case.counted
        return float(self.outcome.jct_s[first:last].mean()) / HOUR_S


def run(case: Case, data: Path, jobs: int, seed: int = 1) -> Run:
    """Simulate so many jobs of a case to their ends, once."""
    scenario, workload = stream(case, data, jobs)
    policy = make(case.policy, dict(case.params))
    took_s, outcome = seconds(
        partial(simulate, scenario, workload, policy, name=case.policy, seed=seed)
    )
    return Run(case, outcome, took_s)


def stream(case: Case, data: Path, jobs: int) -> tuple[Scenario, Workload]:
    """Cluster and jobs of a case."""
    spec = {
        "type": "gavel",
        "path": str(data / case.trace),
        "throughputs": str(data / case.tables),
        "jobs": jobs,
    }
    workload = load({**spec, "gap_s": case.gap_s, "pairs": case.slots > 1}, 1)
    scenario = Scenario(
        _nodes(case.gpus, case.slots),
        (),
        (PriceInterval(0.0, inf, 0.1, 1.0),),
        round_s=case.round_s,
        restart_cost_s=case.restart_s,
    )
    return scenario, workload


def _nodes(gpus: tuple[int, int, int], slots: int) -> tuple[NodeView, ...]:
    """Nodes of four GPUs."""
    devices = tuple(DeviceView(f"gpu{d}", 16.0, slots) for d in range(4))
    watts = (100.0, 200.0, 300.0, 400.0, 500.0)
    each = (
        (f"{t}-{i}".lower(), t)
        for t, many in zip(TYPES, gpus, strict=True)
        for i in range(many // len(devices))
    )
    return tuple(NodeView(name, name, gpu_type, devices, watts) for name, gpu_type in each)


def figures(data: Path, jobs: int, only: str) -> Iterator[Figure]:
    """The figures, as they are measured; kernels are compiled before."""
    run(CASES[0], data, 5)
    for case in CASES:
        if only in case.name:
            yield from _figures([run(case, data, jobs, seed) for seed in range(1, case.seeds + 1)])


def _figures(runs: Sequence[Run]) -> Iterator[Figure]:
    case, outcome = runs[0].case, runs[0].outcome
    facts = {
        "rounds": outcome.rounds,
        "migrations": int(outcome.migrations.sum()),
        "preemptions": int(outcome.preemptions.sum()),
        "seeds": case.seeds,
    }
    goal_s = GOAL_S if case.takes_goal else None
    yield figure(f"simulate {case.name}", median(r.took_s for r in runs), goal_s, "s", **facts)
    if case.whole or len(outcome.jct_s) >= case.counted[1]:
        yield figure(case.figure, fmean(r.hours for r in runs), case.published_h, "h", **facts)


def main(arguments: list[str] | None = None) -> None:
    """Print the figures; without the folder of traces, say that there is nothing to measure."""
    parser = argparse.ArgumentParser(description="Gavel's traces, simulated")
    parser.add_argument(
        "--data", type=Path, default=DATA, help="folder of Gavel's traces and throughputs"
    )
    parser.add_argument("--jobs", type=int, default=5000, help="of each stream")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    asked = parser.parse_args(arguments)
    if not (asked.data / STREAM).exists():
        missing = f"no {asked.data / STREAM}: Gavel's traces are not simulated"
        print(f"experiments.bench.gavel.traces: {missing}", file=sys.stderr)
        return
    show(figures(asked.data, asked.jobs, asked.only))


if __name__ == "__main__":
    main()
