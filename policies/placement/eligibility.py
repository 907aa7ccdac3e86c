"""Which jobs and devices may be decided about at all, and the reason for each job that may not.

Devices that training jobs hold may be given to others; devices that profile runs hold, or jobs that
the snapshot does not know, are taken. A job is eligible when it is not being profiled and all its
dependencies are done (those no longer in the snapshot are).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from policies.contract.plan import WaitCode, Waiting
from policies.contract.snapshot import (
    DeviceView,
    Ints,
    JobPhase,
    NodeView,
    Purpose,
    Snapshot,
)


def free_devices(node: NodeView, jobs: Mapping[str, int]) -> tuple[str, ...]:
    """Return the healthy devices of a node that training may have; `jobs` knows the snapshot's."""
    return tuple([d.id for d in node.devices if d.healthy and not _taken(d, jobs)])


def _taken(device: DeviceView, jobs: Mapping[str, int]) -> bool:
    for hold in device.held:  # noqa: SIM110  # any() costs twice as much
        if hold.job not in jobs or hold.purpose is Purpose.PROFILING:
            return True
    return False


def not_eligible(snapshot: Snapshot) -> dict[int, Waiting]:
    """By row, jobs that wait for anything but capacity: profiling or dependencies."""
    columns = snapshot.jobs.columns
    phases, dependent = columns.others["phase"], columns.others["dependencies"]
    waiting = {}
    if JobPhase.PROFILING in phases:
        profiled = (i for i, phase in enumerate(phases) if phase is JobPhase.PROFILING)
        waiting = {i: Waiting(columns.ids[i], WaitCode.AWAITING_PROFILE) for i in profiled}
    if not any(dependent):
        return waiting
    known = snapshot.jobs.position
    for i, dependencies in enumerate(dependent):
        undone = tuple(d for d in dependencies if d in known)
        if undone and i not in waiting:
            waiting[i] = Waiting(columns.ids[i], WaitCode.DEPENDENCY, jobs=undone)
    return waiting


def signatures(
    snapshot: Snapshot, rows: Ints
) -> tuple[Ints, tuple[tuple[frozenset[str], frozenset[str]], ...]]:
    """Number of each row's (allowed types, labels), and the distinct ones."""
    allowed, labels = (
        snapshot.jobs.columns.others["allowed_types"],
        snapshot.jobs.columns.others["labels"],
    )
    numbers: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}
    of = np.array(
        [numbers.setdefault((allowed[i], labels[i]), len(numbers)) for i in rows], dtype=np.int64
    )
    return of, tuple((frozenset(types), frozenset(wanted)) for types, wanted in numbers)


@lru_cache(maxsize=4096)
def admits(
    signature: tuple[frozenset[str], frozenset[str]], gpu_type: str, labels: frozenset[str]
) -> bool:
    """True if the signature admits nodes of that type and labels."""
    types, wanted = signature
    return (not types or gpu_type in types) and wanted <= labels
