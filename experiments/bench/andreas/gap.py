"""Gaps of heuristics to proven optima: `python -m experiments.bench.andreas.gap [INSTANCES]`.

Small clusters (3 to 5 nodes, 10 to 20 jobs, due dates from hopeless to comfortable; on every other
one jobs already run) are decided by every policy and by the exact model, which may leave nodes
idle, so that no plan is below it. A gap is f / f* - 1, in percent, with f "whole"
(`policies.andreas.objective`) for all: what the randomized greedy minimises in mode `paper`. The
others minimise something else, and f of what they start now is no measure of what they cost in the
end: for that, simulate.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from statistics import fmean, median
from typing import Any

import numpy as np

from experiments.bench.clusters import a_cluster
from experiments.bench.figures import Figure, figure, show
from policies.andreas.exact import Exact
from policies.contract.plan import Plan, PlanStatus
from policies.contract.snapshot import JobColumns, JobPhase, Jobs, Running, SlotHold, Snapshot
from policies.cost_model.kernels import NONE
from policies.cost_model.problem import Problem, build
from policies.cost_model.solution import Solution
from policies.host import registry

INSTANCES = 100
COMPARED: Mapping[str, tuple[str, dict[str, Any], float | None]] = {
    "randomized_greedy, mode coded": ("randomized_greedy", {"mode": "coded"}, None),
    "randomized_greedy, mode paper": ("randomized_greedy", {}, None),
    "randomized_greedy, polish 1000": ("randomized_greedy", {"polish": 1000}, 1.0),
    "cost_search": ("cost_search", {}, None),
    "edf": ("edf", {}, None),
}
"""Name -> policy, parameters, goal in percent where the policy minimises f."""

JUDGE = Exact(opening="free", budget=60.0)


def instances(count: int = INSTANCES) -> Iterator[Snapshot]:
    """Small clusters, the same ones every time."""
    rng = np.random.default_rng(20)
    for seed in range(count):
        snapshot = a_cluster(int(rng.integers(3, 6)), int(rng.integers(10, 21)), seed)
        yield under_way(snapshot) if seed % 2 else snapshot


def under_way(snapshot: Snapshot) -> Snapshot:
    """The same cluster with what FIFO would have started, a part of it done."""
    places = {p.job: p.ranks for p in registry.make("fifo")(snapshot).placements}
    jobs = [
        replace(
            j,
            phase=JobPhase.RUNNING,
            remaining_steps=j.remaining_steps * 0.7,
            running=(Running(0, places[j.id], 0.0),),
        )
        if j.id in places
        else j
        for j in snapshot.jobs
    ]
    holds = {
        (s.node, d): SlotHold(job)
        for job, ranks in places.items()
        for s in ranks
        for d in s.devices
    }
    nodes = tuple(
        replace(
            n,
            devices=tuple(
                replace(d, held=(holds[n.id, d.id],) if (n.id, d.id) in holds else ())
                for d in n.devices
            ),
        )
        for n in snapshot.nodes
    )
    return replace(snapshot, nodes=nodes, jobs=Jobs(JobColumns.of(jobs)))


def solution_of(plan: Plan, problem: Problem) -> Solution:
    """The solution of a plan, in the terms of the problem."""
    node_at = {n.id: i for i, n in enumerate(problem.nodes)}
    number = {
        (int(c), int(g)): k
        for k, (c, g) in enumerate(zip(problem.config_class, problem.config_gpus, strict=True))
    }
    row_at = {int(row): e for e, row in enumerate(problem.rows)}
    node, config = (np.full(len(problem.rows), NONE, dtype=np.int64) for _ in range(2))
    for placed in plan.placements:
        e, n = row_at[problem.snapshot.jobs.position[placed.job]], node_at[placed.ranks[0].node]
        node[e], config[e] = n, number[int(problem.node_class[n]), placed.gpus]
    return Solution(node, config)


def gaps(decide: Callable[[Snapshot], Plan], optima: list[tuple[Snapshot, float]]) -> list[float]:
    """f / f* - 1 of every instance, in percent."""
    found = []
    for snapshot, optimum in optima:
        problem = build(snapshot)
        found.append(
            100.0 * (JUDGE.f.value(problem, solution_of(decide(snapshot), problem)) / optimum - 1.0)
        )
    return found


def optima(count: int) -> list[tuple[Snapshot, float]]:
    """Every instance with its proven least f; AssertionError where the proof was not finished."""
    found = []
    for snapshot in instances(count):
        problem = build(snapshot)
        solved = JUDGE.solve(problem)
        assert solved.status is PlanStatus.OPTIMAL, f"no proof within a budget of {JUDGE.budget}"
        found.append((snapshot, JUDGE.f.value(problem, solved.solution)))
    return found


def figures(count: int = INSTANCES) -> Iterator[Figure]:
    """The mean gap of each policy."""
    solved = optima(count)
    for name, (policy, parameters, goal) in COMPARED.items():
        if policy in registry.names():
            found = gaps(partial(registry.make(policy, parameters)), solved)
            facts = {
                "median_gap": round(median(found), 3),
                "worst_gap": round(max(found), 3),
                "optimal": sum(g < 1e-3 for g in found),
            }
            words = f"gap to {count} proven optima, {name}"
            yield figure(words, fmean(found), goal, "%", **facts)


if __name__ == "__main__":
    show(figures(*map(int, sys.argv[1:2])))
