"""Cost of not knowing speeds: first runs as measurements against all speeds known beforehand.

`python -m experiments.bench.profiling.first_run`: ANDREAS' scenarios under `cost_search`, and
Gavel's stream under max-min fairness, with the rules of live clusters: speeds are assumed, measured
by a launch's first steps, estimated and explored. A figure is the median over loads, clusters and
seeds.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from statistics import median

from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.switches import NO_SWITCHES, Switches
from controlplane.simulation.workloads import load
from controlplane.simulation.workloads.base import Workload
from controlplane.simulation.world.outcome import Outcome
from controlplane.simulation.world.run import simulate
from experiments.bench.figures import Figure, figure, show
from experiments.bench.gavel import traces
from experiments.reproduce.andreas.grid import cluster
from policies.contract.snapshot import GpuTypeView
from policies.host.registry import make
from profiling.speeds import FIRST_STEPS, WARM_UP_STEPS

GOAL = 1.03
FIRST_RUN = Switches(first_run_steps=WARM_UP_STEPS + FIRST_STEPS)
TFLOPS = {"V100": 14.0, "P100": 9.3, "T4": 8.1, "K80": 4.1}
TYPES = tuple(GpuTypeView(name, tflops, 16.0) for name, tflops in TFLOPS.items())


def figures(
    nodes: Sequence[int], tunings: Sequence[float], seeds: int, jobs: int
) -> Iterator[Figure]:
    """Ratios of total cost by scenario, over loads, sizes and seeds; then the stream's."""
    for number in (1, 2):
        cells = product(tunings, nodes, range(1, seeds + 1))
        pairs = [_andreas(number, n, tuning, seed) for tuning, n, seed in cells]
        yield _ratio(f"total cost with first_run, scenario {number}", pairs)
    if (traces.DATA / traces.STREAM).exists():
        case = next(case for case in traces.CASES if case.takes_goal)
        pairs = [_both(*traces.stream(case, traces.DATA, jobs), case.policy, 1)]
        yield _ratio(f"total cost with first_run, {jobs} jobs of Gavel's stream", pairs)


def _ratio(name: str, pairs: Sequence[tuple[Outcome, Outcome]]) -> Figure:
    """Median of cost unknown over cost known, its worst, and ratios of the sums of parts."""

    def summed(field: str) -> float:
        known, unknown = (sum(getattr(of[i], field) for of in pairs) for i in (0, 1))
        return round(unknown / known, 4) if known else 1.0

    parts = {part: summed(part) for part in ("total_cost", "energy_cost", "tardiness_cost")}
    ratios = [unknown.total_cost / known.total_cost for known, unknown in pairs]
    completion = sum(float(of.jct_s.mean()) for _, of in pairs)
    completion /= sum(float(of.jct_s.mean()) for of, _ in pairs)
    return figure(
        name,
        median(ratios),
        GOAL,
        "",
        worst=round(max(ratios), 4),
        **parts,
        completion=round(completion, 4),
        runs=len(pairs),
    )


def _andreas(number: int, nodes: int, tuning: float, seed: int) -> tuple[Outcome, Outcome]:
    spec = {"type": "andreas", "nodes": nodes, "scenario": number, "tuning": tuning}
    return _both(cluster(number, nodes), load(spec, seed), "cost_search", seed)


def _both(
    scenario: Scenario, workload: Workload, policy: str, seed: int
) -> tuple[Outcome, Outcome]:
    typed = replace(scenario, gpu_types=TYPES)
    known, unknown = (
        simulate(typed, workload, make(policy), name=policy, seed=seed, switches=switches)
        for switches in (NO_SWITCHES, FIRST_RUN)
    )
    return known, unknown


def main(arguments: list[str] | None = None) -> None:
    """Print the figures as they are measured."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench.profiling.first_run")
    parser.add_argument("--nodes", type=int, nargs="+", default=[10])
    parser.add_argument("--tunings", type=float, nargs="+", default=[2.5, 1.0, 0.7, 0.5])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=5000, help="of Gavel's stream")
    given = parser.parse_args(arguments)
    show(figures(given.nodes, given.tunings, given.seeds, given.jobs))


if __name__ == "__main__":
    main()
