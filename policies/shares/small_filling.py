"""Max-min fairness, water filled, of few classes: the levels of `water_filling` in a tenth of the time, by a solver of its own.

A cluster in steady state has some dozens of classes and changes by one job at a time; then shares are wanted at every event.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policies.kernels.filling import fill
from policies.shares.division import Division, Shares
from policies.shares.fairness import fair_scaling
from policies.shares.levels import highest_level
from policies.shares.program import DUST, excess
from policies.snapshot import Floats, Ints

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
        return len(np.unique(self.level))


def small_filling(division: Division) -> SmallFilled | None:
    """Shares with which no job could have more without a poorer one's having less; None where another solver must find them.

    That is so with pairs, with more classes than MOST_CLASSES or none, and where what is found does not hold to TOLERANCE.
    """
    per = fair_scaling(division) / division.weight
    best = per * division.fastest_rates
    of = np.flatnonzero(best > 0.0)
    if not 0 < len(of) <= MOST_CLASSES or len(division.pairs):
        return None
    unit = highest_level(division, best)
    small = _Tableau(division, of, per[of] / unit)
    level = fill(small.table, small.value, small.basis, small.slack, small.begin, PRICED)
    if level[0] < 0.0 or not small.holds(level):
        return None
    alone = small.times()
    shares = Shares(alone, np.zeros(division.pair_rates.shape[:2]), float(level.min()) * unit)
    return SmallFilled(shares, of, level * unit) if excess(shares, division) <= TOLERANCE else None


class _Tableau:
    """The program of K classes `of` with P places (k, c), in the basis of its slacks; `begin`: a place of each class.

    Rows: sum of a class's time <= count; GPUs of a type <= N; z - per_m * throughput of a job + slack = 0.
    """

    def __init__(self, division: Division, of: Ints, per: Floats) -> None:
        self.division, self.of = division, of
        rates, count = division.rates[of], division.count[of].astype(np.float64)
        self.place, self.column = np.nonzero(rates > 0.0)
        places, classes, types = len(self.place), len(of), len(division.types)
        rows = 2 * classes + types
        self.worth = (rates * (per / count)[:, None])[self.place, self.column]
        at = np.arange(places)
        self.table = np.zeros((rows, places + rows + 1))
        self.table[self.place, at] = 1.0
        self.table[classes : classes + types, :places] = division.usage[:, self.column] * division.scale[of][self.place]
        self.table[classes + types + self.place, at] = -self.worth
        self.table[np.arange(rows), places + np.arange(rows)] = 1.0
        self.table[classes + types :, -1] = 1.0
        self.value = np.concatenate([count, division.gpus, np.zeros(classes)])
        self.basis = places + np.arange(rows)
        self.slack = places + classes + types + np.arange(classes)
        self.begin = self._fastest()

    def _fastest(self) -> Ints:
        """int64[K]: the place of each class where it is fastest: there it begins, with nothing of nothing."""
        order = np.lexsort((-self.worth, self.place))
        found: Ints = order[np.searchsorted(self.place[order], np.arange(len(self.of)))]
        return found

    def _time(self) -> Floats:
        time = np.zeros(self.table.shape[1])
        time[self.basis] = self.value
        return time[: len(self.place)]

    def holds(self, level: Floats) -> bool:
        """Whether every class has its level, and nobody less than no time."""
        time = self._time()
        had = np.bincount(self.place, weights=time * self.worth, minlength=len(self.of))
        return bool((had >= level - TOLERANCE * np.maximum(level, 1.0)).all() and (time >= -TOLERANCE).all())

    def times(self) -> Floats:
        """float64[M, C]: as `Shares.alone`; what no solver tells from nothing is nothing."""
        time = self._time()
        found = np.zeros(self.division.rates.shape)
        dust = DUST * self.division.count[self.of][self.place]
        found[self.of[self.place], self.column] = np.where(time <= dust, 0.0, time)
        return found
