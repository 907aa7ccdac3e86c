"""Area of jobs: run time as told, times the share of the cluster that a job takes.

The share is that of the resource of which the job takes most (the dominant share of Ghodsi et al.
2011). The area is the time (s) for which the job would keep that resource of the whole cluster
busy.
"""

from __future__ import annotations

from functools import cached_property
from itertools import zip_longest
from math import isfinite

from policies.batch.plan import BatchPlan
from policies.contract.plan import LAST_S
from policies.placement.layout import Request

LEAST_RUN_S = 1.0
SHARE_POWER = 0.75
"""Power of the share in a size, between run time alone (0) and area (1)."""


class Areas:
    """Areas (s) of the jobs of a plan, by row; `LAST_S` where the run time is unknown."""

    def __init__(self, plan: BatchPlan) -> None:
        self.plan = plan
        self._shares: dict[Request, float] = {}

    def of(self, row: int) -> float:
        """Return the area of a waiting job: of a training job on its first option."""
        return self._weighed(row, 1.0)

    def size(self, row: int) -> float:
        """Return run time (s) times share^0.75: wide jobs count less than by area."""
        return self._weighed(row, SHARE_POWER)

    def left_s(self) -> float:
        """Return the area of what is left of the running jobs whose end is known."""
        held = self.plan.state.held
        return sum(
            left_s * self.share(held[row].allocation.request)
            for row, left_s in self.plan.left_s.items()
            if isfinite(left_s)
        )

    def share(self, request: Request) -> float:
        """Return the largest part that a request takes of any resource of the cluster."""
        if request not in self._shares:
            taken = _taken(request)
            parts = [amount / of for amount, of in zip(taken, self._capacity, strict=False) if of]
            self._shares[request] = max(parts, default=0.0)
        return self._shares[request]

    def _weighed(self, row: int, power: float) -> float:
        choice = next(iter(self.plan.choices(row)), None)
        if choice is None or not isfinite(choice.run_s):
            return LAST_S
        run_s = max(LEAST_RUN_S, choice.run_s)
        return float(min(LAST_S, run_s * self.share(choice.request) ** power))

    @cached_property
    def _capacity(self) -> list[int]:
        """Devices and amounts of resources of all nodes."""
        layout = self.plan.state.layout
        counts = [nodes.bit_count() for nodes in layout.members]
        by_class = [of.capacity for of in layout.classes]
        return [
            sum(n * amount for n, amount in zip(counts, amounts, strict=True))
            for amounts in zip(*by_class, strict=True)
        ]


def _taken(request: Request) -> list[int]:
    """Return the devices and amounts of all units; what counts per node on the fewest nodes."""
    nodes = max(1, request.nodes)
    of_all = zip_longest(request.amounts, request.per_node, fillvalue=0)
    amounts = [request.units * each + nodes * once for each, once in of_all]
    return [request.units * request.gpus, *amounts]
