"""Gaps of `cost_search` to the least cost: `python -m experiments.bench.andreas.schedule_gap`.

The small clusters are those of `bench.andreas.gap`, all jobs waiting. The search plans a schedule
of all jobs at its default bounds, in 2,000 steps, and by its starts alone; CP-SAT begins with the
best of these, looks for a cheaper schedule, and proves how cheap none can be
(`bench.andreas.exact_schedule`), within `budget` of deterministic time each. Nothing is added for
waits that grow, for moves or for haste, so that both minimise the energy and tardiness of the
schedule alone. Prints a JSON line per instance, then one per search: the mean gap to the best
schedule known, in percent; beside it how many of those were proven least, the mean gap over these,
and the mean gap to the bound over all.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from experiments.bench.andreas.exact_schedule import Judged, judge
from experiments.bench.clusters import a_cluster
from experiments.bench.figures import Figure, figure, show
from policies.contract.snapshot import Snapshot
from policies.cost_model.problem import build
from policies.search.cost_search import CostSearch
from policies.search.kernels.local_search import Found, search
from policies.search.rollout import orders, rents, rollout_data

DEFAULT = CostSearch()
SEARCHES = {
    "default": (DEFAULT.moves, DEFAULT.work),
    "2,000 steps": (2000, 10**9),
    "starts alone": (0, 0),
}
GOAL = 1.0
"""Percent."""


@dataclass(frozen=True, slots=True)
class Case:
    """An instance: what each search's schedule costs, and what the judge says."""

    number: int
    nodes: int
    jobs: int
    costs: dict[str, float]
    judged: Judged

    @property
    def best(self) -> float:
        """The cheapest schedule known."""
        return min(*self.costs.values(), self.judged.cost)

    def gap(self, name: str, to: float) -> float:
        """cost / to - 1, in percent."""
        return 100.0 * (self.costs[name] / to - 1.0)


def instances(first: int, count: int) -> Iterator[tuple[int, Snapshot]]:
    """Small clusters, the same ones every time."""
    rng = np.random.default_rng(20)
    for seed in range(first + count):
        snapshot = a_cluster(int(rng.integers(3, 6)), int(rng.integers(10, 21)), seed)
        if seed >= first:
            yield seed, snapshot


def case(number: int, snapshot: Snapshot, budget: float) -> Case:
    """Plan and judge one instance."""
    problem = build(snapshot)
    data, _ = rollout_data(problem)
    start = (orders(problem), rents(problem))
    found: dict[str, Found] = {
        name: search(data, *start, *bounds, 1) for name, bounds in SEARCHES.items()
    }
    judged = judge(data, min(found.values(), key=lambda f: f.cost), budget=budget)
    return Case(
        number,
        len(snapshot.nodes),
        len(problem.rows),
        {name: f.cost for name, f in found.items()},
        judged,
    )


def told(of: Case) -> dict[str, Any]:
    """The line of an instance."""
    gaps = {name: round(of.gap(name, of.best), 4) for name in SEARCHES}
    return {
        "instance": of.number,
        "nodes": of.nodes,
        "jobs": of.jobs,
        "gaps": gaps,
        "proven": of.judged.proven,
        **_costs(of),
    }


def _costs(of: Case) -> dict[str, float]:
    return {"best": round(of.best, 6), "bound": round(of.judged.bound, 6)}


def summary(name: str, cases: Sequence[Case]) -> Figure:
    """The figure of a search."""
    known, proven = [c.gap(name, c.best) for c in cases], [c for c in cases if c.judged.proven]
    to_bound = [c.gap(name, c.judged.bound) for c in proven]
    facts = {
        "worst_gap": round(max(known), 4),
        "proven": len(proven),
        "gap_to_proven": round(fmean(to_bound), 4) if proven else None,
        "gap_to_bound": round(fmean(c.gap(name, c.judged.bound) for c in cases), 4),
    }
    words = f"gap of whole schedules, {len(cases)} instances, cost_search, {name}"
    return figure(words, fmean(known), GOAL, "%", **facts)


def main() -> None:
    """Print the lines as they are measured."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench.andreas.schedule_gap")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--instances", type=int, default=100)
    parser.add_argument("--budget", type=float, default=20.0)
    given = parser.parse_args()
    cases = []
    for number, snapshot in instances(given.first, given.instances):
        cases.append(case(number, snapshot, given.budget))
        print(json.dumps(told(cases[-1])), flush=True)
    show(summary(name, cases) for name in SEARCHES)


if __name__ == "__main__":
    main()
