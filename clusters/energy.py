"""Cost of energy: power of a node times prices over time. Pure.

P_n(g) = base + (G - g) * idle + g * peak watts with g of G GPUs in use (ANDREAS). Cost per hour
c[n, g] = P_n(g) / 1000 * price per kWh * PUE. Prices become steps in UTC.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime, time, timedelta
from itertools import groupby, pairwise
from math import inf
from operator import add, attrgetter
from zoneinfo import ZoneInfo

from policies.contract.snapshot import PriceInterval

HOUR_S = 3600.0
JOULES_PER_KWH = 3_600_000.0
_SCAN_S = 6 * HOUR_S


@dataclass(frozen=True, slots=True)
class Band:
    """Price for hours of some days: `days` 0 (Monday) .. 6; `to_time` 00:00 is midnight."""

    days: frozenset[int]
    from_time: time
    to_time: time
    price_per_kwh: float
    emissions_g_per_kwh: float | None = None

    def covers(self, local: datetime) -> bool:
        if local.weekday() not in self.days or local.time() < self.from_time:
            return False
        return self.to_time == time(0) or local.time() < self.to_time


@dataclass(frozen=True, slots=True)
class SeriesStep:
    """Price of a series from `from_s` to its next step."""

    from_s: float
    price_per_kwh: float
    emissions_g_per_kwh: float | None = None


@dataclass(frozen=True, slots=True)
class Tariff:
    """Prices from `effective_from_s` to the next version; the first band covering an hour holds.

    A series has `steps`, rising, in place of bands, and ends at `until_s`.
    """

    effective_from_s: float
    default_price_per_kwh: float
    bands: tuple[Band, ...] = ()
    emissions_g_per_kwh: float = 0.0
    until_s: float = inf
    steps: tuple[SeriesStep, ...] = ()

    def price_at(self, local: datetime) -> float:
        part = self._part_at(local)
        return self.default_price_per_kwh if part is None else part.price_per_kwh

    def emissions_at(self, local: datetime) -> float:
        """Grams of CO2 per kWh: the step's or band's, else the tariff's."""
        part = self._part_at(local)
        own = None if part is None else part.emissions_g_per_kwh
        return self.emissions_g_per_kwh if own is None else own

    def _part_at(self, local: datetime) -> SeriesStep | Band | None:
        if self.steps:
            index = bisect_right(self.steps, local.timestamp(), key=attrgetter("from_s")) - 1
            return self.steps[max(0, index)]
        return next((band for band in self.bands if band.covers(local)), None)


@dataclass(frozen=True, slots=True)
class Pue:
    """Facility energy over IT energy from `effective_from_s` to the next value."""

    effective_from_s: float
    pue: float


def power_curve(base_w: float, idle_w: float, peak_w: float, gpus: int) -> tuple[float, ...]:
    """P_n(g) in watts for g = 0 .. `gpus`."""
    return tuple(base_w + (gpus - g) * idle_w + g * peak_w for g in range(gpus + 1))


def cost_per_hour(power_w: float, step: PriceInterval) -> float:
    """c[n, g]: cost per hour of `power_w` watts of IT power."""
    return power_w / 1000.0 * step.price_per_kwh * step.pue


def energy_kwh(power_w: float, from_s: float, to_s: float) -> float:
    """IT energy of a constant power."""
    return power_w * max(0.0, to_s - from_s) / JOULES_PER_KWH


def energy_cost(
    power_w: float, from_s: float, to_s: float, steps: Sequence[PriceInterval]
) -> float:
    """Cost of constant IT power over [from_s, to_s]; the outer steps hold beyond; 0 without any."""
    return sum(
        cost_per_hour(power_w, s) * (until - since) / HOUR_S
        for since, until, s in _pieces(from_s, to_s, steps)
    )


@dataclass(frozen=True, slots=True)
class Priced:
    """IT energy, facility energy (IT times PUE), cost in the cluster's currency, grams of CO2."""

    kwh: float = 0.0
    facility_kwh: float = 0.0
    cost: float = 0.0
    emissions_g: float = 0.0

    def __add__(self, other: Priced) -> Priced:
        return Priced(*map(add, astuple(self), astuple(other)))


