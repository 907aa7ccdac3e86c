"""Free capacity over time, by the expected ends of running jobs: starts and reservations."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from math import inf
from typing import NamedTuple, TypeAlias

from policies.placement.cluster_state import ClusterState
from policies.placement.free_capacity import Hold
from policies.placement.layout import RESOURCES, Allocation, Free, NodeSet, node_set

End: TypeAlias = tuple[float, int, Hashable]
"""(time in s, number for a fixed order, job)."""

Search: TypeAlias = Callable[[ClusterState], Allocation | None]
"""Allocation that a job would take of a state; None if it does not fit. A release never hurts."""


def earliest(
    state: ClusterState, search: Search, now_s: float
) -> tuple[float, ClusterState] | None:
    """Return the earliest time (s) at which a search finds something, and the state then.

    None if it finds nothing when all jobs of known end have ended. Jobs are released in copies in
    the order of their ends, in doubling steps, then the end is bisected: exact, because a release
    never hurts.
    """
    if search(state) is not None:
        return now_s, state.copy()

    # Nothing is found in `before`, where `low` jobs have ended; something is when `high` have.
    ends = _ends(state, now_s)
    before = state
    low = 0
    high = len(ends)
    step = 1
    while low < high:
        upto = min(low + step, high)
        trial = _after(before, ends[low:upto])
        if search(trial) is None:
            before = trial
            low = upto
            is_doubling = high == len(ends)
            step = 2 * step if is_doubling else max(1, (high - low) // 2)
        elif upto > low + 1:
            high = upto
            step = (high - low) // 2
        else:
            # This end is the first that will do; others at the same time belong to it.
            end_s = ends[low][0]
            return end_s, _after(trial, [end for end in ends[upto:] if end[0] == end_s])
    return None


class Reservation(NamedTuple):
    """Allocation that a job is to have from `start_s` for `run_s` seconds (inf: unknown).

    `alone`: it has its nodes to itself.
    """

    start_s: float
    run_s: float
    allocation: Allocation
    alone: bool = False

    @property
    def end_s(self) -> float:
        """End of the run; inf if unknown."""
        return self.start_s + self.run_s


class Timeline:
    """States of a cluster from now on: `states[i]` from `times[i]` to the next, the last for ever.

    Each running job ends when it is expected to; reservations hold what they have in the states of
    their time.
    """

    def __init__(self, state: ClusterState, now_s: float) -> None:
        self.times = [now_s]
        self.states = [state.copy()]
        for end_s, _, job in _ends(state, now_s):
            if end_s > self.times[-1]:
                self.times.append(end_s)
                self.states.append(self.states[-1].copy())
            self.states[-1].release(state.held[job].allocation, job)

    def earliest(
        self, search: Search, run_s: float, since_s: float = -inf
    ) -> tuple[float, Allocation] | None:
        """Return the earliest start (s), and an allocation that is free from then on for `run_s`.

        `since_s`: no start before this time. None if there is none.
        """
        first = bisect_left(self.times, since_s)
        while first < len(self.times):
            # 1. All states of the run must have room; look at the last ones first, as a state
            #    without room also rules out all starts up to it.
            last = max(first + 1, bisect_left(self.times, self.times[first] + run_s))
            without_room = self._last_without_room(first + 1, last, search)
            if without_room is not None:
                first = without_room + 1
                continue

            # 2. The same devices must be free in all of them.
            allocation = search(together(self.states[first:last]))
            if allocation is not None:
                return self.times[first], allocation
            first += 1
        return None

    def _last_without_room(self, first: int, last: int, search: Search) -> int | None:
        """Return the last state from `first` to before `last` where nothing is found, if any."""
        for i in range(last - 1, first - 1, -1):
            if search(self.states[i]) is None:
                return i
        return None

    def reserve(self, job: Hashable, reservation: Reservation) -> None:
        """Take an allocation for the time of a reservation. ValueError if it is not free."""
        end_s = reservation.end_s
        for state in self._during(reservation.start_s, end_s):
            state.take(reservation.allocation, job, end_s, alone=reservation.alone)

    def cancel(self, job: Hashable, reservation: Reservation) -> None:
        """Undo `reserve`."""
        for state in self._during(reservation.start_s, reservation.end_s):
            state.release(reservation.allocation, job)

    def during(self, start_s: float, run_s: float) -> ClusterState:
        """Return a state with what is free all the time from a start for `run_s` seconds."""
        return together(self._during(start_s, start_s + run_s))

    def _during(self, start_s: float, end_s: float) -> Sequence[ClusterState]:
        """Return the states from a start to an end; states that it cuts are split there."""
        first = self._state_from(start_s)
        last = self._state_from(end_s)
        return self.states[first:last]

    def _state_from(self, at_s: float) -> int:
        """Return the number of the state that begins at a time, split from the one before if new.

        For inf the number after the last state.
        """
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
    layout = first.layout
    idle = first.idle.copy()
    free = first.free.copy()
    opened = first.open
    held: dict[Hashable, Hold] = dict(first.held)
    for state in others:
        held.update(state.held)
        opened &= state.open
        for n, (free_so_far, free_then) in enumerate(zip(free, state.free, strict=True)):
            # Most nodes are the same in all states, down to the very tuple.
            if free_so_far is not free_then or idle[n] != state.idle[n]:
                idle[n] &= state.idle[n]
                amounts = _least_amounts(free_so_far, free_then, len(layout.resources))
                free[n] = layout.free(n, idle[n], amounts)
    new = ClusterState(layout, first.cap_mw, idle, free)
    new.open = opened
    new.held = held
    return new


def vacant(state: ClusterState) -> NodeSet:
    """Return the nodes on which nobody holds anything."""
    used: NodeSet = 0
    for hold in state.held.values():
        used |= node_set(hold.allocation)
    return ~used


def _least_amounts(one: Free, other: Free, resources: int) -> tuple[int, ...]:
    """Return the lesser amount of each of so many resources."""
    upto = RESOURCES + resources
    return tuple(map(min, one[RESOURCES:upto], other[RESOURCES:upto]))


def _ends(state: ClusterState, now_s: float) -> list[End]:
    """Return the known ends of jobs that hold something, the first first; overdue ones are now."""
    ends = []
    for i, (job, hold) in enumerate(state.held.items()):
        if hold.end_s < inf:
            ends.append((max(hold.end_s, now_s), i, job))
    return sorted(ends)


def _after(state: ClusterState, ended: Sequence[End]) -> ClusterState:
    """Return a copy of a state in which these jobs have ended."""
    new = state.copy()
    for _, _, job in ended:
        new.release(new.held[job].allocation, job)
    return new
