"""Power, tariffs over time and what energy costs: pure arithmetic, held against the paper and
against the wall clock.
"""

from datetime import UTC, datetime, time
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clusters.energy import (
    Band,
    Pue,
    Tariff,
    cost_per_hour,
    energy_cost,
    energy_kwh,
    power_curve,
    price_intervals,
)
from policies.contract.snapshot import PriceInterval

ROME = "Europe/Rome"
HOUR = 3600.0
EVERY_DAY = frozenset(range(7))
NIGHT = Band(EVERY_DAY, time(0), time(6), 0.10)
DAY = Tariff(0.0, 0.30, (NIGHT,))


def at(text: str, zone: str = "UTC", fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def prices(steps: tuple[PriceInterval, ...]) -> list[tuple[float, float, float]]:
    """(from, to, price) in hours since the first step's start."""
    start = steps[0].from_s
    return [((s.from_s - start) / HOUR, (s.to_s - start) / HOUR, s.price_per_kwh) for s in steps]


def test_a_nodes_power_grows_with_its_gpus_in_use() -> None:
    assert power_curve(base_w=300.0, idle_w=30.0, peak_w=200.0, gpus=2) == (360.0, 530.0, 700.0)


def test_costs_per_hour_are_the_papers() -> None:
    published = PriceInterval(0.0, HOUR, 0.17168313, 1.33)
    assert cost_per_hour(360 + 170 * 2, published) == pytest.approx(0.1598, abs=5e-5)
    assert cost_per_hour(330 + 70, published) == pytest.approx(0.0913, abs=5e-5)


def test_a_kilowatt_over_an_hour_is_a_kilowatt_hour() -> None:
    assert energy_kwh(1000.0, 10.0, 10.0 + HOUR) == pytest.approx(1.0)
    assert energy_kwh(1000.0, 10.0, 5.0) == 0.0


def test_a_cost_is_integrated_over_the_steps_it_spans() -> None:
    steps = (PriceInterval(0.0, HOUR, 0.1, 1.0), PriceInterval(HOUR, 2 * HOUR, 0.3, 2.0))
    assert energy_cost(1000.0, 0.5 * HOUR, 1.5 * HOUR, steps) == pytest.approx(
        0.5 * 0.1 + 0.5 * 0.3 * 2.0
    )


def test_the_first_and_last_prices_hold_beyond_the_steps() -> None:
    steps = (PriceInterval(HOUR, 2 * HOUR, 0.1, 1.0), PriceInterval(2 * HOUR, 3 * HOUR, 0.3, 1.0))
    assert energy_cost(1000.0, 0.0, 5 * HOUR, steps) == pytest.approx(2 * 0.1 + 3 * 0.3)
    assert energy_cost(1000.0, 0.0, HOUR / 2, steps) == pytest.approx(0.05)


def test_energy_without_any_price_costs_nothing() -> None:
    assert energy_cost(1000.0, 0.0, HOUR, ()) == 0.0
    assert price_intervals([], [Pue(0.0, 1.5)], "UTC", 0.0, HOUR) == ()


def test_a_flat_tariff_is_one_step() -> None:
    assert price_intervals([Tariff(0.0, 0.2)], [Pue(0.0, 1.3)], ROME, 100.0, 7 * 86_400.0) == (
        PriceInterval(100.0, 7 * 86_400.0, 0.2, 1.3),
    )


def test_a_band_is_read_off_the_wall_clock_of_the_zone() -> None:
    start = at("2026-01-15T20:00", ROME)
    assert prices(price_intervals([DAY], [], ROME, start, start + 12 * HOUR)) == [
        (0, 4, 0.30),
        (4, 10, 0.10),
        (10, 12, 0.30),
    ]


def test_a_band_that_ends_at_midnight_covers_the_days_last_hours() -> None:
    evening = Tariff(0.0, 0.2, (Band(EVERY_DAY, time(22), time(0), 0.5),))
    start = at("2026-01-15T21:00")
    assert prices(price_intervals([evening], [], "UTC", start, start + 4 * HOUR)) == [
        (0, 1, 0.2),
        (1, 3, 0.5),
        (3, 4, 0.2),
    ]


def test_a_band_holds_only_on_its_days() -> None:
    weekend = Tariff(0.0, 0.3, (Band(frozenset({5, 6}), time(0), time(0), 0.1),))
    friday = at("2026-01-16T12:00")
    assert prices(price_intervals([weekend], [], "UTC", friday, friday + 72 * HOUR)) == [
        (0, 12, 0.3),
        (12, 60, 0.1),
        (60, 72, 0.3),
    ]


def test_the_night_is_an_hour_shorter_when_the_clock_is_put_forward() -> None:
    start = at("2026-03-28T23:00", ROME)
    assert prices(price_intervals([DAY], [], ROME, start, start + 9 * HOUR)) == [
        (0, 1, 0.30),
        (1, 6, 0.10),
        (6, 9, 0.30),
    ]


def test_the_night_is_an_hour_longer_when_the_clock_is_put_back() -> None:
    start = at("2026-10-24T23:00", ROME)
    assert prices(price_intervals([DAY], [], ROME, start, start + 9 * HOUR)) == [
        (0, 1, 0.30),
        (1, 8, 0.10),
        (8, 9, 0.30),
    ]


def test_a_band_in_the_hour_the_clock_skips_never_comes() -> None:
    skipped = Tariff(0.0, 0.3, (Band(EVERY_DAY, time(2), time(3), 0.9),))
    start = at("2026-03-29T00:00", ROME)
    assert prices(price_intervals([skipped], [], ROME, start, start + 6 * HOUR)) == [(0, 6, 0.3)]


def test_a_band_in_the_hour_the_clock_repeats_comes_twice() -> None:
    repeated = Tariff(0.0, 0.3, (Band(EVERY_DAY, time(2), time(2, 30), 0.9),))
    start = at("2026-10-25T00:00", ROME)
    found = prices(price_intervals([repeated], [], ROME, start, start + 6 * HOUR))
    assert found == [(0, 2, 0.3), (2, 2.5, 0.9), (2.5, 3, 0.3), (3, 3.5, 0.9), (3.5, 6, 0.3)]


def test_a_band_that_begins_in_the_hour_the_clock_skips_begins_with_the_change() -> None:
    late = Tariff(0.0, 0.3, (Band(EVERY_DAY, time(2, 30), time(4), 0.9),))
    start = at("2026-03-29T00:00", ROME)
    assert prices(price_intervals([late], [], ROME, start, start + 6 * HOUR)) == [
        (0, 2, 0.3),
        (2, 3, 0.9),
        (3, 6, 0.3),
    ]


def test_a_later_tariff_and_pue_take_over_when_they_are_in_force() -> None:
    tariffs = [Tariff(0.0, 0.2), Tariff(2 * HOUR, 0.4)]
    pues = [Pue(3 * HOUR, 1.5), Pue(0.0, 1.1)]
    assert price_intervals(tariffs, pues, "UTC", HOUR, 4 * HOUR) == (
        PriceInterval(HOUR, 2 * HOUR, 0.2, 1.1),
        PriceInterval(2 * HOUR, 3 * HOUR, 0.4, 1.1),
        PriceInterval(3 * HOUR, 4 * HOUR, 0.4, 1.5),
    )


def test_of_two_tariffs_of_one_moment_the_later_in_order_holds() -> None:
    assert (
        price_intervals([Tariff(0.0, 0.2), Tariff(0.0, 0.7)], [], "UTC", 0.0, HOUR)[0].price_per_kwh
        == 0.7
    )


def test_before_the_first_tariff_energy_costs_nothing() -> None:
    steps = price_intervals(
        [Tariff(HOUR, 0.2, emissions_g_per_kwh=300.0)], [], "UTC", 0.0, 2 * HOUR
    )
    assert [(s.price_per_kwh, s.emissions_g_per_kwh) for s in steps] == [(0.0, 0.0), (0.2, 300.0)]


times = st.builds(time, st.integers(0, 23), st.sampled_from([0, 30]))
bands = st.builds(
    Band, st.frozensets(st.integers(0, 6), min_size=1), times, times, st.sampled_from([0.1, 0.2])
)
zones = st.sampled_from([ROME, "UTC", "Australia/Lord_Howe", "America/St_Johns", "Pacific/Apia"])
moments = st.integers(int(at("2026-01-01T00:00")), int(at("2027-01-01T00:00")))


@settings(max_examples=60, deadline=None)
@given(
    bands=st.lists(bands, max_size=3),
    zone=zones,
    start=moments,
    hours=st.integers(1, 72),
    part=st.floats(0.0, 1.0),
)
@example(
    [Band(EVERY_DAY, time(1, 30), time(2, 30), 0.1)],
    "Australia/Lord_Howe",
    int(at("2026-04-04T00:00")),
    48,
    0.3125,
)
def test_steps_tile_the_horizon_and_agree_with_the_wall_clock(
    bands: list[Band], zone: str, start: int, hours: int, part: float
) -> None:
    tariff = Tariff(0.0, 0.5, tuple(bands))
    end = start + hours * HOUR
    steps = price_intervals([tariff], [], zone, float(start), end)
    assert (steps[0].from_s, steps[-1].to_s) == (start, end)
    assert all(
        a.to_s == b.from_s and a.price_per_kwh != b.price_per_kwh for a, b in pairwise(steps)
    )
    moment = float(int(start + part * (end - 1 - start)))
    step = next(s for s in steps if s.from_s <= moment < s.to_s)
    assert step.price_per_kwh == tariff.price_at(
        datetime.fromtimestamp(moment, UTC).astimezone(ZoneInfo(zone))
    )
