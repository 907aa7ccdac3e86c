"""From a queue to nodes: jobs in their order, each in its best configuration, best fit onto nodes.

`pack` is the deterministic construction that the baselines use and the Randomized Greedy starts
from; `policies.andreas.naming` makes plans of solutions.
"""

from __future__ import annotations

import numpy as np

from policies.andreas.configuration import choose, instance
from policies.andreas.kernels.greedy import PAPER, search
from policies.andreas.objective import Objective
from policies.andreas.problem import Problem
from policies.andreas.solution import Solution
from policies.contract.snapshot import Ints


def pack(problem: Problem, order: Ints) -> Solution:
    """Greedy over `order` (int64[E]): the cheapest configuration in time, else the fastest."""
    data = instance(problem, choose(problem), Objective(rho=0.0))
    queue = order.astype(np.int64)[None, :]
    node, config, _, _ = search(data, queue, least_gpus(problem, queue), PAPER, 0, 0.0, 0.0, 0.0, 1)
    return Solution(node, config)


def least_gpus(problem: Problem, orders: Ints) -> Ints:
    """int64[S, C, E + 1]: fewest GPUs on a class with which any job from a place on fits."""
    too_many = problem.cost.shape[1]
    by_class = np.full((len(problem.cost), len(problem.rows)), too_many, dtype=np.int64)
    for k, (c, gpus) in enumerate(zip(problem.config_class, problem.config_gpus, strict=True)):
        by_class[c] = np.where(problem.feasible[:, k], np.minimum(by_class[c], gpus), by_class[c])
    least = np.full(
        (len(orders), len(problem.cost), len(problem.rows) + 1), too_many, dtype=np.int64
    )
    for s, order in enumerate(orders):
        least[s, :, :-1] = np.minimum.accumulate(by_class[:, order[::-1]], axis=1)[:, ::-1]
    return least
