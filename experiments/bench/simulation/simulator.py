"""Times of the simulator: `python -m experiments.bench.simulation.simulator [--million]`.

Every run goes through the same `run_round`, policies and validation as the live cluster. Without
`--million` a hundredth of the million jobs is run, and the goal is a hundredth too.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.workloads.base import Workload
from controlplane.simulation.world.run import simulate
from experiments.bench.clusters import MILLION, andreas, year
from experiments.bench.figures import Figure, figure, peak_mb, seconds, show
from policies.host.registry import make

RUN_GOALS_S = {"fifo": 0.5, "cost_search": 30.0}
MILLION_GOAL_S = 120.0


def figures(*, million: bool) -> Iterator[Figure]:
    """The figures, the short ones first."""
    for policy, goal_s in RUN_GOALS_S.items():
        yield _figure(f"{policy}, N=100, J=1000", *andreas(100, 1000), policy, goal_s)
    for gather_s in (0.0, 60.0, 300.0):
        scenario, workload = year(MILLION if million else MILLION // 100)
        goal_s = MILLION_GOAL_S * len(workload.jobs) / MILLION
        name = f"fifo, {workload.name}, a round every {gather_s:g} s at most"
        gathered = replace(scenario, gather_s=gather_s)
        yield _figure(name, gathered, workload, "fifo", goal_s if gather_s == 300.0 else None)


def _figure(
    name: str, scenario: Scenario, workload: Workload, policy: str, goal_s: float | None
) -> Figure:
    """A run, with compiled kernels warm."""
    simulate(*andreas(4, 20), make(policy), name=policy, seed=1)
    took_s, run = seconds(partial(simulate, scenario, workload, make(policy), name=policy, seed=1))
    facts = {
        "rounds": run.rounds,
        "rounds_skipped": run.rounds_skipped,
        "deciding_s": round(float(run.decision_s.sum()), 2),
        "gpus_busy": round(float(run.gpu_s.sum()) / (run.utilisation.gpus * run.makespan_s), 3),
        "peak_mb": peak_mb(),
    }
    return figure(name, took_s, goal_s, "s", **facts)


if __name__ == "__main__":
    show(figures(million="--million" in sys.argv))
