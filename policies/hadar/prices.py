"""Prices of GPUs, by node and type (Hadar, equations 5-7), and the bound that they prove.

With c GPUs of type r on node h, of which g are given, the price of the next one is

    k[h,r](g) = least_r * (most_r / least_r) ** (g / c)
    most_r  = max over jobs of U_j(least time of j) / W_j
    least_r = 1 / (4 eta) * min over jobs of U_j(latest end of j) / W_j

so the first GPUs of a node are nearly free, and the last one costs as much as the dearest job is
worth: a full node is too dear for everybody. W_j: the job's GPUs. The paper divides the least price
also by the run time and hides the unit in its eta, which it does not give; eta = 1 here is a
quarter of the least worth per GPU.

Weak duality: for any prices k >= 0 no choice of allocations is worth more in all than

    D(k) = sum over jobs of max(0, best U - cost at k) + sum over GPUs of k.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

import numpy as np

from policies.contract.snapshot import Floats

SMALLEST = 1e-300
"""Least worth per GPU that counts; below, logarithms would fail."""

WIDEST = 1e12
"""Most that `most` may exceed `least` by: prices beyond would be rounded to nothing."""


@dataclass(frozen=True, slots=True)
class PriceRange:
    """Price of the first GPU of an empty node, and that of a full one; alpha = ln(most / least)."""

    least: float
    most: float

    @classmethod
    def of(cls, best: Floats, worst: Floats, eta: float) -> "PriceRange":
        """Return the prices for jobs of this greatest and least worth per GPU, float64[n] each."""
        if not len(best):
            return cls(0.0, 0.0)
        most = max(float(np.max(best)), SMALLEST)
        least = max(float(np.min(worst)), SMALLEST) / (4.0 * eta)
        return cls(min(max(least, most / WIDEST), most), most)

    @property
    def alpha(self) -> float:
        """Return the alpha of the competitive ratio 2 * alpha, at least 1."""
        return max(1.0, log(self.most / self.least)) if self.least > 0.0 else 1.0

    def at(self, given: int, size: int) -> float:
        """Return the price of the next GPU of a node of `size` GPUs of which `given` are taken."""
        if self.least <= 0.0 or given >= size:
            return self.most
        return self.least * exp(log(self.most / self.least) * given / size)

    def seats(self, given: int, size: int) -> list[float]:
        """Return the prices of the GPUs of a node that are left, rising."""
        return [self.at(taken, size) for taken in range(given, size)]


FREE = PriceRange(0.0, 0.0)
"""Price of GPUs that would idle."""


@dataclass(frozen=True, slots=True)
class TypePrices:
    """Prices of the free GPUs of one type, the cheapest first, whatever their nodes.

    `cumulative` float64[free + 1]: cost of the cheapest n of them.
    """

    range: PriceRange
    cumulative: Floats

    @classmethod
    def of(cls, price_range: PriceRange, nodes: Sequence[tuple[int, int]]) -> "TypePrices":
        """Return the prices on nodes, each (free GPUs, GPUs)."""
        seats: list[float] = []
        for free, size in nodes:
            seats += price_range.seats(size - free, size)
        return cls(price_range, np.concatenate([[0.0], np.cumsum(sorted(seats))]))

    @property
    def free(self) -> int:
        """Return the number of free GPUs."""
        return len(self.cumulative) - 1

    def cost(self, taken: int, gpus: int) -> float:
        """Return the cost of so many more GPUs once `taken` are.

        Those beyond the last one cost as much as those of a full node."""
        end = min(taken + gpus, self.free)
        there = float(self.cumulative[end] - self.cumulative[min(taken, self.free)])
        return there + self.range.most * (gpus - max(0, end - taken))


def dual_bound(prices: Sequence[float], capacity: Sequence[int], net_worth: Floats) -> float:
    """Return D(k): no choice of allocations is worth more in all.

    `prices`, `capacity`: of each node; `net_worth` float64[n]: each job's best worth minus cost.
    """
    of_gpus = sum(price * gpus for price, gpus in zip(prices, capacity, strict=True))
    return of_gpus + float(np.sum(np.maximum(net_worth, 0.0)))
