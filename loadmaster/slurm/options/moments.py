"""Moments as `--begin` and `--deadline` write them: 16:00, 01/31/27-16:00, fika, now+1hour."""

import re
from datetime import date, datetime, timedelta
from datetime import time as clock_time

from loadmaster.slurm.options.values import ValueFormatError

_FROM_NOW = re.compile(
    r"now(?:\s*([+-])\s*(\d{1,9})\s*(seconds?|minutes?|hours?|days?|weeks?)?)?", re.IGNORECASE
)
"""Sign, number and unit of now+1hour."""

_UNIT_S = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_HOUR_OF_WORD = {"midnight": 0, "elevenses": 11, "noon": 12, "fika": 15, "teatime": 16}

_SEPARATORS = " \t-"
LONGEST = 60
"""Characters of a moment."""

_WORD = re.compile(r"[a-z]+")
_ISO_DATE = re.compile(r"(?P<year>\d{4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})(?!\d)t?")
_US_DATE = re.compile(r"(?P<month>\d{2})([/.]?)(?P<day>\d{2})(?:\2(?P<year>\d{2}))?(?![\d:/.])")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?(?:\s*(am|pm))?(?![\w:.])")

_EXAMPLES = "now+1hour, 16:00, tomorrow, 01/31/30-16:00 or 2030-01-31T16:00"


def moment(text: str, now: datetime) -> datetime:
    """Return the moment of a text, in the zone of `now`. Raises ValueFormatError.

    A clock time alone is its next one; a date alone begins at midnight; a date without a year is
    its next one; a day after a month's end counts into the next month.
    """
    plain = text.strip().lower()
    try:
        if len(plain) > LONGEST:
            raise ValueError(plain)
        from_now = _FROM_NOW.fullmatch(plain)
        if from_now:
            return _moment_from_now(from_now, now)
        day, clock = _day_and_clock(plain, now)
    except (ValueError, OverflowError):
        raise ValueFormatError(f"{text[:40]!r} is no time; write one such as {_EXAMPLES}") from None
    return _combined(day, clock, now)


def _moment_from_now(match: re.Match[str], now: datetime) -> datetime:
    """Return the moment of a match of _FROM_NOW; without a unit it counts in seconds."""
    unit = (match[3] or "second").rstrip("s")
    difference = timedelta(seconds=int(match[2] or 0) * _UNIT_S[unit])
    return now - difference if match[1] == "-" else now + difference


def _day_and_clock(plain: str, now: datetime) -> tuple[date | None, clock_time | None]:
    """Read words, dates and clock times in any order. Raises ValueError at anything else."""
    day: date | None = None
    clock: clock_time | None = None
    rest = plain
    while rest:
        word = _WORD.match(rest)
        date_match = _ISO_DATE.match(rest) or _US_DATE.match(rest)
        clock_match = _CLOCK.match(rest)
        match = word or date_match or clock_match
        if match is None:
            raise ValueError(rest)
        if word and word[0] == "today":
            day = now.date()
            clock = clock or now.timetz().replace(tzinfo=None)
        elif word and word[0] == "tomorrow":
            day = now.date() + timedelta(days=1)
        elif word:
            clock = clock_time(_hour_of(word[0]))
        elif date_match:
            day = _date_of(date_match, now)
        elif clock_match:
            clock = _clock_of(clock_match)
        rest = rest[match.end() :].lstrip(_SEPARATORS)
    if day is None and clock is None:
        raise ValueError(plain)
    return day, clock


def _hour_of(word: str) -> int:
    """Return the hour of a word such as noon. Raises ValueError."""
    if word not in _HOUR_OF_WORD:
        raise ValueError(word)
    return _HOUR_OF_WORD[word]


def _date_of(match: re.Match[str], now: datetime) -> date:
    """Return the date; without a year the next one from today on. Raises ValueError.

    Days are counted from the first of the month, so that 02/30 is a day of March.
    """
    month = int(match["month"])
    days_after_first = timedelta(days=int(match["day"]) - 1)
    if not 0 <= days_after_first.days <= 30:
        raise ValueError(match[0])
    year = match["year"]
    if year is not None:
        century = 2000 if len(year) == 2 else 0
        return date(century + int(year), month, 1) + days_after_first
    this_year = date(now.year, month, 1) + days_after_first
    if this_year >= now.date():
        return this_year
    return date(now.year + 1, month, 1) + days_after_first


def _clock_of(match: re.Match[str]) -> clock_time:
    """Return the clock time of 16:00, 16:00:30 or 4:00pm. Raises ValueError."""
    hour = int(match[1])
    if match[4]:
        if not 0 <= hour <= 12:
            raise ValueError(match[0])
        hour %= 12
        if match[4] == "pm":
            hour += 12
    return clock_time(hour, int(match[2]), int(match[3] or 0))


def _combined(day: date | None, clock: clock_time | None, now: datetime) -> datetime:
    """Return a day's clock time, by default midnight; without a day its next one."""
    time = clock or clock_time(0)
    if day is not None:
        return datetime.combine(day, time, now.tzinfo)
    today = datetime.combine(now.date(), time, now.tzinfo)
    return today if today >= now else today + timedelta(days=1)
