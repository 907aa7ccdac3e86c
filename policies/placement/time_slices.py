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
from policies.placement.layout import Allocation, Request

ALONE = -1


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

    def of(self, job: int, column: int) -> Sequence[Request]:
        """Return alternatives for a job on a column, the first that fits is taken."""
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

    def nearer(self, column: int) -> int | None:
        """Return the column of one node where this one is spread over several of that type."""
        ...


class TimeSlices:
    """Placements of one round on a cluster state, by job: `placed`."""

    def __init__(
        self, state: ClusterState, requests: SliceRequests, current: Mapping[int, CurrentSlice]
    ) -> None:
        self.state, self.requests, self.current = state, requests, current
        self.placed: dict[int, Placed] = {}

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
        ordered = sorted(slices, key=attrgetter("gpus"), reverse=True)
        moving = [of for of in ordered if not (self._goes_on(of) and self._stay(of.jobs))]
        staying = [of for of in ordered if of.jobs[0] in self.placed] if may_evict else []
        while moving:
            of = moving.pop(0)
            if not self._move(of) and of.gpus > 1 and len(of.jobs) == 1:
                smaller = [s for s in staying if s.gpus < of.gpus]
                stopped = self._evict_for(of, smaller) if smaller else ()
                staying = [s for s in staying if s not in stopped]
                moving = sorted([*moving, *stopped], key=attrgetter("gpus"), reverse=True)

    def backfill(self, waiting: Callable[[], Sequence[list[int]]]) -> None:
        """Give idle GPUs to running jobs without a slice, then to waiting jobs.

        `waiting`: jobs by class, in the order of the classes; one job of each class at a time.
        """
        for job in self.current:
            if job not in self.placed:
                self._stay((job,))
        if not self._anything_left():
            return
        unplaceable: set[Hashable] = set()
        queues = [list(reversed(of_class)) for of_class in waiting()]
        while queues := [queue for queue in queues if queue]:
            for queue in queues:
                job = queue.pop()
                key = self.requests.search_key(job)
                if key not in unplaceable and not self._join(job) and not self._start(job):
                    unplaceable.add(key)

    def _anything_left(self) -> bool:
        free = (free[0] for groups in self.state.groups for free in groups)
        return any(free) or any(self._may_join(of) for of in self.placed.values())

    def _goes_on(self, of: Slice) -> bool:
        """Return True if the slice is on devices that its jobs hold already."""
        current = self.current.get(of.jobs[0])
        if current is None:
            return False
        on_column = current.column == of.column
        if not on_column and current.column != self.requests.nearer(of.column):
            return False
        return len(of.jobs) == 1 or current.partner == of.jobs[1]

    def _stay(self, jobs: tuple[int, ...]) -> bool:
        """Place jobs where they are, all or none."""
        current = self.current[jobs[0]]
        allocation = current.allocation
        if len(jobs) == 2:
            both = self._with(jobs, current)
            if both is None or not self._takes_two(both):
                return False
            allocation = both
        return self._place(Placed(jobs, current.column, allocation, jobs))

    def _with(self, jobs: tuple[int, ...], current: CurrentSlice) -> Allocation | None:
        """Return two jobs on the device that one of them holds."""
        request = self.requests.together(jobs[0], jobs[1], current.column)
        return None if request is None else Allocation(request, current.allocation.parts)

    def _move(self, of: Slice) -> bool:
        if len(of.jobs) == 2:
            return self._pair(of)
        return self._find(of.jobs, of.column)

    def _find(self, jobs: tuple[int, ...], column: int) -> bool:
        found = self.state.find_first(self.requests.of(jobs[0], column))
        if found is None:
            return False
        spread = len(found.parts) > 1
        nearer = self.requests.nearer(column)
        on = column if spread or nearer is None else nearer
        return self._place(Placed(jobs, on, found))

    def _pair(self, of: Slice) -> bool:
        """Place two jobs on the device that one of them shares with nobody, else on a free one."""
        for first, second in (of.jobs, of.jobs[::-1]):
            current = self.current.get(first)
            if current is not None and current.shares and current.column == of.column:
                allocation = self._with((first, second), current)
                if allocation is not None and self._takes_two(allocation):
                    return self._place(Placed((first, second), of.column, allocation, (first,)))
        request = self.requests.together(of.jobs[0], of.jobs[1], of.column)
        found = None if request is None else self.state.find(request)
        return found is not None and self._place(Placed(of.jobs, of.column, found))

    def _start(self, job: int) -> bool:
        return any(self._find((job,), column) for column in self.requests.columns(job))

    def _join(self, job: int) -> bool:
        """Place a waiting job with one that holds a share of a device alone, if they may share."""
        for other in [of for of in self.placed.values() if self._may_join(of)]:
            first = other.jobs[0]
            allocation = self._with((first, job), self.current[first])
            if allocation is None or not self._takes_two(allocation):
                continue
            if not self.requests.is_pair(first, job, other.column):
                continue
            self._unplace(other)
            if self._place(Placed((first, job), other.column, allocation, (first,))):
                return True
            self._place(other)
        return False

    def _may_join(self, of: Placed) -> bool:
        return len(of.jobs) == 1 and of.staying == of.jobs and self.current[of.jobs[0]].shares

    def _evict_for(self, of: Slice, smaller: Sequence[Slice]) -> Collection[Slice]:
        """Place a gang where that stops the fewest smaller jobs; return the slices of these."""
        on: dict[int, list[Slice]] = {}
        for slice_ in smaller:
            parts = self.placed[slice_.jobs[0]].allocation.parts
            for node in dict.fromkeys(part.node for part in parts):
                on.setdefault(node, []).append(slice_)
        requests = self.requests.of(of.jobs[0], of.column)[:1]
        if self.requests.nearer(of.column) is not None:
            return ()
        for node in sorted(on, key=lambda n: (-self.state.free[n][0], n)):
            stopped: list[Slice] = []
            before = [self.placed[s.jobs[0]] for s in on[node]]
            for slice_, placed in zip(reversed(on[node]), reversed(before), strict=True):
                self._unplace(placed)
                stopped.append(slice_)
                if (found := self.state.find_first(requests, 1 << node)) is not None:
                    self._place(Placed(of.jobs, of.column, found))
                    return stopped
            for placed in before:
                self._place(placed)
        return ()

    def _takes_two(self, allocation: Allocation) -> bool:
        return self.state.layout.has_slots(allocation.request, allocation.parts[0])

    def _place(self, placed: Placed) -> bool:
        if not self.state.try_take(placed.allocation):
            return False
        for job in placed.jobs:
            self.placed[job] = placed
        return True

    def _unplace(self, placed: Placed) -> None:
        self.state.release(placed.allocation)
        for job in placed.jobs:
            del self.placed[job]
