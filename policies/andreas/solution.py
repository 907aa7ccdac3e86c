"""Who gets which node and configuration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policies.andreas.kernels.arrays import NONE
from policies.andreas.problem import Problem
from policies.contract.snapshot import Floats, Ints


@dataclass(frozen=True, slots=True)
class Solution:
    """int64[E] each: node and configuration of every job of a problem, -1 where it is postponed."""

    node: Ints
    config: Ints

    @property
    def placed(self) -> Ints:
        """Jobs that have a node."""
        return np.flatnonzero(self.node != NONE)


def run_times_s(problem: Problem, solution: Solution) -> Floats:
    """float64[placed]: run time of each placed job, with a launch unless it stays."""
    jobs = solution.placed
    config = solution.config[jobs]
    moved = (config == problem.home_config[jobs]) & (solution.node[jobs] != problem.home[jobs])
    times: Floats = problem.times_s[jobs, config] + np.where(moved, problem.move_s[jobs], 0.0)
    return times
