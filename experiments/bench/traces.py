"""How long Gavel's traces take to simulate, and when their jobs are done: beside the published
program's figures for the same.

    python -m experiments.bench.traces [--data ../shared/data/gavel] [--jobs 5000] [--only "LAS aware, 900 s"]

Prints one JSON line per figure: name, median, goal, ratio (median / goal), unit, machine, and what
was run. Times are of the processor. A stream's jobs come in every so many seconds in the mean on 36
GPUs of each type, and the mean completion time is that of jobs 4000 to 5000; the goal of time is 25
s (the published program takes 74 to 120 s on a machine of this size), that of completion what the
published program comes to. Shares are made anew at every arrival and end, turns given out every 360
s.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import fmean, median
from time import process_time
from typing import Any

from controlplane.simulation.cluster.scenario import Scene
from controlplane.simulation.workloads import load
from controlplane.simulation.world.outcome import Outcome
from controlplane.simulation.world.run import simulate
from experiments.bench.policies import machine
from policies.contract.snapshot import DeviceView, EnergyStep, NodeView
from policies.host.registry import make

STREAM, TABLES = "gavel_stream_single_seed0.csv", "simulation_throughputs.json"
STATIC, TOGETHER, PHYSICAL = (
    "max_min_fairness.trace",
    "minimize_makespan.trace",
    "physical_cluster_throughputs.json",
)
DATA = Path(os.environ.get("LOADMASTER_DATA", "../shared/data")) / "gavel"
GOAL_S = 25.0
HOUR_S = 3600.0
TYPES = ("V100", "P100", "K80")


@dataclass(frozen=True)
class Case:
    """A trace under a policy: mean `gap_s` between arrivals, `gpus` of each of TYPES, the jobs that
    are `counted`, and the mean completion time of the published program, `published_h`; that of all
    jobs' end with `whole`. `takes_goal`: whether its time has a goal. GPUs take `slots` jobs; what
    a policy draws at random is drawn with so many `seeds`, and the mean is shown.
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
        """What is compared with the published program's."""
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
"""The window of 25 jobs of the paper's table 3 (36 are there from the beginning), as the published
program numbers them: from 0.
"""
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
    """What came of a case, and how long it took."""

    case: Case
    outcome: Outcome
    seconds: float
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def hours(self) -> float:
        """From arrival to end, the mean of the jobs that are counted, or of all until the last; nan
        where one has no end.
        """
        if self.case.whole:
            return self.outcome.makespan_s / HOUR_S
        first, last = self.case.counted
        return float(self.outcome.jct_s[first:last].mean()) / HOUR_S


def run(case: Case, data: Path, jobs: int, seed: int = 1) -> Run:
    """Simulate so many jobs of a case to their ends, once."""
    spec = {
        "type": "gavel",
        "path": str(data / case.trace),
        "throughputs": str(data / case.tables),
        "jobs": jobs,
    }
    workload = load({**spec, "gap_s": case.gap_s, "pairs": case.slots > 1}, 1)
    scene = Scene(
        _nodes(case.gpus, case.slots),
        (),
        (EnergyStep(0.0, inf, 0.1, 1.0),),
        round_s=case.round_s,
        restart_cost_s=case.restart_s,
    )
    began_s = process_time()
    outcome = simulate(
        scene, workload, make(case.policy, dict(case.params)), name=case.policy, seed=seed
    )
    facts = {
        "rounds": outcome.rounds,
        "migrations": int(outcome.migrations.sum()),
        "preemptions": int(outcome.preemptions.sum()),
    }
    return Run(case, outcome, process_time() - began_s, facts)


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


def lines(data: Path, jobs: int, only: str) -> Iterator[dict[str, Any]]:
    """The figures, as they are measured; kernels are compiled before."""
    run(CASES[0], data, 5)
    for case in CASES:
        if only in case.name:
            yield from _figures([run(case, data, jobs, seed) for seed in range(1, case.seeds + 1)])


def _figures(runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    case = runs[0].case
    facts = {**runs[0].facts, "seeds": case.seeds}
    yield _line(
        f"simulate {case.name}",
        median(r.seconds for r in runs),
        GOAL_S if case.takes_goal else None,
        "s",
        facts,
    )
    if case.whole or len(runs[0].outcome.jct_s) >= case.counted[1]:
        yield _line(case.figure, fmean(r.hours for r in runs), case.published_h, "h", facts)


def _line(
    name: str, value: float, goal: float | None, unit: str, facts: Mapping[str, Any]
) -> dict[str, Any]:
    ratio = None if goal is None else round(value / goal, 3)
    return {
        "name": name,
        "median": round(value, 3),
        "goal": goal,
        "ratio": ratio,
        "unit": unit,
        **facts,
        "machine": machine(),
    }


def main(arguments: list[str] | None = None) -> None:
    """Print the lines as they are measured; without the folder of traces there is nothing to
    measure, which is said.
    """
    parser = argparse.ArgumentParser(description="Gavel's traces, simulated")
    parser.add_argument(
        "--data", type=Path, default=DATA, help="folder of Gavel's traces and throughputs"
    )
    parser.add_argument("--jobs", type=int, default=5000, help="of each stream")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    asked = parser.parse_args(arguments)
    if not (asked.data / STREAM).exists():
        print(
            f"experiments.bench.traces: no {asked.data / STREAM}: Gavel's traces are not simulated",
            file=sys.stderr,
        )
        return
    for line in lines(asked.data, asked.jobs, asked.only):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
