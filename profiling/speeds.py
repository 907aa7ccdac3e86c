"""Speed of a launch by its progress, and smoothing of measured speeds. Pure.

Two neighbouring samples bound a segment; the time of a step is the median over all steps after the
warm-up, each with its segment's mean time, which stalls and late samples do not move. Smoothing: s
<- s + alpha * (measured - s) with alpha = max(ALPHA, 1 / (samples + 1)).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite

from policies.contract.snapshot import Source

WARM_UP_STEPS = 1
"""Steps at the beginning that are not counted: compilation, caches, first transfers."""

FIRST_STEPS = 2
"""Steps after the warm-up that tell the speed where nobody knows it: any is better than none."""

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
    """Pace of these samples; None without a step after the warm-up."""
    segments = _segments(samples)
    middle = _quantile(segments, 0.5)
    if middle is None or middle <= 0:
        return None
    low, high = _quantile(segments, 0.25), _quantile(segments, 0.75)
    width = (high - low) / middle if low is not None and high is not None else 0.0
    return Pace(1.0 / middle, sum(steps for _, steps in segments), width)


def _segments(samples: Iterable[Sample]) -> list[tuple[float, int]]:
    """(seconds of a step, steps) of each segment after the warm-up, fastest first."""
    ordered = sorted({(s, e) for s, e in samples if s >= 0 and isfinite(e) and e >= 0})
    last: dict[int, float] = {}
    for steps, elapsed in ordered:
        last.setdefault(
            steps, elapsed
        )  # the same step told again later (with a checkpoint or the end) adds no time to it
    points = [(s, e) for s, e in last.items() if s >= WARM_UP_STEPS]
    found = [((e2 - e1) / (s2 - s1), s2 - s1) for (s1, e1), (s2, e2) in pairwise(points) if e2 > e1]
    return sorted(found)


def _quantile(segments: list[tuple[float, int]], fraction: float) -> float | None:
    """Step time below which this fraction of the steps lies."""
    wanted, seen = fraction * sum(steps for _, steps in segments), 0.0
    for seconds, steps in segments:
        seen += steps
        if seen >= wanted:
            return seconds
    return None


ALPHA = 0.2
"""Weight of a new measurement against all earlier ones."""


def assumed_speed(total_steps: int, walltime_s: float | None) -> tuple[float, Source]:
    """Return (steps/s, source) of an unknown kind on its slowest GPUs, by its first job."""
    if walltime_s and 0 < walltime_s < inf:
        return max(1, total_steps) / walltime_s, Source.DECLARED
    return max(1, total_steps) / ASSUMED_RUN_S, Source.ASSUMED


def weight_of_next(samples: int) -> float:
    """alpha of a measurement after `samples` others; 1 for the first."""
    return max(ALPHA, 1.0 / (samples + 1))


def smoothed(old: float | None, new: float | None, alpha: float) -> float | None:
    """Return `old` moved by `alpha` of the difference; the other where one is None."""
    if old is None or new is None:
        return new if old is None else old
    return old + alpha * (new - old)


def moved(known: float, measured: float, samples: int) -> float:
    """Updated average after a measurement; without samples `known` has no weight."""
    return measured if samples <= 0 else known + weight_of_next(samples) * (measured - known)
