"""First in, first out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from policies.baselines.queue_plan import queue_plan
from policies.contract.plan import Plan
from policies.contract.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Fifo:
    """Jobs by submission; a started job is never touched (ANDREAS' baseline FIFO)."""

    queue_only: ClassVar[bool] = True

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Start waiting jobs by `arrival_s`; one that does not fit lets the next one try."""
        arrival_s = snapshot.jobs.columns.numbers["arrival_s"]
        return queue_plan(snapshot, "fifo", np.argsort(arrival_s, kind="stable"))
