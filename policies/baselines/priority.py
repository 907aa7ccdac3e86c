"""Priority scheduling."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from policies.baselines.fifo import queue_plan
from policies.contract.plan import Plan
from policies.contract.policy import parameter
from policies.contract.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Priority:
    """Jobs by priority or tardiness weight; a started job is never touched (ANDREAS' PS)."""

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
        """Start waiting jobs by `by`, greater first, equal ones by arrival."""
        numbers, counts = snapshot.jobs.columns.numbers, snapshot.jobs.columns.counts
        keys = (numbers["arrival_s"], -numbers["tardiness_weight"])
        by = (*keys, -counts["priority"]) if self.by == "priority" else keys
        return queue_plan(snapshot, "priority", np.lexsort(by))
