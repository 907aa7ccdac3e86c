"""Placements of jobs that have a time slice in the next round.

Running jobs keep their placements. Larger gangs are placed first; one without a node may take the
devices of smaller jobs, which then move. Idle GPUs go to running jobs without a slice, then to
waiting jobs. Jobs are numbers, columns the policy's GPU types (on one node or spread).
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, Protocol

from policies.contract.snapshot import Running
from policies.placement.cluster_state import ClusterState
from policies.placement.layout import DEVICES, Allocation, Request

ALONE = -1
"""Partner of a job that shares its device with nobody."""


class Slice(NamedTuple):
    """Time slice for one job, or for two that share a device, on GPUs of this column."""

    jobs: tuple[int, ...]
    column: int
    gpus: int


class CurrentSlice(NamedTuple):
    """Running job that may go on where it is.

    `shares`: it holds a share of its device; `partner`: the job that holds the same, or ALONE.
    """

    job: int
    run: Running
    column: int
    allocation: Allocation
    shares: bool = False
    partner: int = ALONE


class Placed(NamedTuple):
    """Jobs on their GPUs in the next round; those `staying` keep theirs."""

    jobs: tuple[int, ...]
    column: int
    allocation: Allocation
    staying: tuple[int, ...] = ()


class SliceRequests(Protocol):
    """The requests of a policy's jobs."""

    def alternatives(self, job: int, column: int) -> Sequence[Request]:
        """Return alternatives for a job on a column; the first that fits is taken."""
        ...

    def together(self, first: int, second: int, column: int) -> Request | None:
        """Return the request of two jobs on one device; None if they may not share there."""
        ...

    def is_pair(self, first: int, second: int, column: int) -> bool:
        """Return True if two jobs are known to go together on a column."""
        ...

    def search_key(self, job: int) -> Hashable:
        """Return a key; of jobs with equal keys all fit on what is free, or none."""
        ...

    def columns(self, job: int) -> Sequence[int]:
        """Return the columns on which a job runs, the fastest first."""
        ...

    def one_node_column(self, column: int) -> int | None:
        """Return the column of one node where this one is spread over several of that type."""
        ...


