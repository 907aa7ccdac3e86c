"""Max-min fairness, water filled, of few classes: the levels of `water_filling` in a tenth of the
time, by a solver of its own.

A cluster in steady state has some dozens of classes and changes by one job at a time; then shares
are wanted at every event.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policies.contract.snapshot import Floats, Ints
from policies.gavel.allocation.problem import AllocationProblem, Shares
from policies.gavel.solvers.fairness import fair_scaling
from policies.gavel.solvers.filling import filled
from policies.gavel.solvers.levels import highest_level
from policies.gavel.solvers.program import DUST, excess

MOST_CLASSES = 100
"""The tableau grows with the square of the classes: with more HiGHS is as fast."""
PRICED = 1e-6
"""See `water_filling.PRICED`."""
TOLERANCE = 1e-9
"""By how much a level or a bound may be missed, in parts of it where it is above 1."""


@dataclass(frozen=True)
class SmallFilled:
    """`shares`, and float64[K] `level` of the classes `of` int64[K] that can run."""

    shares: Shares
    of: Ints
    level: Floats

    @property
    def rounds(self) -> int:
        """How many levels there are."""
        return len(set(self.level.tolist()))


def small_filling(problem: AllocationProblem) -> SmallFilled | None:
    """Shares with which no job could have more without a poorer one's having less; None where
    another solver must find them.

    That is so with pairs, with more classes than MOST_CLASSES or none, and where what is found does
    not hold to TOLERANCE.
    """
    per = fair_scaling(problem) / problem.weight
    best = per * problem.fastest_rates
    of = np.flatnonzero(best > 0.0)
    if not 0 < len(of) <= MOST_CLASSES or len(problem.pairs):
        return None
    unit, rates, count = highest_level(problem, best), problem.rates[of], problem.count[of]
    worth = rates * (per[of] / unit / count)[:, None]
    level, time = filled(
        rates, worth, count, problem.scale[of], problem.usage, problem.gpus, PRICED
    )
    if level[0] < 0.0 or not _holds(level, (time * worth).sum(axis=1), time):
        return None
    alone = np.zeros(problem.rates.shape)
    alone[of] = np.where(
        time <= DUST * count[:, None], 0.0, time
    )  # what no solver tells from nothing is nothing
    shares = Shares(alone, np.zeros(problem.pair_rates.shape[:2]), float(level.min()) * unit)
    return SmallFilled(shares, of, level * unit) if excess(shares, problem) <= TOLERANCE else None


def _holds(level: Floats, had: Floats, time: Floats) -> bool:
    """Whether every class has its level, and nobody less than no time."""
    return bool(
        (had >= level - TOLERANCE * np.maximum(level, 1.0)).all() and (time >= -TOLERANCE).all()
    )
