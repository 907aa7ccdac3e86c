"""Earliest due date first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from policies.contract.plan import Plan
from policies.contract.snapshot import Ints, Snapshot
from policies.placement.naming import Queued, queue_plan


@dataclass(frozen=True, slots=True)
class Edf:
    """Jobs by due date; a started job keeps its configuration and is never touched (ANDREAS'
    baseline EDF).
    """

    queue_only: ClassVar[bool] = True

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Place waiting jobs by `due_s`, those without one last, equal ones by arrival."""
        return queue_plan(snapshot, "edf", _by_due_date)


def _by_due_date(queued: Queued) -> Ints:
    return np.lexsort((queued.column("arrival_s"), queued.column("due_s")))
