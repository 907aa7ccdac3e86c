"""Caps by hour: what operators wrote, as steps over time."""

from datetime import UTC, datetime
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusters.caps import CapHoursError, cap_steps, lowest_cap_w, read_cap_hours
from policies.contract.snapshot import PowerCapStep

HOUR = 3600.0
ROME = "Europe/Rome"


def at(text: str, zone: str = ROME) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def steps(entries: Any, since: str, until: str) -> list[tuple[str, str, float]]:
    """The steps in words of the wall clock."""
    found = cap_steps(read_cap_hours(entries), ROME, at(since), at(until))
    return [(_clock(s.from_s), _clock(s.to_s), s.power_cap_w) for s in found]


def _clock(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, ZoneInfo(ROME)).strftime("%d %H:%M")


def test_a_cap_holds_in_its_hours_on_its_days() -> None:
    working = [{"power_cap_w": 2000, "from": "08:00", "to": "20:00", "days": "01234"}]
    friday_to_monday = steps(working, "2026-05-08T00:00", "2026-05-12T00:00")
    assert friday_to_monday == [("08 08:00", "08 20:00", 2000.0), ("11 08:00", "11 20:00", 2000.0)]


def test_of_several_caps_the_lowest_holds() -> None:
    both = [{"power_cap_w": 3000}, {"power_cap_w": 1000, "from": "10:00", "to": "11:00"}]
    assert steps(both, "2026-05-08T09:00", "2026-05-08T12:00") == [
        ("08 09:00", "08 10:00", 3000.0), ("08 10:00", "08 11:00", 1000.0),
        ("08 11:00", "08 12:00", 3000.0),
    ]  # fmt: skip


def test_a_cap_holds_within_its_dates_both_included() -> None:
    spring = [{"power_cap_w": 500, "valid_from": "2026-05-08", "valid_until": "2026-05-09"}]
    assert steps(spring, "2026-05-07T00:00", "2026-05-11T00:00") == [
        ("08 00:00", "10 00:00", 500.0)
    ]


def test_an_hour_that_the_clock_repeats_is_capped_twice() -> None:
    """The clocks of Rome are put back from 3:00 to 2:00 on the 25th of October 2026."""
    (step,) = cap_steps(
        read_cap_hours([{"power_cap_w": 1, "from": "02:00", "to": "04:00"}]),
        ROME,
        at("2026-10-25"),
        at("2026-10-26"),
    )
    assert step.to_s - step.from_s == 3 * HOUR


def test_without_entries_nothing_is_capped() -> None:
    assert cap_steps((), "UTC", 0.0, 1e6) == ()


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({}, "must be a list"),
        (["x"], "entry 1: must be an object"),
        ([{"power_cap_w": 1}, {"watts": 5}], "entry 2: 'watts' is no field"),
        ([{}], "entry 1: power_cap_w must be a number of watts >= 0, not None"),
        ([{"power_cap_w": -1}], "power_cap_w"),
        ([{"power_cap_w": float("nan")}], "power_cap_w"),
        ([{"power_cap_w": True}], "power_cap_w"),
        ([{"power_cap_w": 1, "from": 8}], 'from must be a time such as "08:00", not 8'),
        ([{"power_cap_w": 1, "to": "25:00"}], "to must be a time"),
        ([{"power_cap_w": 1, "from": "08:00+02:00"}], "from must be a time"),
        ([{"power_cap_w": 1, "from": "20:00", "to": "08:00"}], "split one that crosses midnight"),
        ([{"power_cap_w": 1, "days": "7"}], "days must be digits"),
        ([{"power_cap_w": 1, "days": ""}], "days must be digits"),
        ([{"power_cap_w": 1, "valid_from": "soon"}], "valid_from must be a date"),
        ([{"power_cap_w": 1, "valid_until": 5}], "valid_until must be a date"),
        (
            [{"power_cap_w": 1, "valid_from": "2026-02-01", "valid_until": "2026-01-01"}],
            "valid_until must not be before",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_naming_the_entry(entries: Any, said: str) -> None:
    with pytest.raises(CapHoursError) as raised:
        read_cap_hours(entries)
    assert said in str(raised.value)


def test_the_lowest_cap_of_a_time_counts_a_step_that_begins_at_its_end() -> None:
    later = (PowerCapStep(10.0, 20.0, 500.0),)
    assert lowest_cap_w(800.0, later, 0.0, 9.0) == 800.0
    assert lowest_cap_w(800.0, later, 0.0, 10.0) == 500.0
    assert lowest_cap_w(None, later, 20.0, 30.0) is None


entry = st.fixed_dictionaries(
    {"power_cap_w": st.integers(0, 9)},
    optional={
        "from": st.sampled_from(["00:00", "02:30", "08:00"]),
        "to": st.sampled_from(["09:00", "23:30", "00:00"]),
        "days": st.sampled_from(["0123456", "56", "2"]),
        "valid_from": st.sampled_from(["2026-03-29", "2026-10-25"]),
        "valid_until": st.just("2026-10-26"),
    },
)


@settings(max_examples=60, deadline=None)
@given(
    entries=st.lists(entry, max_size=4),
    start=st.sampled_from(["2026-03-28T12:00", "2026-10-24T12:00"]),
    after_s=st.floats(0, 3 * 86_400),
)
def test_at_every_moment_the_steps_say_what_the_entries_do(
    entries: list[dict[str, Any]], start: str, after_s: float
) -> None:
    hours, from_s = read_cap_hours(entries), at(start)
    found = cap_steps(hours, ROME, from_s, from_s + 3 * 86_400 + 1)
    moment_s = from_s + after_s
    local = datetime.fromtimestamp(moment_s, UTC).astimezone(ZoneInfo(ROME))
    expected = min((h.power_cap_w for h in hours if h.covers(local)), default=None)
    assert [s.power_cap_w for s in found if s.from_s <= moment_s < s.to_s] == (
        [] if expected is None else [expected]
    )
    assert all(a.to_s <= b.from_s for a, b in pairwise(found))
