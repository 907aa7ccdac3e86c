"""How fast the simulator is: runs of the loop on clusters like those of ANDREAS' simulations, and a
year of a million jobs.

    python -m experiments.bench.simulator [--million]

Prints one JSON line per figure: name, median, goal, ratio (median / goal), unit, machine, and
beside them what was run: rounds held and left out, peak memory. Times are of the processor, which
on a machine of one's own are those of the clock. Every run goes through the same `run_round`,
policies and judge as the live cluster.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from time import process_time
from typing import Any

import numpy as np

from controlplane.simulation.workloads.base import Workload
from controlplane.simulation.world.outcome import Outcome
from controlplane.simulation.world.run import simulate
from controlplane.simulation.world.world import Scene
from experiments.bench.policies import EPOCH_S, _kind, _node, machine
from policies.contract.snapshot import EnergyStep, JobColumns, JobPhase, Jobs, JobView, NodeView
from policies.host.registry import make

YEAR_S = 365 * 86_400.0
MILLION = 1_000_000
ENERGY = (EnergyStep(0.0, inf, 0.172, 1.33),)


def andreas(nodes: int, jobs: int, seed: int = 1) -> tuple[Scene, Workload]:
    """ANDREAS' first scenario at the load of its margins: half the nodes two V100, half one T4;
    bursts of ten jobs.
    """
    rng = np.random.default_rng(seed)
    kinds = tuple(_kind(name, *times) for name, times in EPOCH_S.items())
    rows, now_s = [], 0.0
    for i in range(jobs):
        name, epochs = str(rng.choice(list(EPOCH_S))), float(rng.choice([120, 160, 320]))
        fastest_s, slowest_s = epochs * EPOCH_S[name][1], epochs * EPOCH_S[name][2]
        rate = 2 * nodes / (epochs * EPOCH_S[name][0]) / (4 if i // 10 % 2 else 1)
        now_s += rng.exponential(1.0 / rate)
        due_s, weight = (
            now_s + rng.uniform(fastest_s, slowest_s),
            rng.uniform(0.00025371, 0.00044399),
        )
        rows.append(
            JobView(
                f"j{i}",
                name,
                now_s,
                epochs,
                1,
                2,
                due_s=due_s,
                tardiness_weight=weight,
                total_steps=epochs,
            )
        )
    views = tuple(_node(i, "V100" if i % 2 == 0 else "T4") for i in range(nodes))
    return Scene(views, kinds, ENERGY), Workload(
        f"N={nodes},J={jobs}", Jobs(JobColumns.of(rows)), kinds
    )


def year(jobs: int, seed: int = 1) -> tuple[Scene, Workload]:
    """So many jobs over their part of a year of a million on 100 nodes of four GPUs, which are 70%
    busy; made by column.
    """
    rng = np.random.default_rng(seed)
    names = list(EPOCH_S)
    kinds = tuple(_kind(name, *times) for name, times in EPOCH_S.items())
    arrival_s = np.sort(rng.uniform(0.0, YEAR_S * jobs / MILLION, jobs))
    which = rng.integers(len(names), size=jobs)
    run_s = rng.lognormal(np.log(3600.0), 1.2, jobs)
    steps = np.maximum(1.0, np.rint(run_s / np.array([EPOCH_S[n][0] for n in names])[which]))
    columns = _columns(
        arrival_s, [names[w] for w in which], steps, arrival_s + run_s * rng.uniform(1.0, 6.0, jobs)
    )
    views = tuple(_four_gpus(_node(i, "V100")) for i in range(100))
    return Scene(views, kinds, ENERGY), Workload(f"{jobs} jobs of a year", Jobs(columns), kinds)


def _four_gpus(node: NodeView) -> NodeView:
    devices = tuple(replace(node.devices[0], id=f"gpu{d}") for d in range(4))
    return replace(node, devices=devices, power_w=tuple(360.0 + 170.0 * g for g in range(5)))


def _columns(arrival_s: Any, kinds: list[str], steps: Any, due_s: Any) -> JobColumns:
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


def timed(scene: Scene, workload: Workload, policy: str) -> tuple[Outcome, float]:
    """(what came of it, seconds of the processor); compiled kernels are warm."""
    simulate(*andreas(4, 20), make(policy), name=policy, seed=1)
    began_s = process_time()
    outcome = simulate(scene, workload, make(policy), name=policy, seed=1)
    return outcome, process_time() - began_s


def lines(*, million: bool) -> Iterator[dict[str, Any]]:
    """The figures, the short ones first."""
    for policy, goal_s in (("fifo", 1.0), ("cost_search", 30.0)):
        yield _line(f"{policy}, N=100, J=1000", *timed(*andreas(100, 1000), policy), goal_s)
    for gather_s in (0.0, 60.0, 300.0):
        scene, workload = year(MILLION if million else MILLION // 100)
        name = f"fifo, {workload.name}, a round every {gather_s:g} s at most"
        goal_s = 180.0 * len(workload.jobs) / MILLION
        yield _line(name, *timed(replace(scene, gather_s=gather_s), workload, "fifo"), goal_s)


def _line(name: str, outcome: Outcome, seconds: float, goal_s: float) -> dict[str, Any]:
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    held = {
        "rounds": outcome.rounds,
        "rounds_skipped": outcome.rounds_skipped,
        "deciding_s": round(float(outcome.decision_s.sum()), 2),
    }
    facts = {**held, "gpus_busy": round(_busy(outcome), 3), "peak_mb": round(peak_mb)}
    ratio = round(seconds / goal_s, 3)
    return {
        "name": name,
        "median": round(seconds, 3),
        "goal": goal_s,
        "ratio": ratio,
        "unit": "s",
        **facts,
        "machine": machine(),
    }


def _busy(outcome: Outcome) -> float:
    """Part of all GPU time that jobs held."""
    return float(outcome.gpu_s.sum()) / (outcome.utilisation.gpus * outcome.makespan_s)


def main() -> None:
    """Print the lines as they are measured."""
    for line in lines(million="--million" in sys.argv):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
