"""Compiled pieces that kernels of several policies share."""

from typing import Any

import numpy as np

from policies.contract.snapshot import Floats, Ints
from policies.placement.kernels import compiled

NONE = -1
"""No node, or no configuration."""

SLACK = 1e-9
"""Amount of a resource, watts or cost that counts as a rounding error."""


@compiled
def copy(source: Any, target: Any) -> None:
    """Copy an array element by element: whole-array assignment takes seconds to compile."""
    for i in range(source.size):
        target.flat[i] = source.flat[i]


@compiled
def draw(rng: Ints) -> float:
    """Draw from [0, 1) by xorshift32 (Marsaglia 2003), state rng[0] != 0."""
    x = rng[0]
    x ^= (x << 13) & 0xFFFFFFFF
    x ^= x >> 17
    x ^= (x << 5) & 0xFFFFFFFF
    rng[0] = x
    return float(x / 4294967296.0)


def nonzero_seed(seed: int) -> int:
    """Return a seed in 1 .. 2**32 - 1 of any integer, by Knuth's multiplicative hash."""
    return ((seed % 2**32) * 2654435761 + 0x9E3779B9) % 2**32 or 1


@compiled
def extra_watts(power: Floats, c: int, busy: int, gpus: int) -> float:
    """Return the extra watts of `gpus` more GPUs on a node of class c with `busy` in use.

    `power` float64[C, G + 1]: watts of a node of each class by its GPUs in use. A node without any
    counts as switched off.
    """
    watts_before = power[c, busy] if busy > 0 else 0.0
    return float(power[c, busy + gpus] - watts_before)


@compiled
def fits(
    demand: Floats,
    capacity: Floats,
    power: Floats,
    busy: Ints,
    watts: float,
    j: int,
    n: int,
    c: int,
    gpus: int,
) -> bool:
    """Return True if node n of class c has the scarce resources and the watts for job j.

    It is known to have `gpus` GPUs free. `demand` float64[E, R], `capacity` float64[N, R]: of
    scarce resources; `busy` int64[N]: GPUs in use; `watts`: left under the power cap, inf without.
    """
    for r in range(demand.shape[1]):
        if demand[j, r] > capacity[n, r] + SLACK:
            return False
    if watts == np.inf:
        return True
    return bool(extra_watts(power, c, busy[n], gpus) <= watts + SLACK)
