"""Earliest due date first."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from policies.baselines.fifo import queue_plan
from policies.contract.plan import Plan
from policies.contract.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Edf:
    """Jobs by due date; a started job is never touched (ANDREAS' baseline EDF)."""

    queue_only: ClassVar[bool] = True

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Start waiting jobs by `due_s`, those without one last, equal ones by arrival."""
        numbers = snapshot.jobs.columns.numbers
        return queue_plan(snapshot, "edf", np.lexsort((numbers["arrival_s"], numbers["due_s"])))
