"""Earliest time at which a request fits, by the expected ends of running jobs."""

from collections.abc import Hashable, Sequence
from math import inf
from typing import TypeAlias

from policies.placement.cluster_state import ClusterState
from policies.placement.layout import EVERY, Request

End: TypeAlias = tuple[float, int, Hashable]
"""(time in s, number for a fixed order, job)."""


def earliest(
    state: ClusterState, request: Request, now_s: float, only: int = EVERY
) -> tuple[float, ClusterState] | None:
    """Return the earliest time at which a request fits on these nodes, and the state then.

    Jobs are released in copies in the order of their ends, in doubling steps, then the end is
    bisected. A release never hurts, so the answer is exact.
    """
    if state.find(request, only) is not None:
        return now_s, state.copy()
    ends = [(max(h.end_s, now_s), i, j) for i, (j, h) in enumerate(state.held.items())]
    ends = sorted(end for end in ends if end[0] < inf)
    before, low, high, step = state, 0, len(ends), 1
    while low < high:  # the first `low` have ended in `before`, where the request does not fit
        upto = min(low + step, high)
        trial = _after(before, ends[low:upto])
        if trial.find(request, only) is None:
            before, low = trial, upto
            step = 2 * step if high == len(ends) else max(1, (high - upto) // 2)
        elif upto == low + 1:
            end_s = ends[low][0]
            return end_s, _after(trial, [end for end in ends[upto:] if end[0] == end_s])
        else:
            high, step = upto, (upto - low) // 2
    return None


def _after(state: ClusterState, ended: Sequence[End]) -> ClusterState:
    new = state.copy()
    for _, _, job in ended:
        new.release(new.held[job].allocation, job)
    return new
