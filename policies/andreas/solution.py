"""A decision about a problem's jobs as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policies.andreas.kernels.arrays import NONE
from policies.andreas.problem import Problem
from policies.contract.snapshot import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Solution:
    """int64[E] each: node and configuration of every job of a problem, -1 where it is postponed."""

    node: Ints
    config: Ints

    @classmethod
    def empty(cls, problem: Problem) -> Solution:
        """Return the solution that postpones all jobs."""
        jobs = len(problem.rows)
        return cls(np.full(jobs, NONE, dtype=np.int64), np.full(jobs, NONE, dtype=np.int64))

    @property
    def placed(self) -> Ints:
        """Jobs that have a node."""
        return np.flatnonzero(self.node != NONE)

    def moved(self, problem: Problem) -> Bools:
        """bool[E]: True for jobs that are not where and as they run now."""
        moved: Bools = (self.node != problem.home) | (self.config != problem.home_config)
        return moved

    def run_times_s(self, problem: Problem) -> Floats:
        """float64[placed]: run time of each placed job, with a launch unless it stays."""
        jobs, config = self.placed, self.config[self.placed]
        elsewhere = (config == problem.home_config[jobs]) & (self.node[jobs] != problem.home[jobs])
        moves_s = np.where(elsewhere, problem.move_s[jobs], 0.0)
        times: Floats = problem.times_s[jobs, config] + moves_s
        return times
