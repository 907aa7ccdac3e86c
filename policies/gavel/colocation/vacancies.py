"""What is left of a problem's devices, resources and watts while jobs are seated one after the
other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policies.andreas.kernels.arrays import NONE
from policies.andreas.problem import Problem
from policies.andreas.solution import Solution
from policies.contract.snapshot import Bools, Floats, Ints
from policies.contract.validation import TOLERANCE


class Vacancies:
    """Seats of a problem's jobs; `free` int64[N] devices that nobody has taken, `node` and `config`
    int64[E] what each job took.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.free: Ints = np.array([len(d) for d in problem.devices], dtype=np.int64)
        self.left: Floats = problem.capacity.copy()
        self.used: Ints = problem.busy.copy()
        self.watts = problem.watts
        self.node: Ints = np.full(len(problem.rows), NONE, dtype=np.int64)
        self.config: Ints = np.full(len(problem.rows), NONE, dtype=np.int64)
        self.number = {
            (int(c), int(g)): k
            for k, (c, g) in enumerate(zip(problem.config_class, problem.config_gpus, strict=True))
        }

    @property
    def solution(self) -> Solution:
        """The seats taken."""
        return Solution(self.node, self.config)

    def config_at(self, n: int, gpus: int) -> int:
        """The configuration of so many GPUs of node n; NONE where it has not as many."""
        return self.number.get((int(self.problem.node_class[n]), gpus), NONE)

    def roomy(self, job: int, gpus: int, beside: Sequence[int] = ()) -> Bools:
        """bool[N]: nodes on which the job may run on so many GPUs, and those `beside` it on the
        same ones, and for which devices, resources and watts are left.
        """
        problem, jobs = self.problem, [job, *beside]
        usable = np.flatnonzero((problem.config_gpus == gpus) & problem.feasible[jobs].all(axis=0))
        fits: Bools = np.isin(problem.node_class, problem.config_class[usable]) & (
            self.free >= gpus
        )
        if self.left.shape[1]:
            fits &= np.all(problem.demand[jobs].sum(axis=0) <= self.left + TOLERANCE, axis=1)
        if np.isfinite(self.watts):
            fits &= self._more_watts(gpus) <= self.watts + TOLERANCE
        return fits

    def take(self, job: int, n: int, gpus: int, beside: Sequence[int] = ()) -> None:
        """Seat the job on so many GPUs of node n, and those `beside` it on the same ones: the
        solution knows but the first.
        """
        if np.isfinite(self.watts):
            self.watts -= float(self._more_watts(gpus)[n])
        self.free[n] -= gpus
        self.used[n] += gpus
        self.left[n] -= self.problem.demand[[job, *beside]].sum(axis=0)
        self.node[job], self.config[job] = n, self.config_at(n, gpus)

    def _more_watts(self, gpus: int) -> Floats:
        """float64[N]: watts that so many GPUs more would use on each node; a node without work uses
        none.
        """
        power, most = self.problem.power[self.problem.node_class], self.problem.power.shape[1] - 1
        at = np.arange(len(self.used))
        now = np.where(self.used > 0, power[at, np.minimum(self.used, most)], 0.0)
        more: Floats = power[at, np.minimum(self.used + gpus, most)] - now
        return more
