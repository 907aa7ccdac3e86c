"""Compiled pieces that kernels of several policies share."""

from typing import Any

import numpy as np

from policies.contract.snapshot import Floats, Ints
from policies.placement.kernels import compiled

NONE = -1
"""No node, or no configuration."""

SLACK = 1e-9


@compiled
def copy(of: Any, to: Any) -> None:
    """Copy an array element by element: whole-array assignment takes seconds to compile."""
    for i in range(of.size):
        to.flat[i] = of.flat[i]


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
    """Extra watts of `gpus` more GPUs on a node of class c with `busy` in use."""
    return float(power[c, busy + gpus] - (power[c, busy] if busy > 0 else 0.0))


@compiled
def fits(
    demand: Floats, capacity: Floats, power: Floats, busy: Ints, watts: float, j: int, n: int,
    c: int, gpus: int,
) -> bool:  # fmt: skip
    """Return True if node n, which has the GPUs, also has the resources and the watts for job j."""
    for r in range(demand.shape[1]):
        if demand[j, r] > capacity[n, r] + SLACK:
            return False
    return bool(watts == np.inf or extra_watts(power, c, busy[n], gpus) <= watts + SLACK)
