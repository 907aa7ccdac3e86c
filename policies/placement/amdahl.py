"""Speed by the number of GPUs (Amdahl's law): a step takes T(g) = A + B / g. Pure."""

from collections.abc import Mapping
from itertools import combinations
from math import exp, log

Config = tuple[str, int]
"""(GPU type, GPUs)."""

Speeds = Mapping[Config, float]
"""steps/s of one kind by configuration."""

PARALLEL_PRIOR = 0.8
"""Prior of the parallel fraction of a step, p = B / (A + B); counts as one kind."""

MAX_LOG = 300.0
"""Largest logarithm whose exponential is taken."""


def speed_up(fraction: float, gpus: int) -> float:
    """Return S(g) = 1 / (1 - p + p / g) of a parallel fraction p in [0, 1]: between 1 and g."""
    return 1.0 / (1.0 - fraction + fraction / gpus)


def own_fraction(speeds: Speeds) -> float | None:
    """Return the parallel fraction averaged over pairs of counts of one type; None without a pair.

    With q = s2 / s1: p = (q - 1) / (q - 1 + 1/g1 - q/g2), kept in [0, 1].
    """
    fractions = []
    for (type1, g1), (type2, g2) in combinations(sorted(speeds), 2):
        if type1 != type2:
            continue
        gain = exp(bounded(log(speeds[type2, g2]) - log(speeds[type1, g1]))) - 1.0
        denominator = gain + 1.0 / g1 - (gain + 1.0) / g2
        if denominator <= 0:
            fractions.append(1.0)
        else:
            fractions.append(min(1.0, max(0.0, gain / denominator)))
    return sum(fractions) / len(fractions) if fractions else None


def bounded(logarithm: float) -> float:
    """Return a logarithm within MAX_LOG of 0, whose exponential is a finite number."""
    return max(-MAX_LOG, min(MAX_LOG, logarithm))
