"""Forecasts of starts as 80% intervals, and their score against what happened. Pure.

A policy's schedule knows no job that is still to come, and is made anew each round. So an expected
wait is multiplied by what became of earlier ones of about its length (within a factor of about 10):
by the 10%, 50% and 90% quantiles of actual wait / expected wait. Fewer than `LEAST_SCORED` of them
give wider `PRIOR` factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log10
from typing import NamedTuple

import numpy as np

from controlplane.web.pages.samples import LEAST_SAMPLES
from policies.contract.snapshot import Floats

COVERAGE = 0.8
QUANTILES = ((1.0 - COVERAGE) / 2.0, 0.5, (1.0 + COVERAGE) / 2.0)
PRIOR = (0.1, 1.0, 4.0)
LEAST_SCORED = LEAST_SAMPLES

SCORED = 200
"""Newest jobs of a cluster with a forecast that are scored, and from which intervals come."""

SMALLEST_S = 10.0
"""Added to both waits, so that a few seconds of rounds and launches are no great error."""

SMALL_MOVE = 0.1
"""Fraction of a wait by which a forecast may move without being stored anew."""


class Interval(NamedTuple):
    """Expected start and its 80% interval, in epoch seconds."""

    low_s: float
    start_s: float
    high_s: float


class Calibration:
    """Factors by which expected waits are multiplied, from those of jobs that have started."""

    def __init__(self, expected_s: Sequence[float], actual_s: Sequence[float]) -> None:
        self._expected_s = np.asarray(expected_s, dtype=np.float64) + SMALLEST_S
        self._actual_s = np.asarray(actual_s, dtype=np.float64) + SMALLEST_S
        self._factors: dict[int, tuple[float, ...]] = {}

    def interval(self, now_s: float, start_s: float) -> Interval:
        """Return the interval of a start that is expected at `start_s`; none of it before now."""
        wait_s = max(0.0, start_s - now_s) + SMALLEST_S
        half_decade = round(2.0 * log10(wait_s))
        if half_decade not in self._factors:
            self._factors[half_decade] = self._factors_near(half_decade)
        low, median, high = self._factors[half_decade]
        return Interval(
            now_s + max(0.0, wait_s * low - SMALLEST_S),
            now_s + max(0.0, wait_s * median - SMALLEST_S),
            now_s + max(0.0, wait_s * high - SMALLEST_S),
        )

    def _factors_near(self, half_decade: int) -> tuple[float, ...]:
        """Quantiles of the factors of waits of about this length; of all waits if too few are."""
        of_each = np.round(2.0 * np.log10(self._expected_s))
        near = np.abs(of_each - half_decade) <= 1
        for chosen in (near, np.ones_like(near)):
            if int(chosen.sum()) >= LEAST_SCORED:
                ratios: Floats = self._actual_s[chosen] / self._expected_s[chosen]
                return tuple(np.quantile(ratios, QUANTILES).tolist())
        return PRIOR


@dataclass(frozen=True, slots=True)
class StartedJob:
    """First forecast of a job, made at `made_s`, and when the job started."""

    made_s: float
    forecast: Interval
    started_s: float


@dataclass(frozen=True, slots=True)
class Score:
    """Score of first forecasts: fraction inside the interval, median error and drift.

    `error`: median of |start - forecast| / wait. `drift`: sum of (start - forecast) / sum of waits;
    all moves of a forecast, up to the start itself, add up to one of these differences.
    """

    jobs: int
    inside: float
    error: float
    drift: float

    @classmethod
    def of(cls, jobs: Sequence[StartedJob]) -> Score | None:
        """Return the score of these jobs; None without any."""
        if not jobs:
            return None
        wait_s = np.array([max(job.started_s - job.made_s, SMALLEST_S) for job in jobs])
        later_s = np.array([job.started_s - job.forecast.start_s for job in jobs])

        # Starts and forecasts are moments of rounds: a second is no miss.
        inside = 0
        for job in jobs:
            if job.forecast.low_s - 1.0 <= job.started_s <= job.forecast.high_s + 1.0:
                inside += 1
        return cls(
            jobs=len(jobs),
            inside=inside / len(jobs),
            error=float(np.median(np.abs(later_s) / wait_s)),
            drift=float(later_s.sum() / wait_s.sum()),
        )


def has_moved(now_s: float, before_s: float | None, after_s: float | None) -> bool:
    """Return True if a forecast differs from the one stored last by more than a small move."""
    if before_s is None or after_s is None:
        return before_s is not after_s
    left_s = max(abs(after_s - now_s), SMALLEST_S)
    return abs(after_s - before_s) > SMALL_MOVE * left_s
