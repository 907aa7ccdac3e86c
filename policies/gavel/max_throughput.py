"""The highest throughput of all jobs together over unlike GPUs (Gavel, section 4.2)."""

from dataclasses import dataclass
from typing import ClassVar

from policies.gavel.allocation.observe import Observed
from policies.gavel.base import Notes, SharePolicy, Solver
from policies.gavel.solvers.totals import total_throughput


@dataclass(frozen=True, slots=True)
class MaxThroughput(SharePolicy):
    """Time on unlike GPUs where it brings most: the highest sum of throughputs, without fairness.

    The plan's objective is the sum over all jobs of throughput / (throughput where fastest). A gang
    counts as one job: it waits as long as its GPUs serve more jobs.
    """

    name: ClassVar[str] = "max_throughput"

    def _solver(self, observed: Observed, notes: Notes) -> Solver:
        return total_throughput
