"""A snapshot as share policies see it: job classes, and the cluster that they divide."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from policies.contract.plan import Waiting
from policies.contract.snapshot import Floats, Snapshot
from policies.gavel.allocation.job_classes import JobClasses, job_classes
from policies.gavel.allocation.problem import AllocationProblem
from policies.gavel.allocation.rates import GroupingOptions
from policies.placement.cluster_state import ClusterState
from policies.placement.from_snapshot import CurrentPlacement, cluster_of, current_placements
from policies.placement.layout import EVERY
from policies.placement.priced_options import JobRequests
from policies.placement.waiting.reasons import not_eligible

__all__ = ["GroupingOptions", "Observed", "observe"]

PLAIN = GroupingOptions()


@dataclass(frozen=True, slots=True)
class Observed:
    """Snapshot as a share policy sees it.

    `classes`: of the jobs that take part. `state`: the cluster without them. `waiting`: by row,
    jobs that wait whatever the capacity. `pinned`: jobs that stay on nodes that take nothing new.
    `fallback`: by row, placements of jobs on draining nodes, if there is no room elsewhere.
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


def observe(snapshot: Snapshot, options: GroupingOptions = PLAIN) -> Observed:
    """Observe a snapshot for a share policy; each job has `gpus_min` GPUs.

    A job of weight 0, or that can run nowhere now, is in no class and gets leftover GPUs.
    """
    waiting = not_eligible(snapshot)
    state = cluster_of(snapshot)
    requests = JobRequests(snapshot.jobs.columns, state.layout)
    pinned, fallback = _outside(snapshot, waiting, state)
    apart = {*waiting, *(stay.row for stay in pinned)}
    classes = job_classes(snapshot, state, requests, options, apart)
    return Observed(snapshot, classes, state, requests, waiting, pinned, fallback)


def _outside(
    snapshot: Snapshot, waiting: Mapping[int, Waiting], state: ClusterState
) -> tuple[tuple[CurrentPlacement, ...], Mapping[int, CurrentPlacement]]:
    """Return `Observed.pinned` and `fallback`; what the former hold is taken from `state`.

    A launch within its least run time on open nodes takes part, and keeps its devices. It is pinned
    only if it runs on other GPUs than those that shares are of.
    """
    if state.open == EVERY and not snapshot.jobs.columns.numbers["min_run_s"].any():
        return (), {}
    pinned, fallback = current_placements(snapshot, waiting, never_touch=False, state=state)
    nodes = snapshot.node_by_id
    outside = []
    for stay in pinned:
        is_open = all(nodes[rank.node].takes_training for rank in stay.run.ranks)
        if is_open and _can_have_share(snapshot, stay):
            state.release(stay.allocation)
        else:
            outside.append(stay)
    return tuple(outside), fallback


def _can_have_share(snapshot: Snapshot, stay: CurrentPlacement) -> bool:
    """Return True if a job runs on the GPUs that shares are of: `gpus_min` of one type."""
    gpus = sum(len(rank.devices) for rank in stay.run.ranks)
    types = {snapshot.node_by_id[rank.node].gpu_type for rank in stay.run.ranks}
    return len(types) == 1 and gpus == snapshot.jobs.columns.counts["gpus_min"][stay.row]
