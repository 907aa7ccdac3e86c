"""Max-min fairness over unlike GPUs (Gavel's least attained service, section 4.1)."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from policies.contract.policy import parameter
from policies.gavel.allocation.observe import Observed
from policies.gavel.allocation.problem import AllocationProblem, Shares
from policies.gavel.base import Notes, SharePolicy, Solver
from policies.gavel.solvers.fairness import fair_shares, fairness


@dataclass(frozen=True, slots=True)
class MaxMinFairness(SharePolicy):
    """Time on unlike GPUs so that the worst-off job makes the most progress (Gavel's LAS).

    Shares of time by GPU type maximise the least weighted throughput, relative to equal time on all
    GPUs: the plan's objective. The round mechanism turns them into time slices.
    """

    name: ClassVar[str] = "max_min_fairness"

    weighted: bool = parameter(
        True, meaning="shares in proportion to the jobs' weights; else all jobs have equal weights"
    )
    fill: bool = parameter(
        True,
        meaning=(
            "raise shares until no job can get more without taking from a poorer one; else raise"
            " only the lowest share"
        ),
    )

    def _solver(self, observed: Observed, notes: Notes) -> Solver:
        return self._shares

    def _shares(self, problem: AllocationProblem) -> Shares:
        if not self.weighted:
            problem = replace(problem, weight=np.ones_like(problem.weight))
        return fair_shares(problem) if self.fill else fairness(problem)
