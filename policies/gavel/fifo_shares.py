"""First in, first out over unlike GPUs, as shares of time (Gavel, section 4.2)."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from policies.contract.snapshot import Snapshot
from policies.gavel.allocation.observe import Observed
from policies.gavel.allocation.rates import GroupingOptions
from policies.gavel.base import Notes, SharePolicy, Solver, queue_positions
from policies.gavel.solvers.totals import first_in_first_out


@dataclass(frozen=True, slots=True)
class FifoShares(SharePolicy):
    """Time on unlike GPUs by submission: earlier jobs get most, where fastest (Gavel's FIFO).

    The plan's objective is the sum over the M jobs of throughput / (throughput where fastest) *
    (M - position), the first position being 0. Unlike `fifo` it may stop and move running jobs.
    """

    name: ClassVar[str] = "fifo_shares"

    def _grouping(self, snapshot: Snapshot) -> GroupingOptions:
        return GroupingOptions(jobs=True)

    def _solver(self, observed: Observed, notes: Notes) -> Solver:
        return partial(first_in_first_out, position=queue_positions(observed))
