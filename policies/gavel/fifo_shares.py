"""First in, first out over unlike GPUs, as shares of time (Gavel, section 4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from policies.contract.snapshot import Snapshot
from policies.gavel.base import Notes, Program, SharePolicy, places_by_arrival
from policies.gavel.division.classing import Asked
from policies.gavel.division.observe import Observed
from policies.gavel.solvers.queue_order import first_in_first_out


@dataclass(frozen=True, slots=True)
class FifoShares(SharePolicy):
    """Time on unlike GPUs by submission: who came first has most, where he is fastest (Gavel's
    FIFO).

    The plan's objective is the sum over the M jobs of throughput / (throughput where fastest) * (M
    - place), the first place being
    0. Unlike `fifo` it may stop a job that runs for one that came before it, and moves jobs to
       faster GPUs when these come free.
    """

    name: ClassVar[str] = "fifo_shares"

    def _asked(self, snapshot: Snapshot) -> Asked:
        return Asked(jobs=True)

    def _program(self, observed: Observed, notes: Notes) -> Program:
        return partial(first_in_first_out, place=places_by_arrival(observed))