def priced(power_w: float, from_s: float, to_s: float, steps: Sequence[PriceInterval]) -> Priced:
    """Cost of constant IT power over [from_s, to_s]; without steps it is free and the PUE is 1."""
    kwh = energy_kwh(power_w, from_s, to_s)
    if not steps:
        return Priced(kwh, kwh)
    pieces = [
        (energy_kwh(power_w, since, until) * s.pue, s)
        for since, until, s in _pieces(from_s, to_s, steps)
    ]
    facility_kwh = sum(at_facility for at_facility, _ in pieces)
    emissions_g = sum(at_facility * s.emissions_g_per_kwh for at_facility, s in pieces)
    return Priced(kwh, facility_kwh, energy_cost(power_w, from_s, to_s, steps), emissions_g)


def price_intervals(
    tariffs: Iterable[Tariff], pues: Iterable[Pue], zone: str, from_s: float, to_s: float
) -> tuple[PriceInterval, ...]:
    """Prices over [from_s, to_s] (UTC seconds) as contiguous steps; () without a tariff.

    Of versions with equal `effective_from_s` the last holds. Before the first, energy is free and
    PUE 1. A repeated hour is priced twice.
    """
    versions = sorted(tariffs, key=lambda t: t.effective_from_s)
    factors = sorted(pues, key=lambda p: p.effective_from_s)
    if not versions or to_s <= from_s:
        return ()
    starts = [t.effective_from_s for t in versions] + [p.effective_from_s for p in factors]
    starts += [t.until_s for t in versions]
    starts += [step.from_s for t in versions for step in t.steps]
    zone_info = ZoneInfo(zone)
    times = {edge for t in versions for b in t.bands for edge in (b.from_time, b.to_time)}
    edges = {*starts, *wall_clock_edges(times, zone_info, from_s, to_s)}
    bounds = [from_s, *sorted(e for e in edges if from_s < e < to_s), to_s]
    return tuple(_merged(_step(versions, factors, zone_info, a, b) for a, b in pairwise(bounds)))


def _step(
    tariffs: Sequence[Tariff], pues: Sequence[Pue], zone: ZoneInfo, from_s: float, to_s: float
) -> PriceInterval:
    """Price step read at its middle, which avoids rounding at the edges."""
    middle_s = (from_s + to_s) / 2
    tariff = next(
        (t for t in reversed(tariffs) if t.effective_from_s <= middle_s < t.until_s), None
    )
    pue = next((p.pue for p in reversed(pues) if p.effective_from_s <= middle_s), 1.0)
    if tariff is None:
        return PriceInterval(from_s, to_s, 0.0, pue)
    local = datetime.fromtimestamp(middle_s, zone)
    return PriceInterval(from_s, to_s, tariff.price_at(local), pue, tariff.emissions_at(local))


def _merged(steps: Iterable[PriceInterval]) -> Iterator[PriceInterval]:
    prices_of = attrgetter("price_per_kwh", "pue", "emissions_g_per_kwh")
    for prices, same in groupby(steps, key=prices_of):
        touching = list(same)
        yield PriceInterval(touching[0].from_s, touching[-1].to_s, *prices)


def wall_clock_edges(
    times: Iterable[time], zone: ZoneInfo, from_s: float, to_s: float
) -> Iterator[float]:
    """Moments of midnight, of these times, or of a clock change; a repeated hour counts twice."""
    yield from _clock_changes(zone, from_s, to_s)
    edges = {time(0), *times}
    day = datetime.fromtimestamp(from_s, zone).date()
    last = datetime.fromtimestamp(to_s, zone).date()
    while day <= last:
        for edge in edges:
            for fold in (0, 1):
                yield datetime.combine(day, edge, zone).replace(fold=fold).timestamp()
        day += timedelta(days=1)


def _clock_changes(zone: ZoneInfo, from_s: float, to_s: float) -> Iterator[float]:
    """Moments of clock changes, found by halving, to the second."""
    at_s = float(int(from_s))
    while at_s < to_s:
        low, high = at_s, at_s + _SCAN_S
        if _offset(zone, low) != _offset(zone, high):
            while high - low > 1.0:
                middle = (low + high) // 2
                unchanged = _offset(zone, middle) == _offset(zone, at_s)
                low, high = (middle, high) if unchanged else (low, middle)
            yield high
        at_s += _SCAN_S


def _offset(zone: ZoneInfo, at_s: float) -> timedelta | None:
    return datetime.fromtimestamp(at_s, UTC).astimezone(zone).utcoffset()


def _pieces(
    from_s: float, to_s: float, steps: Sequence[PriceInterval]
) -> Iterator[tuple[float, float, PriceInterval]]:
    for i, step in enumerate(steps):
        since = from_s if i == 0 else max(from_s, step.from_s)
        until = to_s if i == len(steps) - 1 else min(to_s, step.to_s)
        if since < until:
            yield since, until, step
