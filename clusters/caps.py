"""Power caps by hour: entries as operators wrote them become steps over time. Pure.

Keys are power_cap_w, from, to, days (0 is Monday), valid_from and valid_until; all but the watts
may be left out. Hours are of the cluster's wall clock, "to" 00:00 is the day's end, both dates are
included. The lowest of several caps holds, beside the cluster's constant one.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from functools import partial
from itertools import groupby, pairwise
from math import isfinite
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from clusters.energy import wall_clock_edges
from policies.contract.snapshot import PowerCapStep

T = TypeVar("T")

EVERY_DAY = "0123456"
FIELDS = ("power_cap_w", "from", "to", "days", "valid_from", "valid_until")


class CapHoursError(ValueError):
    """Invalid entry; the message names it and says what would be right."""


@dataclass(frozen=True, slots=True)
class CapHours:
    """Cap for hours of some days, within its dates."""

    power_cap_w: float
    from_time: time = time(0)
    to_time: time = time(0)
    days: frozenset[int] = frozenset(range(7))
    valid_from: date = date.min
    valid_until: date = date.max

    def covers(self, local: datetime) -> bool:
        at = local.time()
        today = local.weekday() in self.days and self.valid_from <= local.date() <= self.valid_until
        return today and self.from_time <= at and (self.to_time == time(0) or at < self.to_time)


def read_cap_hours(entries: object) -> tuple[CapHours, ...]:
    """Parse stored entries. Raises CapHoursError."""
    if not isinstance(entries, list):
        raise CapHoursError(
            'must be a list such as [{"power_cap_w": 2000, "from": "08:00", "to": "20:00", "days":'
            ' "01234"}]'
        )
    return tuple(_entry(f"entry {i + 1}", entry) for i, entry in enumerate(entries))


def cap_steps(
    hours: Iterable[CapHours], zone: str, from_s: float, to_s: float
) -> tuple[PowerCapStep, ...]:
    """Power caps over [from_s, to_s] (UTC seconds) as disjoint steps; none where unlimited."""
    caps, zone_info = tuple(hours), ZoneInfo(zone)
    if not caps or to_s <= from_s:
        return ()
    times = {edge for c in caps for edge in (c.from_time, c.to_time)}
    edges = set(wall_clock_edges(times, zone_info, from_s, to_s))
    bounds = [from_s, *sorted(edge for edge in edges if from_s < edge < to_s), to_s]
    return _merged((a, b, _lowest(caps, zone_info, a, b)) for a, b in pairwise(bounds))


def lowest_cap_w(
    constant_w: float | None, steps: Sequence[PowerCapStep], from_s: float, to_s: float
) -> float | None:
    """Lowest cap in watts within [from_s, to_s], both included; None if unlimited."""
    caps = [s.power_cap_w for s in steps if s.from_s <= to_s and s.to_s > from_s]
    return min([*caps, *([] if constant_w is None else [constant_w])], default=None)


def _lowest(caps: Sequence[CapHours], zone: ZoneInfo, from_s: float, to_s: float) -> float | None:
    """Lowest cap at the middle of the interval, within which nothing changes."""
    local = datetime.fromtimestamp((from_s + to_s) / 2, zone)
    return min((c.power_cap_w for c in caps if c.covers(local)), default=None)


def _merged(pieces: Iterable[tuple[float, float, float | None]]) -> tuple[PowerCapStep, ...]:
    steps = []
    for watts, same in groupby(pieces, key=lambda piece: piece[2]):
        touching = list(same)
        if watts is not None:
            steps.append(PowerCapStep(touching[0][0], touching[-1][1], watts))
    return tuple(steps)


def _entry(where: str, entry: object) -> CapHours:
    if not isinstance(entry, dict):
        raise CapHoursError(f"{where}: must be an object with {', '.join(FIELDS)}")
    for name in entry:
        if name not in FIELDS:
            raise CapHoursError(f"{where}: {name!r} is no field; known are: {', '.join(FIELDS)}")

    def read(name: str, default: object, reader: Callable[[Any], T], expected: str) -> T:
        value = entry.get(name, default)
        try:
            return reader(value)
        except (TypeError, ValueError):
            raise CapHoursError(f"{where}: {name} must be {expected}, not {value!r}") from None

    start = read("from", "00:00", _time, 'a time such as "08:00"')
    end = read("to", "00:00", _time, 'a time such as "08:00"')
    if end <= start and end != time(0):
        raise CapHoursError(
            f"{where}: to must be after from (00:00 means the day's end); split one that crosses"
            " midnight"
        )
    first = read("valid_from", None, partial(_date, date.min), 'a date such as "2026-01-01"')
    last = read("valid_until", None, partial(_date, date.max), 'a date such as "2026-01-01"')
    if last < first:
        raise CapHoursError(f"{where}: valid_until must not be before valid_from")
    watts = read("power_cap_w", None, _watts, "a number of watts >= 0")
    days = 'digits, 0 for Monday to 6 for Sunday, such as "01234"'
    return CapHours(watts, start, end, read("days", EVERY_DAY, _days, days), first, last)


def _watts(value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not isfinite(value) or value < 0:
        raise ValueError
    return float(value)


def _time(value: Any) -> time:
    found = time.fromisoformat(value)
    if found.tzinfo is not None:
        raise ValueError
    return found


def _days(value: object) -> frozenset[int]:
    if not isinstance(value, str) or not value or set(value) - set(EVERY_DAY):
        raise ValueError
    return frozenset(map(int, value))


def _date(otherwise: date, value: Any) -> date:
    return otherwise if value is None else date.fromisoformat(value)
