"""The shortest job first over unlike GPUs (Gavel, section 4.2)."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from policies.contract.snapshot import Snapshot
from policies.gavel.allocation.observe import Observed
from policies.gavel.allocation.rates import GroupingOptions
from policies.gavel.base import Notes, SharePolicy, Solver, steps_left
from policies.gavel.solvers.totals import shortest_job_first


@dataclass(frozen=True, slots=True)
class ShortestFirst(SharePolicy):
    """Time on unlike GPUs to the job that can end soonest, then to the others in that order (SJF).

    The remaining work counts, where the job is fastest. The plan's objective is the sum over the M
    jobs of throughput / (throughput where fastest) * (M - position in that order).
    """

    name: ClassVar[str] = "shortest_first"

    def _grouping(self, snapshot: Snapshot) -> GroupingOptions:
        return GroupingOptions(jobs=True)

    def _solver(self, observed: Observed, notes: Notes) -> Solver:
        return partial(shortest_job_first, steps=steps_left(observed))
