"""Exponentially weighted smoothing of measurements. Pure.

    s <- s + alpha * (measured - s),    alpha = max(ALPHA, 1 / (samples + 1))

so that the first few are averaged and old ones fade.
"""

from __future__ import annotations

ALPHA = 0.2
"""Weight of a new measurement against all earlier ones."""


def weight_of_next(samples: int) -> float:
    """alpha of a measurement after `samples` others; 1 for the first."""
    return max(ALPHA, 1.0 / (samples + 1))


def moved(known: float, measured: float, samples: int) -> float:
    """The updated average after one more measurement; without samples `known` has no weight."""
    return measured if samples <= 0 else known + weight_of_next(samples) * (measured - known)
