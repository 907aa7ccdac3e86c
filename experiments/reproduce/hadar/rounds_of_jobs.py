"""Figure 6(a): which job each of five nodes trains in each round, under Hadar.

The paper's own nodes and models have no published speeds, so three of Gavel's models train here on
a V100, two P100s and two K80s, in nodes of one GPU. Each job is on one node at most: with fewer
jobs than nodes some are idle, which is what forking (HadarE) is for.
"""

from math import ceil, inf
from pathlib import Path

from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.workloads.base import Workload
from controlplane.simulation.workloads.gavel.tables import tables_of
from controlplane.simulation.world.run import simulate
from experiments.bench.hadar.traces import TABLES
from policies.contract.snapshot import (
    DeviceView,
    JobColumns,
    Jobs,
    JobView,
    NodeView,
    PriceInterval,
)
from policies.hadar.hadar import Hadar

NODES = {"v100-0": "V100", "p100-0": "P100", "p100-1": "P100", "k80-0": "K80", "k80-1": "K80"}
"""GPU type of each node."""
HOURS = {
    "J1": ("ResNet-18 (batch size 64)", 0.3),
    "J2": ("LM (batch size 20)", 0.4),
    "J3": ("Transformer (batch size 64)", 0.8),
}
"""Model of each job, and its hours on a V100."""
ROUND_S = 360.0
IDLE = ""


def rounds_of_jobs(data: Path) -> list[dict[str, str]]:
    """Return, for each round, the job of each node, IDLE for none."""
    # 1. The cluster and its jobs, all there at the start.
    nodes = []
    for name, gpu_type in NODES.items():
        nodes.append(NodeView(name, name, gpu_type, (DeviceView("gpu0", 16.0),), (100.0, 300.0)))
    energy = (PriceInterval(0.0, inf, 0.1, 1.0),)
    tables = tables_of(str(data / TABLES), "")
    kinds = tuple([tables.kind(model, pairs=False) for model, _ in HOURS.values()])
    jobs = []
    for kind, (name, (_, hours)) in zip(kinds, HOURS.items(), strict=True):
        steps = kind.rates["V100", 1, False] * hours * 3600.0
        jobs.append(JobView(name, kind.id, 0.0, steps, 1, 1, total_steps=steps))
    scenario = Scenario(tuple(nodes), kinds, energy, round_s=ROUND_S, restart_cost_s=10.0)

    # 2. Their stays on nodes, cut into rounds; the longest one in a round counts.
    workload = Workload("figure 6", Jobs(JobColumns.of(jobs)), kinds)
    outcome = simulate(scenario, workload, Hadar(), name="hadar", seed=1)
    rounds = [dict.fromkeys(NODES, IDLE) for _ in range(ceil(outcome.makespan_s / ROUND_S))]
    longest_s: dict[tuple[int, str], float] = {}
    stays = outcome.stays
    for job, node, start_s, end_s in zip(
        stays.job, stays.node, stays.start_s, stays.end_s, strict=True
    ):
        name = outcome.nodes[int(node)]
        for number, in_round in enumerate(rounds):
            begin_s = number * ROUND_S
            spent_s = min(end_s, begin_s + ROUND_S) - max(start_s, begin_s)
            if spent_s > longest_s.get((number, name), 0.0):
                longest_s[number, name] = spent_s
                in_round[name] = outcome.job_ids[int(job)]
    return rounds
