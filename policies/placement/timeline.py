"""Free capacity over time, by the expected ends of running jobs: starts and reservations."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from functools import reduce
from math import inf
from operator import and_
from typing import NamedTuple, TypeAlias

from policies.placement.cluster_state import ClusterState
from policies.placement.free_capacity import Hold
from policies.placement.layout import RESOURCES, Allocation, Free, node_set

End: TypeAlias = tuple[float, int, Hashable]
"""(time in s, number for a fixed order, job)."""

Search: TypeAlias = Callable[[ClusterState], Allocation | None]
"""Allocation that a job would take of a state; None if it does not fit. A release never hurts."""


def earliest(
    state: ClusterState, search: Search, now_s: float
) -> tuple[float, ClusterState] | None:
    """Return the earliest time at which a search finds something, and the state then.

    Jobs are released in copies in the order of their ends, in doubling steps, then the end is
    bisected: exact, because a release never hurts.
    """
    if search(state) is not None:
        return now_s, state.copy()
    ends = _ends(state, now_s)
    before, low, high, step = state, 0, len(ends), 1
    while low < high:  # the first `low` have ended in `before`, where nothing is found
        upto = min(low + step, high)
        trial = _after(before, ends[low:upto])
        if search(trial) is None:
            before, low = trial, upto
            step = 2 * step if high == len(ends) else max(1, (high - upto) // 2)
        elif upto == low + 1:
            end_s = ends[low][0]
            return end_s, _after(trial, [end for end in ends[upto:] if end[0] == end_s])
        else:
            high, step = upto, (upto - low) // 2
    return None


class Reservation(NamedTuple):
    """Allocation that a job is to have from `start_s` for `run_s`, on nodes of its own if `alone`.

    `run_s`: inf if unknown.
    """

    start_s: float
    run_s: float
    allocation: Allocation
    alone: bool = False

    @property
    def end_s(self) -> float:
        return self.start_s + self.run_s


class Timeline:
    """States of a cluster from now on: `states[i]` from `times[i]` to the next, the last for ever.

    Each running job ends when it is expected to; reservations hold what they have in the states of
    their time.
    """

    def __init__(self, state: ClusterState, now_s: float) -> None:
        self.times, self.states = [now_s], [state.copy()]
        for end_s, _, job in _ends(state, now_s):
            if end_s > self.times[-1]:
                self.times.append(end_s)
                self.states.append(self.states[-1].copy())
            self.states[-1].release(state.held[job].allocation, job)

    def earliest(
        self, search: Search, run_s: float, since_s: float = -inf
    ) -> tuple[float, Allocation] | None:
        """Return the earliest start, and what is found that is free from then on for `run_s`."""
        first = bisect_left(self.times, since_s)
        while first < len(self.times):
            found, last_miss = self._from(first, search, run_s)
            if found is not None:
                return self.times[first], found
            first = last_miss + 1
        return None

    def reserve(self, job: Hashable, made: Reservation) -> None:
        """Take an allocation for the time of a reservation. ValueError if it is not free."""
        for state in self._during(made.start_s, made.end_s):
            state.take(made.allocation, job, made.end_s, alone=made.alone)

    def cancel(self, job: Hashable, made: Reservation) -> None:
        """Undo `reserve`."""
        for state in self._during(made.start_s, made.end_s):
            state.release(made.allocation, job)

    def during(self, start_s: float, run_s: float) -> ClusterState:
        """Return the state in which is free what is free all the time from a start for `run_s`."""
        return together(self._during(start_s, start_s + run_s))

    def _from(self, first: int, search: Search, run_s: float) -> tuple[Allocation | None, int]:
        """Return what is free from a state on, else the last state that rules this start out."""
        last = max(first + 1, bisect_left(self.times, self.times[first] + run_s))
        for i in range(last - 1, first, -1):
            if search(self.states[i]) is None:
                return None, i
        return search(together(self.states[first:last])), first

    def _during(self, start_s: float, end_s: float) -> Sequence[ClusterState]:
        """Return the states of this time, which get bounds there."""
        first, last = self._bound(start_s), self._bound(end_s)
        return self.states[first:last]

    def _bound(self, at_s: float) -> int:
        """Return the number of the state that begins at a time, made if there is none."""
        i = bisect_left(self.times, at_s)
        if at_s < inf and (i == len(self.times) or self.times[i] != at_s):
            self.times.insert(i, at_s)
            self.states.insert(i, self.states[i - 1].copy())
        return i


def together(states: Sequence[ClusterState]) -> ClusterState:
    """Return the state in which only what is free in all of these is free.

    Its power is what all that is held in any of them would need: never too little.
    """
    first, *others = states
    if not others:
        return first
    layout, idle, free = first.layout, first.idle.copy(), first.free.copy()
    held: dict[Hashable, Hold] = dict(first.held)
    for state in others:
        held.update(state.held)
        for n, (one, other) in enumerate(zip(free, state.free, strict=True)):
            if one is not other or idle[n] != state.idle[n]:
                idle[n] &= state.idle[n]
                free[n] = layout.free(n, idle[n], _least(one, other, len(layout.resources)))
    new = ClusterState(layout, first.cap_mw, idle, free)
    new.open = reduce(and_, (state.open for state in states))
    new.held = held
    return new


def vacant(state: ClusterState) -> int:
    """Return the nodes on which nobody holds anything (a set)."""
    return ~reduce(int.__or__, (node_set(hold.allocation) for hold in state.held.values()), 0)


def _least(one: Free, other: Free, resources: int) -> tuple[int, ...]:
    upto = RESOURCES + resources
    return tuple(map(min, one[RESOURCES:upto], other[RESOURCES:upto]))


def _ends(state: ClusterState, now_s: float) -> list[End]:
    """Return the expected ends of jobs that hold something, the first first."""
    ends = [(max(hold.end_s, now_s), i, job) for i, (job, hold) in enumerate(state.held.items())]
    return sorted([end for end in ends if end[0] < inf])


def _after(state: ClusterState, ended: Sequence[End]) -> ClusterState:
    new = state.copy()
    for _, _, job in ended:
        new.release(new.held[job].allocation, job)
    return new
