"""Speed of a launch by its progress, and smoothing of measured speeds. Pure.

Two neighbouring samples bound a segment, whose steps have its mean time. The time of a step is the
median over all steps after the warm-up, which stalls and late samples do not move.

Smoothing: s <- s + alpha * (measured - s) with alpha = max(ALPHA, 1 / (samples + 1)).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite

from policies.contract.snapshot import Source

WARM_UP_STEPS = 1
"""Steps at the beginning that are not counted: compilation, caches, first transfers."""

FIRST_STEPS = 2
"""Steps after the warm-up that are enough to measure an unknown speed: any is better than none."""

ASSUMED_RUN_S = 3600.0
"""Run time of the first job of a kind of which nothing is known."""

Sample = tuple[int, float]
"""(steps done in this launch, seconds since its first batch)."""


@dataclass(frozen=True, slots=True)
class Pace:
    """steps/s over `steps` steps; `spread`: interquartile range of step times over the median."""

    steps_per_s: float
    steps: int
    spread: float


def pace(samples: Iterable[Sample]) -> Pace | None:
    """Return the pace of these samples; None without a step after the warm-up."""
    segments = _segments(samples)
    median_s = _quantile(segments, 0.5)
    if median_s is None or median_s <= 0:
        return None
    low_s = _quantile(segments, 0.25) or 0.0
    high_s = _quantile(segments, 0.75) or 0.0
    steps = sum(segment_steps for _, segment_steps in segments)
    return Pace(1.0 / median_s, steps, (high_s - low_s) / median_s)


def _segments(samples: Iterable[Sample]) -> list[tuple[float, int]]:
    """Return (seconds per step, steps) of each segment after the warm-up, the fastest first."""
    # 1. The first time of each number of steps: the same number may be reported again later, with a
    #    checkpoint or the end.
    usable = set()
    for steps, elapsed_s in samples:
        if steps >= WARM_UP_STEPS and isfinite(elapsed_s) and elapsed_s >= 0:
            usable.add((steps, elapsed_s))
    first_s: dict[int, float] = {}
    for steps, elapsed_s in sorted(usable):
        first_s.setdefault(steps, elapsed_s)

    # 2. The segments between them.
    segments = []
    for (steps1, elapsed1_s), (steps2, elapsed2_s) in pairwise(first_s.items()):
        if elapsed2_s > elapsed1_s:
            steps = steps2 - steps1
            segments.append(((elapsed2_s - elapsed1_s) / steps, steps))
    return sorted(segments)


def _quantile(segments: list[tuple[float, int]], fraction: float) -> float | None:
    """Return the time of a step below which this fraction of the steps lies; None without steps."""
    wanted_steps = fraction * sum(steps for _, steps in segments)
    counted_steps = 0.0
    for step_s, steps in segments:
        counted_steps += steps
        if counted_steps >= wanted_steps:
            return step_s
    return None


ALPHA = 0.2
"""Weight of a new measurement against all earlier ones."""


def assumed_speed(total_steps: int, walltime_s: float | None) -> tuple[float, Source]:
    """Return (steps/s, source) of an unknown kind on its slowest GPUs, by its first job."""
    if walltime_s and 0 < walltime_s < inf:
        return max(1, total_steps) / walltime_s, Source.DECLARED
    return max(1, total_steps) / ASSUMED_RUN_S, Source.ASSUMED


def weight_of_next(samples: int) -> float:
    """Return alpha of a measurement after `samples` others; 1 for the first."""
    return max(ALPHA, 1.0 / (samples + 1))


def smoothed(old: float | None, new: float | None, alpha: float) -> float | None:
    """Return `old` moved by `alpha` of the difference to `new`; if one is None, the other one."""
    if old is None:
        return new
    if new is None:
        return old
    return old + alpha * (new - old)


def moved(known: float, measured: float, samples: int) -> float:
    """Return the average after a measurement; `samples`: measurements that `known` rests on."""
    if samples <= 0:
        return measured
    return known + weight_of_next(samples) * (measured - known)
