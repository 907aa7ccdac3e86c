"""What policies cost in simulations of ANDREAS' scenarios, energy and tardiness in all, against the
baselines' mean and best.

    python -m experiments.bench.total_cost [--nodes 10,30] [--seeds 2] [--tunings 2.5,1,0.7,0.5] [--policies
    "Cost search,RG as coded"]

Prints one JSON line per scenario, size, load and policy: name, median (here: mean total cost over
seeds), goal and ratio (median / goal), unit, machine; beside them energy and tardiness and the
processor time of one simulation. The goal is the best of FIFO, EDF and PS; `below_mean` says how
far below their mean the policy is. Labels and cells are those of `make reproduce-andreas`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from statistics import mean
from time import process_time
from typing import Any

from experiments.bench.policies import machine
from experiments.reproduce.andreas.grid import BASELINES, Cell, known_policies, run

COMPARED = tuple(p for p in known_policies() if p not in BASELINES)


def lines(
    nodes: Sequence[int], seeds: int, tunings: Sequence[float], policies: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """The figures, smallest cluster first."""
    for size in nodes:
        for scenario in (1, 2):
            for tuning in tunings:
                yield from _cell_lines(scenario, size, tuning, policies, seeds)


def _cell_lines(
    scenario: int, nodes: int, tuning: float, policies: Sequence[str], seeds: int
) -> Iterator[dict[str, Any]]:
    totals: dict[str, float] = {}
    for policy in (*BASELINES, *policies):
        figures = [
            _run(Cell(scenario, nodes, 10 * nodes, tuning, policy, seed))
            for seed in range(1, seeds + 1)
        ]
        told = {
            key: round(mean(f[key] for f in figures), 3)
            for key in ("energy_cost", "tardiness_cost", "processor_s")
        }
        totals[policy] = mean(f["total_cost"] for f in figures)
        goal = min(totals[b] for b in BASELINES) if policy not in BASELINES else None
        below = (
            None
            if goal is None
            else round(1.0 - totals[policy] / mean(totals[b] for b in BASELINES), 3)
        )
        name = f"total cost, scenario {scenario}, N={nodes}, tuning {tuning:g}, {policy}"
        yield {
            "name": name,
            **_against(totals[policy], goal),
            "unit": "EUR",
            "below_mean": below,
            **told,
            "machine": machine(),
        }


def _against(value: float, goal: float | None) -> dict[str, float | None]:
    ratio = None if goal is None else round(value / goal, 4)
    return {
        "median": round(value, 3),
        "goal": None if goal is None else round(goal, 3),
        "ratio": ratio,
    }


def _run(cell: Cell) -> dict[str, Any]:
    start = process_time()
    return {**run(cell), "processor_s": process_time() - start}


def main() -> None:
    """Print the lines as they are measured."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench.total_cost")
    parser.add_argument("--nodes", default="10,30")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--tunings", default="2.5,1,0.7,0.5")
    parser.add_argument("--policies", default=",".join(COMPARED))
    given = parser.parse_args()
    nodes, tunings = (
        [int(n) for n in given.nodes.split(",")],
        [float(t) for t in given.tunings.split(",")],
    )
    for line in lines(nodes, given.seeds, tunings, given.policies.split(",")):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
