"""Work of later jobs: for how long those that came after a waiting job have used the cluster.

The work (s) is the sum, over all jobs that came later, of the time for which each has run so far
times its share of the cluster. It is measured from round to round and needs no predicted run time.
It depends on the arrival alone, so a few numbers for each arrival of a waiting job are enough; they
are in the plan's memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from policies.contract.snapshot import Floats

MEMORY = "later_work"

MOST_ARRIVALS = 2000
"""Most arrivals in memory. Beyond, every second one goes: its jobs have the next later one's."""


class LaterWork:
    """Work of later jobs by arrival of the waiting jobs, `arrival_s` float64[A], rising.

    `since_s` float64[A]: when it was first measured; `work_s` float64[A]: the work since then.
    """

    def __init__(self, now_s: float, arrivals_s: Floats, memory: Mapping[str, Any]) -> None:
        """Continue from the memory of the round before. `arrivals_s`: of the jobs that wait."""
        self.now_s = now_s
        before = memory.get(MEMORY, {})
        known_s = np.array(before.get("arrival_s", ()), dtype=np.float64)
        since_s = np.array(before.get("since_s", ()), dtype=np.float64)
        work_s = np.array(before.get("work_s", ()), dtype=np.float64)
        rate = np.array(before.get("rate", ()), dtype=np.float64)

        # What ran after the round before has gone on until now.
        passed_s = max(0.0, now_s - before.get("at_s", now_s))
        work_s = work_s + rate * passed_s

        # An arrival that is new has the work of the next later one; the last ones have none yet.
        self.arrival_s: Floats = _thinned(np.unique(arrivals_s), known_s)
        next_later = np.searchsorted(known_s, self.arrival_s)
        self.since_s: Floats = np.append(since_s, now_s)[next_later]
        self.work_s: Floats = np.append(work_s, 0.0)[next_later]

    def of(self, arrival_s: Floats) -> tuple[Floats, Floats]:
        """Return the work (s) of later jobs, and for how long (s) it was measured, by arrival."""
        next_later = np.searchsorted(self.arrival_s, arrival_s)
        work_s: Floats = np.append(self.work_s, 0.0)[next_later]
        measured_s: Floats = self.now_s - np.append(self.since_s, self.now_s)[next_later]
        return work_s, measured_s

    def remembered(self, arrivals_s: Floats, shares: Floats) -> dict[str, Any]:
        """Return the plan's memory; the arrivals (s) and shares of all jobs that run from now on.

        `rate`: sum of the shares of those that came later than an arrival.
        """
        by_arrival = np.argsort(arrivals_s, kind="stable")
        # share_from[i]: sum of the shares of the i-th running job and all that came after it.
        share_from = np.append(np.cumsum(shares[by_arrival][::-1])[::-1], 0.0)
        first_later = np.searchsorted(arrivals_s[by_arrival], self.arrival_s, side="right")
        return {
            MEMORY: {
                "at_s": self.now_s,
                "arrival_s": self.arrival_s.tolist(),
                "since_s": self.since_s.tolist(),
                "work_s": self.work_s.tolist(),
                "rate": share_from[first_later].tolist(),
            }
        }


def _thinned(arrival_s: Floats, known_s: Floats) -> Floats:
    """Return the arrivals to remember: all, or at most MOST_ARRIVALS of them.

    Between known arrivals no new ones are added; then every second goes until few are left.
    """
    if len(arrival_s) <= MOST_ARRIVALS:
        return arrival_s
    is_kept = np.isin(arrival_s, known_s) | (arrival_s > known_s.max(initial=-np.inf))
    kept: Floats = arrival_s[is_kept]
    while len(kept) > MOST_ARRIVALS:
        kept = kept[::2]
    return kept
