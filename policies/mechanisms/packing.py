"""From a queue to nodes: jobs in their order, each in its best configuration, best fit onto nodes.

`pack` is the deterministic construction that the baselines use and the Randomized Greedy starts from; `objective` is
ANDREAS' f of any solution. `policies.mechanisms.naming` makes plans of solutions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policies.kernels.greedy import NONE, PAPER, search
from policies.mechanisms.configuration import choose, instance
from policies.mechanisms.problem import Problem
from policies.snapshot import Floats, Ints


@dataclass(frozen=True, slots=True)
class Solution:
    """int64[E] each: node and configuration of every job of a problem, -1 where it is postponed."""

    node: Ints
    config: Ints

    @property
    def placed(self) -> Ints:
        """Jobs that have a node."""
        return np.flatnonzero(self.node != NONE)


def pack(problem: Problem, order: Ints) -> Solution:
    """Greedy over the queue `order` (int64[E]): the cheapest configuration that meets the due date, else the fastest."""
    data = instance(problem, choose(problem), np.zeros(len(problem.rows)))
    queue = order.astype(np.int64)[None, :]
    node, config, _, _ = search(data, queue, least_gpus(problem, queue), PAPER, 0, 0.0, 0.0, 0.0, 1)
    return Solution(node, config)


def least_gpus(problem: Problem, orders: Ints) -> Ints:
    """int64[S, C, E + 1]: the fewest GPUs with which any job from a place of the queue on could use a node of the class."""
    too_many = problem.cost.shape[1]
    by_class = np.full((len(problem.cost), len(problem.rows)), too_many, dtype=np.int64)
    for k, (c, gpus) in enumerate(zip(problem.config_class, problem.config_gpus, strict=True)):
        by_class[c] = np.where(problem.feasible[:, k], np.minimum(by_class[c], gpus), by_class[c])
    least = np.full((len(orders), len(problem.cost), len(problem.rows) + 1), too_many, dtype=np.int64)
    for s, order in enumerate(orders):
        least[s, :, :-1] = np.minimum.accumulate(by_class[:, order[::-1]], axis=1)[:, ::-1]
    return least


def run_times_s(problem: Problem, solution: Solution) -> Floats:
    """float64[placed]: run time of each placed job as the objective sees it: with a launch unless it stays where it runs."""
    jobs = solution.placed
    config = solution.config[jobs]
    moved = (config == problem.home_config[jobs]) & (solution.node[jobs] != problem.home[jobs])
    times: Floats = problem.times_s[jobs, config] + np.where(moved, problem.move_s[jobs], 0.0)
    return times


def objective(problem: Problem, solution: Solution, rho: float) -> float:
    """ANDREAS' f (eq. 1): tardiness of the placed, rho times worst-case tardiness of the postponed, each open node at its cost
    c[n, used] until its first job ends. Jobs that stay outside of the decision are left out."""
    jobs, times = solution.placed, run_times_s(problem, solution)
    late = np.maximum(times - problem.slack_s[jobs], 0.0)
    waiting = problem.penalty(rho).sum() - problem.penalty(rho)[jobs].sum()
    tardiness = float((problem.column("tardiness_weight")[jobs] * late).sum()) + float(waiting)
    first = np.full(len(problem.nodes), np.inf)
    np.minimum.at(first, solution.node[jobs], times)
    used = np.bincount(solution.node[jobs], problem.config_gpus[solution.config[jobs]], len(problem.nodes)).astype(np.int64)
    at = np.flatnonzero(used)
    return tardiness + float((problem.cost[problem.node_class[at], used[at]] * first[at]).sum())
