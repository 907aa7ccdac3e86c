"""Costs of policies in ANDREAS' scenarios: `python -m experiments.bench.andreas.total_cost --help`.

The value is the mean total cost over seeds, the goal the best of FIFO, EDF and PS; `below_mean`
says how far below their mean the policy is. Labels and cells are those of `make reproduce-andreas`.
"""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from statistics import fmean

from experiments.bench.figures import Figure, figure, seconds, show
from experiments.reproduce.andreas.grid import BASELINES, Cell, known_policies, run

COMPARED = tuple(p for p in known_policies() if p not in BASELINES)


def figures(
    nodes: Sequence[int], seeds: int, tunings: Sequence[float], policies: Sequence[str]
) -> Iterator[Figure]:
    """The figures, smallest cluster first."""
    for size, scenario, tuning in product(nodes, (1, 2), tunings):
        yield from _of_load(scenario, size, tuning, policies, seeds)


def _of_load(
    scenario: int, nodes: int, tuning: float, policies: Sequence[str], seeds: int
) -> Iterator[Figure]:
    totals: dict[str, float] = {}
    for policy in (*BASELINES, *policies):
        cells = [Cell(scenario, nodes, 10 * nodes, tuning, policy, s + 1) for s in range(seeds)]
        runs = [seconds(partial(run, cell)) for cell in cells]
        facts = {
            name: round(fmean(found[name] for _, found in runs), 3)
            for name in ("energy_cost", "tardiness_cost")
        }
        totals[policy] = fmean(found["total_cost"] for _, found in runs)
        goal = None if policy in BASELINES else min(totals[b] for b in BASELINES)
        if goal is not None:
            facts["below_mean"] = 1.0 - totals[policy] / fmean(totals[b] for b in BASELINES)
        facts["processor_s"] = fmean(took_s for took_s, _ in runs)
        name = f"total cost, scenario {scenario}, N={nodes}, tuning {tuning:g}, {policy}"
        yield figure(name, totals[policy], goal, "EUR", **facts)


def main() -> None:
    """Print the figures as they are measured."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench.andreas.total_cost")
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 30])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--tunings", type=float, nargs="+", default=[2.5, 1.0, 0.7, 0.5])
    parser.add_argument("--policies", nargs="+", default=COMPARED)
    given = parser.parse_args()
    show(figures(given.nodes, given.seeds, given.tunings, given.policies))


if __name__ == "__main__":
    main()
