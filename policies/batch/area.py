"""Size of jobs: predicted run time times a power of the share of the cluster that a job takes.

The share is that of the resource of which the job takes most (the dominant share of Ghodsi et al.
2011).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import zip_longest
from math import inf

import numpy as np

from policies.batch.plan import BatchPlan
from policies.contract.snapshot import Floats
from policies.placement.layout import Request

SHARE_POWER = 0.75
"""Power of the share in a size, between run time alone (0) and area (1)."""


class Areas:
    """Shares and sizes of the jobs of a plan, by row."""

    def __init__(self, plan: BatchPlan) -> None:
        self.plan = plan
        self._shares: dict[Request, float] = {}

    def size_s(self, row: int) -> float:
        """Return run time (s) times share^0.75 of a waiting job; inf if the run time is unknown.

        Wide jobs count less than by area. A training job counts with its first option.
        """
        choices = self.plan.choices(row)
        if not choices or choices[0].run_s == inf:
            return inf
        return float(choices[0].run_s * self.share(choices[0].request) ** SHARE_POWER)

    def shares(self, rows: Sequence[int]) -> Floats:
        """float64[len(rows)]: shares of running and waiting jobs."""
        return np.array([self._share_of(row) for row in rows], dtype=np.float64)

    def _share_of(self, row: int) -> float:
        """Return the share of what a job holds, or of what a waiting one asks for."""
        hold = self.plan.state.held.get(row)
        if hold is not None:
            return self.share(hold.allocation.request)
        choices = self.plan.choices(row)
        return self.share(choices[0].request) if choices else 0.0

    def share(self, request: Request) -> float:
        """Return the largest part, at most 1, that a request takes of any resource."""
        if request not in self._shares:
            # `_capacity` goes on with devices of several slots, of which a request takes none.
            largest = 0.0
            for amount, capacity in zip(_taken(request), self._capacity, strict=False):
                if capacity:
                    largest = max(largest, amount / capacity)
            self._shares[request] = min(1.0, largest)
        return self._shares[request]

    @cached_property
    def _capacity(self) -> list[int]:
        """Devices and amounts of resources of all nodes."""
        layout = self.plan.state.layout
        if not layout.classes:
            return []
        total = [0] * len(layout.classes[0].capacity)
        for of_class, nodes in zip(layout.classes, layout.members, strict=True):
            for i, amount in enumerate(of_class.capacity):
                total[i] += amount * nodes.bit_count()
        return total


def _taken(request: Request) -> list[int]:
    """Return devices and amounts of all units, with amounts used once on each of its nodes."""
    nodes = max(1, request.nodes)
    taken = [request.units * request.gpus]
    for each, once in zip_longest(request.amounts, request.per_node, fillvalue=0):
        taken.append(request.units * each + nodes * once)
    return taken
