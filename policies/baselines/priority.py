"""Priority scheduling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from policies.contract.parameters import parameter
from policies.contract.plan import Plan
from policies.contract.snapshot import Ints, Snapshot
from policies.placement.naming import Queued, queue_plan


@dataclass(frozen=True, slots=True)
class Priority:
    """Jobs by priority or tardiness weight; a started job keeps its configuration and is never
    touched (ANDREAS' baseline PS).
    """

    queue_only: ClassVar[bool] = True

    by: str = parameter(
        "priority",
        meaning=(
            "priority: by the job's priority, then tardiness weight; weight: by the tardiness"
            " weight alone (the paper's PS)"
        ),
        choices=("priority", "weight"),
    )

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Place waiting jobs by `by`, greater first, equal ones by arrival."""
        return queue_plan(snapshot, "priority", self._queue)

    def _queue(self, queued: Queued) -> Ints:
        keys = (queued.column("arrival_s"), -queued.column("tardiness_weight"))
        return np.lexsort((*keys, -queued.count("priority")) if self.by == "priority" else keys)