class TimeSlices:
    """Placements of one round on a cluster state, by job: `placed`."""

    def __init__(
        self, state: ClusterState, requests: SliceRequests, current: Mapping[int, CurrentSlice]
    ) -> None:
        self.state = state
        self.requests = requests
        self.current = current
        self.placed: dict[int, Placed] = {}

    # ---- in this order: keep, assign, backfill

    def keep(self, jobs: Iterable[int]) -> None:
        """Keep these running jobs where they are, while resources and power last."""
        for job in jobs:
            if job not in self.placed:
                partner = self.current[job].partner
                self._stay((job,) if partner == ALONE else (job, partner))

    def assign(self, slices: Iterable[Slice], *, may_evict: bool) -> None:
        """Place jobs with a slice, the largest first; omit those that do not fit.

        `may_evict`: a gang without a node may take devices of smaller running jobs.
        """
        # 1. Jobs whose slice is where they run stay there.
        ordered = sorted(slices, key=attrgetter("gpus"), reverse=True)
        moving = []
        for slice_ in ordered:
            if not (self._is_where_jobs_are(slice_) and self._stay(slice_.jobs)):
                moving.append(slice_)
        evictable: list[Slice] = []
        if may_evict:
            evictable = [slice_ for slice_ in ordered if slice_.jobs[0] in self.placed]

        # 2. The others move to free GPUs, or a gang evicts smaller jobs, which move then.
        while moving:
            slice_ = moving.pop(0)
            if self._move(slice_):
                continue
            smaller = [other for other in evictable if other.gpus < slice_.gpus]
            if smaller and slice_.gpus > 1 and len(slice_.jobs) == 1:
                evicted = self._evict_for(slice_, smaller)
                evictable = [other for other in evictable if other not in evicted]
                moving = sorted([*moving, *evicted], key=attrgetter("gpus"), reverse=True)

    def backfill(self, waiting: Callable[[], Sequence[list[int]]]) -> None:
        """Give idle GPUs to running jobs without a slice, then to waiting jobs.

        `waiting`: jobs by class, in the order of the classes; one job of each class at a time.
        """
        for job in self.current:
            if job not in self.placed:
                self._stay((job,))
        if not self._has_room():
            return
        unplaceable: set[Hashable] = set()
        queues = [list(reversed(jobs)) for jobs in waiting() if jobs]
        while queues:
            for queue in queues:
                job = queue.pop()
                key = self.requests.search_key(job)
                if key not in unplaceable and not self._join(job) and not self._start(job):
                    unplaceable.add(key)
            queues = [queue for queue in queues if queue]

    def _has_room(self) -> bool:
        """Return True if a device is free, or may get a second job."""
        for groups in self.state.groups:
            if any(free[DEVICES] for free in groups):
                return True
        return any(self._may_join(placed) for placed in self.placed.values())

    # ---- running jobs

    def _is_where_jobs_are(self, slice_: Slice) -> bool:
        """Return True if the slice is on devices that its jobs hold already."""
        current = self.current.get(slice_.jobs[0])
        if current is None:
            return False
        if current.column not in (slice_.column, self.requests.one_node_column(slice_.column)):
            return False
        return len(slice_.jobs) == 1 or current.partner == slice_.jobs[1]

    def _stay(self, jobs: tuple[int, ...]) -> bool:
        """Place one job, or two partners, where they are; return if that was possible."""
        current = self.current[jobs[0]]
        allocation = current.allocation
        if len(jobs) == 2:
            both = self._on_device_of(current, jobs)
            if both is None or not self._has_two_slots(both):
                return False
            allocation = both
        return self._place(Placed(jobs, current.column, allocation, jobs))

    def _on_device_of(self, current: CurrentSlice, jobs: tuple[int, ...]) -> Allocation | None:
        """Return two jobs on the device that one of them holds; None if they may not share it."""
        request = self.requests.together(jobs[0], jobs[1], current.column)
        if request is None:
            return None
        return Allocation(request, current.allocation.parts)

    # ---- jobs that move or start; each returns if the jobs were placed

    def _move(self, slice_: Slice) -> bool:
        """Place the jobs of a slice on free GPUs of its column."""
        if len(slice_.jobs) == 2:
            return self._move_pair(slice_)
        return self._start_on(slice_.jobs[0], slice_.column)

    def _start(self, job: int) -> bool:
        """Place a job on the fastest column that has free GPUs for it."""
        return any(self._start_on(job, column) for column in self.requests.columns(job))

    def _start_on(self, job: int, column: int) -> bool:
        """Place a job on free GPUs of a column."""
        allocation = self.state.find_first(self.requests.alternatives(job, column))
        if allocation is None:
            return False
        # One node was enough though the column may be spread over several.
        one_node_column = self.requests.one_node_column(column)
        if len(allocation.parts) == 1 and one_node_column is not None:
            column = one_node_column
        return self._place(Placed((job,), column, allocation))

    def _move_pair(self, slice_: Slice) -> bool:
        """Place two jobs on the device that one of them shares with nobody, else on a free one."""
        first, second = slice_.jobs
        for job, other in ((first, second), (second, first)):
            current = self.current.get(job)
            if current is not None and current.shares and current.column == slice_.column:
                allocation = self._on_device_of(current, (job, other))
                if allocation is not None and self._has_two_slots(allocation):
                    return self._place(Placed((job, other), slice_.column, allocation, (job,)))
        request = self.requests.together(first, second, slice_.column)
        if request is None:
            return False
        allocation = self.state.find(request)
        if allocation is None:
            return False
        return self._place(Placed(slice_.jobs, slice_.column, allocation))

    def _join(self, job: int) -> bool:
        """Place a waiting job with one that holds a share of a device alone, if they may share."""
        for placed in list(self.placed.values()):
            if not self._may_join(placed):
                continue
            first = placed.jobs[0]
            allocation = self._on_device_of(self.current[first], (first, job))
            if allocation is None or not self._has_two_slots(allocation):
                continue
            if not self.requests.is_pair(first, job, placed.column):
                continue
            self._unplace(placed)
            if self._place(Placed((first, job), placed.column, allocation, (first,))):
                return True
            self._place(placed)
        return False

    def _may_join(self, placed: Placed) -> bool:
        """Return True if a job stays, alone, on a share of a device."""
        is_alone = len(placed.jobs) == 1 and placed.staying == placed.jobs
        return is_alone and self.current[placed.jobs[0]].shares

    def _evict_for(self, gang: Slice, smaller: Sequence[Slice]) -> Collection[Slice]:
        """Place a gang where that evicts the fewest smaller jobs; return their slices."""
        # 1. Only on one node: evicting jobs of several is not tried.
        if self.requests.one_node_column(gang.column) is not None:
            return ()
        requests = self.requests.alternatives(gang.jobs[0], gang.column)[:1]
        slices_on: dict[int, list[Slice]] = {}
        for slice_ in smaller:
            parts = self.placed[slice_.jobs[0]].allocation.parts
            for node in dict.fromkeys(part.node for part in parts):
                slices_on.setdefault(node, []).append(slice_)

        # 2. From the node with the most free GPUs on, evict its jobs one by one, the smallest
        #    first, until the gang fits. If it never does, they stay.
        for node in sorted(slices_on, key=lambda node: (-self.state.free[node][DEVICES], node)):
            evicted: list[Slice] = []
            placed_before = [self.placed[slice_.jobs[0]] for slice_ in slices_on[node]]
            for slice_, placed in zip(
                reversed(slices_on[node]), reversed(placed_before), strict=True
            ):
                self._unplace(placed)
                evicted.append(slice_)
                allocation = self.state.find_first(requests, 1 << node)
                if allocation is not None:
                    self._place(Placed(gang.jobs, gang.column, allocation))
                    return evicted
            for placed in placed_before:
                self._place(placed)
        return ()

    def _has_two_slots(self, allocation: Allocation) -> bool:
        """Return True if the device may be shared by two jobs."""
        return self.state.layout.has_slots(allocation.request, allocation.parts[0])

    def _place(self, placed: Placed) -> bool:
        """Take an allocation for its jobs; return if it was free and the power cap allowed it."""
        if not self.state.try_take(placed.allocation):
            return False
        for job in placed.jobs:
            self.placed[job] = placed
        return True

    def _unplace(self, placed: Placed) -> None:
        self.state.release(placed.allocation)
        for job in placed.jobs:
            del self.placed[job]
