"""How long Gavel's traces take to simulate, and when their jobs are done: beside the published program's figures for the same.

    python -m bench.traces --data shared/data/gavel [--jobs 5000] [--only "LAS aware, 900 s"]

Prints one JSON line per figure: name, median, goal, ratio (median / goal), unit, machine, and what was run. Times are of the
processor. A stream's jobs come in every so many seconds in the mean on 36 GPUs of each type, and the mean completion time is that
of jobs 4000 to 5000; the goal of time is 25 s (the published program takes 74 to 120 s on a machine of this size), that of
completion what the published program comes to. Shares are made anew at every arrival and end, turns given out every 360 s.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from time import process_time
from typing import Any

from bench.policies import machine
from controlplane.simulation.outcome import Outcome
from controlplane.simulation.run import simulate
from controlplane.simulation.scene import Scene
from controlplane.simulation.workloads import load
from policies.registry import make
from policies.snapshot import DeviceView, EnergyStep, NodeView

STREAM, TABLES = "gavel_stream_single_seed0.csv", "simulation_throughputs.json"
STATIC, PHYSICAL = "max_min_fairness.trace", "physical_cluster_throughputs.json"
GOAL_S = 25.0
HOUR_S = 3600.0
TYPES = ("V100", "P100", "K80")


@dataclass(frozen=True)
class Case:
    """A trace under a policy: mean `gap_s` between arrivals, `gpus` of each of TYPES, the jobs that are `counted`, and the mean
    completion time of the published program, `published_h`. `takes_goal`: whether its time has a goal.
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


LAS = "max_min_fairness"
AGNOSTIC: Mapping[str, Any] = {"form": "agnostic"}
NONE: Mapping[str, Any] = {}
PHYSICAL_CLUSTER: Mapping[str, Any] = {
    "trace": STATIC, "tables": PHYSICAL, "gpus": (8, 16, 24), "round_s": 1200.0, "gap_s": 1.0, "counted": (36, 61)
}  # fmt: skip
"""The window of 25 jobs of the paper's table 3 (36 are there from the beginning), as the published program numbers them: from 0."""
CASES = (
    Case("LAS aware, jobs 36-60 of a trace", LAS, NONE, 3.39, **PHYSICAL_CLUSTER),
    Case("LAS agnostic, jobs 36-60 of a trace", LAS, AGNOSTIC, 5.10, **PHYSICAL_CLUSTER),
    Case("LAS aware, 900 s", LAS, NONE, 17.07, takes_goal=True),
    Case("LAS aware, 900 s, restarts take 30 s", LAS, NONE, 17.07, restart_s=30.0),
    Case("LAS aware, 720 s", LAS, NONE, 20.45, gap_s=720.0),
    Case("AlloX, 900 s", "allox", NONE, 18.02),
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
    def mean_h(self) -> float:
        """Hours from arrival to end, of the jobs that are counted; nan where one of them has no end."""
        first, last = self.case.counted
        return float(self.outcome.jct_s[first:last].mean()) / HOUR_S


def run(case: Case, data: Path, jobs: int) -> Run:
    """Simulate so many jobs of a case to their ends, once."""
    spec = {"type": "gavel", "path": str(data / case.trace), "throughputs": str(data / case.tables), "jobs": jobs, "pairs": False}
    workload = load({**spec, "gap_s": case.gap_s}, 1)
    scene = Scene(_nodes(case.gpus), (), (EnergyStep(0.0, inf, 0.1, 1.0),), round_s=case.round_s, restart_cost_s=case.restart_s)
    began_s = process_time()
    outcome = simulate(scene, workload, make(case.policy, dict(case.params)), name=case.policy, seed=1)
    facts = {"rounds": outcome.rounds, "migrations": int(outcome.migrations.sum()), "preemptions": int(outcome.preemptions.sum())}
    return Run(case, outcome, process_time() - began_s, facts)


def _nodes(gpus: tuple[int, int, int]) -> tuple[NodeView, ...]:
    """Nodes of four GPUs."""
    devices = tuple(DeviceView(f"gpu{d}", 16.0) for d in range(4))
    watts = (100.0, 200.0, 300.0, 400.0, 500.0)
    each = ((f"{t}-{i}".lower(), t) for t, many in zip(TYPES, gpus, strict=True) for i in range(many // len(devices)))
    return tuple(NodeView(name, name, gpu_type, devices, watts) for name, gpu_type in each)


def lines(data: Path, jobs: int, only: str) -> Iterator[dict[str, Any]]:
    """The figures, as they are measured; kernels are compiled before."""
    run(CASES[0], data, 5)
    for case in CASES:
        if only in case.name:
            yield from _figures(run(case, data, jobs))


def _figures(done: Run) -> Iterator[dict[str, Any]]:
    case, goal_s = done.case, GOAL_S if done.case.takes_goal else None
    yield _line(f"simulate {case.name}", done.seconds, goal_s, "s", done.facts)
    if len(done.outcome.jct_s) >= case.counted[1]:
        yield _line(f"mean completion time, {case.name}", done.mean_h, case.published_h, "h", done.facts)


def _line(name: str, value: float, goal: float | None, unit: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    ratio = None if goal is None else round(value / goal, 3)
    return {"name": name, "median": round(value, 3), "goal": goal, "ratio": ratio, "unit": unit, **facts, "machine": machine()}


def main(arguments: list[str] | None = None) -> None:
    """Print the lines as they are measured; without the folder of traces there is nothing to measure, which is said."""
    parser = argparse.ArgumentParser(description="Gavel's traces, simulated")
    parser.add_argument("--data", type=Path, default=Path("shared/data/gavel"), help="folder of Gavel's traces and throughputs")
    parser.add_argument("--jobs", type=int, default=5000, help="of each stream")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    asked = parser.parse_args(arguments)
    if not (asked.data / STREAM).exists():
        print(f"bench.traces: no {asked.data / STREAM}: Gavel's traces are not simulated", file=sys.stderr)
        return
    for line in lines(asked.data, asked.jobs, asked.only):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
