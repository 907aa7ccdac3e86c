"""A snapshot as share policies see it: job classes, the cluster that they divide, what is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from policies.contract.plan import Waiting
from policies.contract.snapshot import Floats, NodeView, Running, Snapshot
from policies.gavel.allocation.job_classes import ClassInputs, JobClasses, job_classes
from policies.gavel.allocation.problem import AllocationProblem
from policies.gavel.allocation.rates import GroupingOptions
from policies.placement.cluster_state import ClusterState
from policies.placement.from_snapshot import (
    CurrentPlacement,
    cluster_of,
    current_placements,
    not_eligible,
)
from policies.placement.layout import Layout
from policies.placement.options import JobRequests
from policies.placement.time_slices import CurrentSlice

Inputs = TypeVar("Inputs")
Result = TypeVar("Result")

LayoutInputs: TypeAlias = tuple[Sequence[NodeView], tuple[str, ...], Sequence[int]]
"""Nodes, the resources that are counted, and by node the devices that are."""

CurrentInputs: TypeAlias = tuple[
    ClassInputs, LayoutInputs, Sequence[int], Sequence[tuple[Running, ...]]
]
"""Of the job classes, of the layout, by node the idle devices, and by row what runs."""


class Kept(Generic[Inputs, Result]):
    """The last result with all that it follows from, which is compared by value."""

    def __init__(self) -> None:
        self._last: tuple[Inputs, Result] | None = None

    def of(self, inputs: Inputs, make: Callable[[], Result]) -> Result:
        """Return the last result if these were its inputs, else a new one."""
        if self._last is None or self._last[0] != inputs:
            self._last = inputs, make()
        return self._last[1]


@dataclass(slots=True)
class RoundCache:
    """Results of the round before: most rounds see the jobs and nodes of the one before.

    The world owns it and passes it to its policy. A plan never depends on it.
    """

    layout: Kept[LayoutInputs, Layout] = field(default_factory=Kept)
    job_classes: Kept[ClassInputs, JobClasses] = field(default_factory=Kept)
    current: Kept[CurrentInputs, Mapping[int, CurrentSlice]] = field(default_factory=Kept)


__all__ = ["GroupingOptions", "Observed", "observe"]

PLAIN = GroupingOptions()


@dataclass(frozen=True, slots=True)
class Observed:
    """A snapshot's job classes, and the cluster without the jobs that take part (`state`).

    All jobs take part but those that must wait whatever the capacity (`waiting`, by row) and those
    that stay on nodes which take nothing new (`pinned`). `fallback`: by row, where jobs on draining
    nodes may stay if there is no room elsewhere.
    """

    snapshot: Snapshot
    classes: JobClasses
    state: ClusterState
    requests: JobRequests
    waiting: Mapping[int, Waiting]
    pinned: tuple[CurrentPlacement, ...]
    fallback: Mapping[int, CurrentPlacement]

    @property
    def problem(self) -> AllocationProblem:
        """The allocation problem of the classes."""
        return self.classes.problem

    def number(self, name: str) -> Floats:
        """float64[M]: a numeric column of the first job of each class."""
        first = np.array([members[0] for members in self.classes.members], dtype=np.int64)
        return self.snapshot.jobs.columns.numbers[name][first]


def observe(
    snapshot: Snapshot, options: GroupingOptions = PLAIN, cache: RoundCache | None = None
) -> Observed:
    """Return what this snapshot has to share, with `gpus_min` GPUs for each job.

    A job of weight 0, or that can run nowhere now, is in no class and has what is left over.
    """
    cache = RoundCache() if cache is None else cache
    waiting = not_eligible(snapshot)
    state = cluster_of(snapshot, lambda *of: cache.layout.of(of, lambda: Layout(*of)))
    requests = JobRequests(snapshot, state.layout)
    pinned, fallback = _outside(snapshot, waiting, state)
    apart = {*waiting, *(stay.row for stay in pinned)}
    inputs = ClassInputs.of(snapshot, state, options, apart)
    classes = cache.job_classes.of(inputs, lambda: job_classes(snapshot, inputs, requests))
    return Observed(snapshot, classes, state, requests, waiting, pinned, fallback)


def _outside(
    snapshot: Snapshot, waiting: Mapping[int, Waiting], state: ClusterState
) -> tuple[tuple[CurrentPlacement, ...], Mapping[int, CurrentPlacement]]:
    """Return the jobs that stay on nodes which take nothing new, and those that may if need be.

    What the former hold is taken from `state`. A job launched at this very moment takes part: it
    has its share, on its own devices.
    """
    if all(node.takes_training for node in snapshot.nodes):
        return (), {}
    pinned, fallback = current_placements(snapshot, waiting, never_touch=False, state=state)
    nodes, outside = snapshot.node_by_id, []
    for stay in pinned:
        if all(nodes[rank.node].takes_training for rank in stay.run.ranks):
            state.release(stay.allocation)
        else:
            outside.append(stay)
    return tuple(outside), fallback
