"""Moments of `--begin`, as Slurm 22.05 reads them."""

from datetime import UTC, datetime, timedelta

import pytest

from loadmaster.slurm.options.moments import moment
from loadmaster.slurm.options.values import ValueFormatError

NOW = datetime(2030, 5, 17, 14, 30, tzinfo=UTC)


def on(year: int, month: int, day: int, hour: int = 0, minute: int = 0) -> datetime:
    return datetime(year, month, day, hour, minute, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("now", NOW), ("now+60", NOW + timedelta(minutes=1)), ("now+2hours", NOW.replace(hour=16)),
        ("NOW + 5", NOW + timedelta(seconds=5)), ("now+2weeks", NOW + timedelta(days=14)),
        ("now-5", NOW - timedelta(seconds=5)),
        ("16:00", on(2030, 5, 17, 16)), ("9:15", on(2030, 5, 18, 9, 15)),
        ("3:00pm", on(2030, 5, 17, 15)), ("4:00 PM", on(2030, 5, 17, 16)),
        ("12:00am", on(2030, 5, 18)), ("12:00pm", on(2030, 5, 18, 12)),
        ("noon", on(2030, 5, 18, 12)), ("midnight", on(2030, 5, 18)),
        ("fika", on(2030, 5, 17, 15)), ("teatime", on(2030, 5, 17, 16)),
        ("elevenses", on(2030, 5, 18, 11)), ("today", NOW), ("tomorrow", on(2030, 5, 18)),
        ("tomorrow-16:00", on(2030, 5, 18, 16)), ("noon tomorrow", on(2030, 5, 18, 12)),
        ("today 23:00", on(2030, 5, 17, 23)), ("noon 12/25", on(2030, 12, 25, 12)),
        ("01/31/31-16:00", on(2031, 1, 31, 16)), ("16:00 01/31/31", on(2031, 1, 31, 16)),
        ("013131", on(2031, 1, 31)), ("013131-16:00", on(2031, 1, 31, 16)),
        ("01.31.31", on(2031, 1, 31)), ("1225", on(2030, 12, 25)), ("0131", on(2031, 1, 31)),
        ("05/17", on(2030, 5, 17)), ("05/16", on(2031, 5, 16)),
        ("2031-01-02", on(2031, 1, 2)), ("2031-01-02T", on(2031, 1, 2)),
        ("2031-01-02T10:20:30", on(2031, 1, 2, 10, 20) + timedelta(seconds=30)),
        ("2031-01-02 10:20", on(2031, 1, 2, 10, 20)), ("2031-01-02Tnoon", on(2031, 1, 2, 12)),
        ("2031-01-02T4:00pm", on(2031, 1, 2, 16)), ("2031-02-30", on(2031, 3, 2)),
    ],
)  # fmt: skip
def test_a_moment_is_read_as_slurm_reads_it(text: str, at: datetime) -> None:
    assert moment(text, NOW) == at


@pytest.mark.parametrize(
    "text",
    ["", "soon", "25:00", "12:60", "now+9parsecs", "now+1h", "now+", "16", "4pm", "13:00pm",
     "31.01.27", "01/31/2027", "20270131", "1600", "13/01/27", "01/32/27", "2027-01", "fikaa",
     "2027-01-31T16", "16:00:00.5", "monday", "now+1hour-5", "noon" * 50_000],
)  # fmt: skip
def test_a_text_that_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(ValueFormatError, match="is no time; write one such as"):
        moment(text, NOW)
