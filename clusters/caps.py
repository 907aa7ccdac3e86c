"""Power caps by hour: entries as operators wrote them become steps over time. Pure.

The keys of an entry are power_cap_w, from, to, days (0 is Monday), valid_from and valid_until; all
but the watts may be left out. Hours are of the cluster's wall clock, "to" 00:00 is the day's end,
and both dates are included. Of several caps the lowest holds.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from functools import partial
from itertools import groupby, pairwise
from math import isfinite
from operator import itemgetter
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from clusters.energy import wall_clock_edges, within_hours
from policies.contract.snapshot import PowerCapStep

T = TypeVar("T")

EVERY_DAY = "0123456"
"""Days of an entry that names none."""

FIELDS = ("power_cap_w", "from", "to", "days", "valid_from", "valid_until")
"""Keys of an entry."""


class CapHoursError(ValueError):
    """Invalid entry; the message names it and the remedy."""


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
        """Return True if the cap holds at a wall-clock time of the cluster."""
        if not self.valid_from <= local.date() <= self.valid_until:
            return False
        return within_hours(local, self.days, self.from_time, self.to_time)


def read_cap_hours(entries: object) -> tuple[CapHours, ...]:
    """Read stored entries. Raises CapHoursError."""
    if not isinstance(entries, list):
        raise CapHoursError(
            'must be a list such as [{"power_cap_w": 2000, "from": "08:00", "to": "20:00", "days":'
            ' "01234"}]'
        )
    hours = []
    for number, entry in enumerate(entries, 1):
        hours.append(_read_entry(f"entry {number}", entry))
    return tuple(hours)


def cap_steps(
    hours: Iterable[CapHours], zone: str, from_s: float, to_s: float
) -> tuple[PowerCapStep, ...]:
    """Return the power caps over [from_s, to_s] (Unix seconds) as disjoint steps in order.

    There is no step for a time without a cap.
    """
    # 1. All times at which the cap may change.
    caps = tuple(hours)
    zone_info = ZoneInfo(zone)
    if not caps or to_s <= from_s:
        return ()
    times = set()
    for cap in caps:
        times.add(cap.from_time)
        times.add(cap.to_time)
    edges = set(wall_clock_edges(times, zone_info, from_s, to_s))

    # 2. The lowest cap between each two of them; neighbours with the same cap become one step.
    inner_edges = [edge_s for edge_s in edges if from_s < edge_s < to_s]
    intervals = []
    for begin_s, end_s in pairwise([from_s, *sorted(inner_edges), to_s]):
        intervals.append((begin_s, end_s, _lowest_between(caps, zone_info, begin_s, end_s)))
    return _join_equal(intervals)


def lowest_cap_w(
    constant_w: float | None, steps: Sequence[PowerCapStep], from_s: float, to_s: float
) -> float | None:
    """Return the lowest cap in watts within [from_s, to_s], both included; None if unlimited.

    `constant_w`: the cluster's cap for all times; None without one.
    """
    caps = [step.power_cap_w for step in steps if step.from_s <= to_s and step.to_s > from_s]
    if constant_w is not None:
        caps.append(constant_w)
    return min(caps, default=None)


def _lowest_between(
    caps: Sequence[CapHours], zone: ZoneInfo, from_s: float, to_s: float
) -> float | None:
    """Return the lowest cap in watts in an interval in which no cap changes, read in its middle."""
    local = datetime.fromtimestamp((from_s + to_s) / 2, zone)
    return min((cap.power_cap_w for cap in caps if cap.covers(local)), default=None)


def _join_equal(intervals: Iterable[tuple[float, float, float | None]]) -> tuple[PowerCapStep, ...]:
    """Join neighbouring intervals with the same cap, and leave out those without one.

    An interval is (begin, end, watts of its cap).
    """
    steps = []
    for watts, group in groupby(intervals, key=itemgetter(2)):
        if watts is None:
            continue
        neighbours = list(group)
        begin_s, _, _ = neighbours[0]
        _, end_s, _ = neighbours[-1]
        steps.append(PowerCapStep(begin_s, end_s, watts))
    return tuple(steps)


def _read_entry(where: str, entry: object) -> CapHours:
    """Read an entry. Raises CapHoursError, whose text begins with `where`."""
    # 1. Its keys.
    if not isinstance(entry, dict):
        raise CapHoursError(f"{where}: must be an object with {', '.join(FIELDS)}")
    for name in entry:
        if name not in FIELDS:
            raise CapHoursError(f"{where}: {name!r} is no field; known are: {', '.join(FIELDS)}")

    def read(name: str, default: object, parse: Callable[[Any], T], expected: str) -> T:
        """Parse the value of a key; `expected` tells the user what it must be."""
        value = entry.get(name, default)
        try:
            return parse(value)
        except (TypeError, ValueError):
            raise CapHoursError(f"{where}: {name} must be {expected}, not {value!r}") from None

    # 2. Its hours.
    from_time = read("from", "00:00", _time, 'a time such as "08:00"')
    to_time = read("to", "00:00", _time, 'a time such as "08:00"')
    if to_time <= from_time and to_time != time(0):
        raise CapHoursError(
            f"{where}: to must be after from (00:00 means the day's end); split one that crosses"
            " midnight"
        )

    # 3. Its dates.
    a_date = 'a date such as "2026-01-01"'
    valid_from = read("valid_from", None, partial(_date, date.min), a_date)
    valid_until = read("valid_until", None, partial(_date, date.max), a_date)
    if valid_until < valid_from:
        raise CapHoursError(f"{where}: valid_until must not be before valid_from")

    # 4. Its watts and days.
    watts = read("power_cap_w", None, _watts, "a number of watts >= 0")
    digits = 'digits, 0 for Monday to 6 for Sunday, such as "01234"'
    days = read("days", EVERY_DAY, _days, digits)
    return CapHours(watts, from_time, to_time, days, valid_from, valid_until)


# Parsers of values, which raise TypeError or ValueError.


def _watts(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not isfinite(value) or value < 0:
        raise ValueError
    return float(value)


def _time(value: Any) -> time:
    wall_clock_time = time.fromisoformat(value)
    if wall_clock_time.tzinfo is not None:
        raise ValueError
    return wall_clock_time


def _days(value: object) -> frozenset[int]:
    if not isinstance(value, str) or not value or set(value) - set(EVERY_DAY):
        raise ValueError
    return frozenset(map(int, value))


def _date(default: date, value: Any) -> date:
    if value is None:
        return default
    return date.fromisoformat(value)
