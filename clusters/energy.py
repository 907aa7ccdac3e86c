"""Cost of energy: power of a node times prices over time. Pure.

P_n(g) = base + (G - g) * idle + g * peak watts with g of G GPUs in use (ANDREAS). Cost per hour
c[n, g] = P_n(g) / 1000 * price per kWh * PUE. Prices become steps in UTC.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from itertools import groupby, pairwise
from math import inf
from operator import attrgetter
from zoneinfo import ZoneInfo

from policies.contract.snapshot import PriceInterval

HOUR_S = 3600.0
JOULES_PER_KWH = 3_600_000.0
_SCAN_STEP_S = 6 * HOUR_S
"""Step of the search for clock changes: two changes are always further apart."""


def within_hours(local: datetime, days: Set[int], from_time: time, to_time: time) -> bool:
    """Return True if a wall-clock time is on one of these days, from `from_time` to `to_time`.

    `days`: 0 (Monday) .. 6. `to_time` 00:00 is the day's end.
    """
    if local.weekday() not in days or local.time() < from_time:
        return False
    return to_time == time(0) or local.time() < to_time


@dataclass(frozen=True, slots=True)
class Band:
    """Price for hours of some days: `days` 0 (Monday) .. 6; `to_time` 00:00 is the day's end."""

    days: frozenset[int]
    from_time: time
    to_time: time
    price_per_kwh: float
    emissions_g_per_kwh: float | None = None

    def covers(self, local: datetime) -> bool:
        """Return True if the band holds at a wall-clock time of the cluster."""
        return within_hours(local, self.days, self.from_time, self.to_time)


@dataclass(frozen=True, slots=True)
class SeriesStep:
    """Price of a series from `from_s` to its next step."""

    from_s: float
    price_per_kwh: float
    emissions_g_per_kwh: float | None = None


@dataclass(frozen=True, slots=True)
class Tariff:
    """Version of prices from `effective_from_s` on; the first band that covers an hour holds.

    A series has `steps` in order of time in place of bands, and ends at `until_s`.
    """

    effective_from_s: float
    default_price_per_kwh: float
    bands: tuple[Band, ...] = ()
    emissions_g_per_kwh: float = 0.0
    until_s: float = inf
    steps: tuple[SeriesStep, ...] = ()

    def price_at(self, local: datetime) -> float:
        """Return the price per kWh at a wall-clock time of the cluster."""
        source = self._price_source(local)
        return self.default_price_per_kwh if source is None else source.price_per_kwh

    def emissions_at(self, local: datetime) -> float:
        """Return the grams of CO2 per kWh at a time: the step's or band's, else the tariff's."""
        source = self._price_source(local)
        if source is None or source.emissions_g_per_kwh is None:
            return self.emissions_g_per_kwh
        return source.emissions_g_per_kwh

    def _price_source(self, local: datetime) -> SeriesStep | Band | None:
        """Return the step or band that holds at a time; None if no band covers it."""
        if self.steps:
            # The last step that has begun; the first one also holds before itself.
            index = bisect_right(self.steps, local.timestamp(), key=attrgetter("from_s")) - 1
            return self.steps[max(0, index)]
        for band in self.bands:
            if band.covers(local):
                return band
        return None


@dataclass(frozen=True, slots=True)
class Pue:
    """Facility energy over IT energy from `effective_from_s` to the next value."""

    effective_from_s: float
    pue: float


def power_curve(base_w: float, idle_w: float, peak_w: float, gpus: int) -> tuple[float, ...]:
    """Return P_n(g) in watts for g = 0 .. `gpus`."""
    return tuple(base_w + (gpus - g) * idle_w + g * peak_w for g in range(gpus + 1))


def cost_per_hour(power_w: float, step: PriceInterval) -> float:
    """Return c[n, g], the cost per hour of `power_w` watts of IT power."""
    return power_w / 1000.0 * step.price_per_kwh * step.pue


def energy_kwh(power_w: float, from_s: float, to_s: float) -> float:
    """Return the IT energy of a constant power over [from_s, to_s]."""
    return power_w * max(0.0, to_s - from_s) / JOULES_PER_KWH


def energy_cost(
    power_w: float, from_s: float, to_s: float, steps: Sequence[PriceInterval]
) -> float:
    """Return the cost of constant IT power over [from_s, to_s].

    The first step holds before itself too, and the last one after itself. Without steps it is 0.
    """
    cost = 0.0
    for since_s, until_s, step in _overlaps(from_s, to_s, steps):
        cost += cost_per_hour(power_w, step) * (until_s - since_s) / HOUR_S
    return cost


@dataclass(frozen=True, slots=True)
class Priced:
    """IT energy, facility energy (IT times PUE), cost in the cluster's currency, grams of CO2."""

    kwh: float = 0.0
    facility_kwh: float = 0.0
    cost: float = 0.0
    emissions_g: float = 0.0

    def __add__(self, other: Priced) -> Priced:
        return Priced(
            kwh=self.kwh + other.kwh,
            facility_kwh=self.facility_kwh + other.facility_kwh,
            cost=self.cost + other.cost,
            emissions_g=self.emissions_g + other.emissions_g,
        )


def priced(power_w: float, from_s: float, to_s: float, steps: Sequence[PriceInterval]) -> Priced:
    """Return energy, cost and emissions of constant IT power over [from_s, to_s].

    Without steps it is free, and the PUE is 1.
    """
    kwh = energy_kwh(power_w, from_s, to_s)
    if not steps:
        return Priced(kwh=kwh, facility_kwh=kwh)
    facility_kwh = 0.0
    emissions_g = 0.0
    for since_s, until_s, step in _overlaps(from_s, to_s, steps):
        step_kwh = energy_kwh(power_w, since_s, until_s) * step.pue
        facility_kwh += step_kwh
        emissions_g += step_kwh * step.emissions_g_per_kwh
    cost = energy_cost(power_w, from_s, to_s, steps)
    return Priced(kwh, facility_kwh, cost, emissions_g)


