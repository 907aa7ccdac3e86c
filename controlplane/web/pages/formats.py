"""Numbers, times and CSV cells as people read them. Pure."""

import re
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal

UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
"""Units of time with their seconds, the largest first."""


def duration(seconds: float | None) -> str:
    """Return a duration in at most two units: 43 ms, 45 s, 2 h 5 min, 3 d 4 h; "" for None."""
    if seconds is None:
        return ""
    if 0 < abs(seconds) < 0.9995:
        return f"{1000 * abs(seconds):.0f} ms"
    left = round(abs(seconds))
    if left == 0:
        return "0 s"

    # The largest unit of which there is a whole one, and the next.
    largest = 0
    while left < UNITS[largest][0]:
        largest += 1
    parts = []
    for size, unit in UNITS[largest : largest + 2]:
        number, left = divmod(left, size)
        if number:
            parts.append(f"{number} {unit}")
    return " ".join(parts)


def amount_held(gpus: int, gpu_type: str, cores: float) -> str:
    """Return the GPUs or cores that a job holds of a node: "2 × V100"; without GPUs "4 cores"."""
    if gpus:
        return f"{gpus} × {gpu_type}"
    return "1 core" if cores == 1 else f"{cores:g} cores"


def units_on(seats: Sequence[tuple[str, int]]) -> str:
    """Return the places of a job's units: "3 units on node-1 (2) and node-2 (1)".

    `seats`: (node, units) of each.
    """
    total = sum(units for _, units in seats)
    noun = "unit" if total == 1 else "units"
    if len(seats) == 1:
        node, _ = seats[0]
        return f"{total} {noun} on {node}"
    places = [f"{node} ({units})" for node, units in seats]
    sentence = " and ".join([", ".join(places[:-1]), *places[-1:]])
    return f"{total} {noun} on {sentence}"


def short_duration(seconds: float) -> str:
    """Return a duration in its largest unit: 45 s, 3 min, 2 h, 3 d."""
    return " ".join(duration(round(seconds)).split(" ")[:2])


def due(
    due_at: datetime | None, now: datetime, ended_at: datetime | None = None
) -> tuple[str, str]:
    """Return (text, tone) of a due date: "in 12 min", "late by 3 min"; "met" after the end.

    The tone is "good", "bad" or "".
    """
    if due_at is None:
        return "", ""
    left_s = (due_at - (ended_at or now)).total_seconds()
    if left_s < 0:
        return f"late by {short_duration(left_s)}", "bad"
    if ended_at is not None:
        return "met", "good"
    return f"in {short_duration(left_s)}", ""


def ago(moment: datetime | None, now: datetime) -> str:
    """Return "12 s ago", or "never"."""
    if moment is None:
        return "never"
    return f"{short_duration(max(0.0, (now - moment).total_seconds()))} ago"


def quantity(value: float | Decimal | None) -> str:
    """Return a number with three significant digits: 0.0123, 4.56, 1,234; "" for None.

    Only tiny numbers have an exponent.
    """
    if value is None:
        return ""
    number = float(value)
    if number == 0:
        return "0"
    if abs(number) >= 100:
        return f"{number:,.0f}"
    if abs(number) < 1e-6:
        return f"{number:.2g}"

    # Two decimals for 1.00 to 9.99, one for 10.0 to 99.9, three and more below 1.
    decimals = 1
    while abs(number) < 10.0 ** (2 - decimals):
        decimals += 1
    text = f"{number:.{decimals}f}"
    return text.rstrip("0").rstrip(".")


def count(value: int | float | None) -> str:
    """Return a whole number with thousands separators; "" for None."""
    return "" if value is None else f"{value:,.0f}"


def counted(number: int, one: str, several: str = "") -> str:
    """Return a number with its noun: "1 job", "1,234 jobs"."""
    plural = several or f"{one}s"
    return f"{number:,} {one if number == 1 else plural}"


def part_of(share: object) -> str:
    """Return the prefix for a part of a GPU: "half of ", "0.25 of "; "" for a whole one."""
    if not isinstance(share, float) or not 0.0 < share < 1.0:
        return ""
    return "half of " if share == 0.5 else f"{share:.2g} of "


_BLANK = "\\s\\x00-\\x1f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u2064\ufeff"
_FORMULA = re.compile(f"(^|[;|\\t\\r\\n])([{_BLANK}]*[=+\\-@\uff1d\uff0b\uff0d\uff20]|^[\\t\\r])")
"""Beginning of a formula in a cell; its sign may be a wide one of East Asian texts."""


def plain(cell: object) -> object:
    """Return a cell that no spreadsheet takes for a formula, with an apostrophe before its sign."""
    return _FORMULA.sub(r"\1'\2", cell) if isinstance(cell, str) else cell
