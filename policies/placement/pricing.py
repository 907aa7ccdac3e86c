"""What a run costs whose price changes while it lasts: the integral of price(t) * PUE(t) from now
to its end.

Power does not change during a run, so a run's energy cost is watts times what one watt costs from
now to the end, a function of the run time alone. It is handed on as *priced seconds*: how long the
run would have to last at one price, the reference, to cost the same. At a flat tariff priced
seconds are seconds, so that whatever multiplies times with a cost per second prices whole runs
rightly by taking priced seconds in their place.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from policies.contract.job_columns import frozen
from policies.contract.snapshot import Floats, PriceInterval, Snapshot

SECONDS_PER_HOUR = 3600.0
WATTS_PER_KW = 1000.0
GRAMS_PER_KG = 1000.0


@dataclass(frozen=True)
class Prices:
    """What one watt of IT power costs over time.

    `starts_s` float64[S]: seconds from now at which each price begins, rising, the first 0; the
    last one holds for ever after. `rates` float64[S]: cost of a watt for a second, PUE included.
    """

    starts_s: Floats
    rates: Floats

    @cached_property
    def reference(self) -> float:
        """The reference of priced seconds: a flat tariff's price, else the one farthest from 0."""
        return float(self.rates[np.argmax(np.abs(self.rates))])

    @cached_property
    def is_flat(self) -> bool:
        """Whether the price never changes."""
        return bool(np.all(self.rates == self.rates[0]))

    def priced_s(self, times_s: Floats) -> Floats:
        """Priced seconds of runs that start now and last `times_s`; inf if they never end."""
        if self.is_flat:
            return times_s
        ends = np.isfinite(times_s)
        seconds = np.where(ends, times_s, 0.0)
        step = np.searchsorted(self.starts_s, seconds, side="right") - 1
        cost = self._until_step[step] + (seconds - self.starts_s[step]) * self.rates[step]
        return np.where(ends, cost / self.reference, np.inf)

    @cached_property
    def _until_step(self) -> Floats:
        """float64[S]: what a watt has cost when each price begins."""
        spent: Floats = np.concatenate([[0.0], np.cumsum(np.diff(self.starts_s) * self.rates[:-1])])
        return spent


def prices_of(snapshot: Snapshot, *, emissions: bool = True) -> Prices:
    """The snapshot's prices from now on; free where none are known.

    `emissions`: with what its operators weigh emissions at, as decisions see it; without, what is
    paid for energy.
    """
    per_kg = snapshot.emissions_cost_per_kg if emissions else 0.0
    ahead = [s for s in snapshot.energy if s.to_s > snapshot.now_s] or list(snapshot.energy[-1:])
    if len(ahead) < 2:
        return _flat(per_watt_second(ahead[0], per_kg) if ahead else 0.0)
    starts = np.array([s.from_s - snapshot.now_s for s in ahead])
    starts[0] = 0.0
    return Prices(starts, np.array([per_watt_second(s, per_kg) for s in ahead]))


@lru_cache(maxsize=256)
def _flat(rate: float) -> Prices:
    """One price for ever."""
    return Prices(frozen(np.zeros(1)), frozen(np.array([rate])))


def per_watt_second(step: PriceInterval, emissions_cost_per_kg: float = 0.0) -> float:
    """Cost of one watt of IT power for a second: (price + emissions at their weight) * PUE."""
    per_kwh = step.price_per_kwh
    if emissions_cost_per_kg:
        per_kwh += step.emissions_g_per_kwh / GRAMS_PER_KG * emissions_cost_per_kg
    return per_kwh * step.pue / WATTS_PER_KW / SECONDS_PER_HOUR
