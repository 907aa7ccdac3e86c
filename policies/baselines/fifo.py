"""First in, first out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from policies.contract.plan import Plan
from policies.contract.snapshot import Ints, Snapshot
from policies.placement.naming import Queued, queue_plan


@dataclass(frozen=True, slots=True)
class Fifo:
    """Jobs by submission; a started job keeps its configuration and is never touched (ANDREAS'
    baseline FIFO).
    """

    queue_only: ClassVar[bool] = True

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Place waiting jobs by `arrival_s` on what is free; one that does not fit lets the next
        one try.
        """
        return queue_plan(snapshot, "fifo", _by_arrival)


def _by_arrival(queued: Queued) -> Ints:
    return np.argsort(queued.column("arrival_s"), kind="stable")