def price_intervals(
    tariffs: Iterable[Tariff], pues: Iterable[Pue], zone: str, from_s: float, to_s: float
) -> tuple[PriceInterval, ...]:
    """Return the prices over [from_s, to_s] (Unix seconds) as contiguous steps; () without tariff.

    Of versions with equal `effective_from_s` the last holds. Before the first, energy is free and
    the PUE 1. An hour that the clock repeats has a price each time.
    """
    # 1. Versions in order of time.
    versions = sorted(tariffs, key=attrgetter("effective_from_s"))
    pue_versions = sorted(pues, key=attrgetter("effective_from_s"))
    if not versions or to_s <= from_s:
        return ()

    # 2. All times at which a price may change.
    edges = {pue.effective_from_s for pue in pue_versions}
    band_times = set()
    for version in versions:
        edges.add(version.effective_from_s)
        edges.add(version.until_s)
        edges.update(step.from_s for step in version.steps)
        for band in version.bands:
            band_times.add(band.from_time)
            band_times.add(band.to_time)
    zone_info = ZoneInfo(zone)
    edges.update(wall_clock_edges(band_times, zone_info, from_s, to_s))

    # 3. The price between each two of them; neighbours with the same price become one interval.
    inner_edges = [edge_s for edge_s in edges if from_s < edge_s < to_s]
    intervals = []
    for begin_s, end_s in pairwise([from_s, *sorted(inner_edges), to_s]):
        intervals.append(_price_interval(versions, pue_versions, zone_info, begin_s, end_s))
    return tuple(_join_equal(intervals))


def _price_interval(
    tariffs: Sequence[Tariff], pues: Sequence[Pue], zone: ZoneInfo, from_s: float, to_s: float
) -> PriceInterval:
    """Return the price between two edges, read in the middle: edges may be rounded.

    `tariffs` and `pues` are in order of time.
    """
    # 1. The last PUE that has begun.
    middle_s = (from_s + to_s) / 2
    pue = 1.0
    for version in pues:
        if version.effective_from_s <= middle_s:
            pue = version.pue

    # 2. The last tariff that has begun and is not over.
    tariff = None
    for candidate in reversed(tariffs):
        if candidate.effective_from_s <= middle_s < candidate.until_s:
            tariff = candidate
            break
    if tariff is None:
        return PriceInterval(from_s, to_s, 0.0, pue)

    # 3. Its price and emissions.
    local = datetime.fromtimestamp(middle_s, zone)
    return PriceInterval(from_s, to_s, tariff.price_at(local), pue, tariff.emissions_at(local))


def _join_equal(intervals: Iterable[PriceInterval]) -> Iterator[PriceInterval]:
    """Join neighbouring intervals with the same price, PUE and emissions."""
    prices_of = attrgetter("price_per_kwh", "pue", "emissions_g_per_kwh")
    for prices, group in groupby(intervals, key=prices_of):
        neighbours = list(group)
        yield PriceInterval(neighbours[0].from_s, neighbours[-1].to_s, *prices)


def wall_clock_edges(
    times: Iterable[time], zone: ZoneInfo, from_s: float, to_s: float
) -> Iterator[float]:
    """Yield the Unix seconds of midnights, of these wall-clock times, and of clock changes.

    A time that the clock repeats on a day is yielded for both occurrences.
    """
    yield from _clock_changes(zone, from_s, to_s)
    day = datetime.fromtimestamp(from_s, zone).date()
    last_day = datetime.fromtimestamp(to_s, zone).date()
    while day <= last_day:
        for wall_clock_time in {time(0), *times}:
            for fold in (0, 1):
                moment = datetime.combine(day, wall_clock_time, zone)
                yield moment.replace(fold=fold).timestamp()
        day += timedelta(days=1)


def _clock_changes(zone: ZoneInfo, from_s: float, to_s: float) -> Iterator[float]:
    """Yield the Unix seconds of clock changes, to the second."""
    scan_s = float(int(from_s))
    while scan_s < to_s:
        old_offset = _offset(zone, scan_s)
        before_s = scan_s
        after_s = scan_s + _SCAN_STEP_S
        if _offset(zone, after_s) != old_offset:
            # Bisect: the clock changes after `before_s` and by `after_s`.
            while after_s - before_s > 1.0:
                middle_s = (before_s + after_s) // 2
                if _offset(zone, middle_s) == old_offset:
                    before_s = middle_s
                else:
                    after_s = middle_s
            yield after_s
        scan_s += _SCAN_STEP_S


def _offset(zone: ZoneInfo, at_s: float) -> timedelta | None:
    """Return the zone's offset from UTC at a time."""
    return datetime.fromtimestamp(at_s, UTC).astimezone(zone).utcoffset()


def _overlaps(
    from_s: float, to_s: float, steps: Sequence[PriceInterval]
) -> Iterator[tuple[float, float, PriceInterval]]:
    """Yield each step that [from_s, to_s] overlaps, after the overlap's begin and end.

    The first step holds before itself too, and the last one after itself.
    """
    last_index = len(steps) - 1
    for index, step in enumerate(steps):
        since_s = from_s if index == 0 else max(from_s, step.from_s)
        until_s = to_s if index == last_index else min(to_s, step.to_s)
        if since_s < until_s:
            yield since_s, until_s, step
