"""Series of prices, as day-ahead markets publish them."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from clusters.models import Cluster, EnergyTariff, Reason, RescheduleEvent
from clusters.tariff_series import SeriesError, add_series, read_series
from clusters.tariffs import price_per_kwh, price_steps, tariff_in_force
from controlplane.audit.models import Entry
from tests.builders import a_cluster, a_user
from tests.builders_jobs import api

pytestmark = pytest.mark.django_db
ROME = "Europe/Rome"
HOUR_S = 3600.0


def hours(start: str, *prices: float, zone: str = "UTC", minutes: int = 60) -> str:
    """The CSV of a series whose times carry their offset."""
    at = datetime.fromisoformat(start).astimezone(ZoneInfo(zone))
    lines = ["start,price_per_kwh"]
    for number, price in enumerate(prices):
        step = (at.astimezone(UTC) + timedelta(minutes=minutes * number)).astimezone(ZoneInfo(zone))
        lines.append(f"{step.isoformat()},{price}")
    return "\n".join(lines) + "\n"


def wall_clock(day: str, times: list[str]) -> str:
    """The CSV of a day in times of the wall clock."""
    rows = [f"{day}T{at},0.{number + 10}" for number, at in enumerate(times)]
    return "\n".join(["start,price_per_kwh", *rows]) + "\n"


def prices(cluster: Cluster, start: str, count: int) -> list[float]:
    """Prices in force in the hours from a time on."""
    from_s = datetime.fromisoformat(start).timestamp()
    steps = price_steps(cluster, from_s, from_s + count * HOUR_S)
    found = []
    for number in range(count):
        at_s = from_s + number * HOUR_S + 60
        found.append(next(s.price_per_kwh for s in steps if s.from_s <= at_s < s.to_s))
    return found


@pytest.fixture(name="cluster")
def _cluster() -> Cluster:
    return a_cluster(name="lab", timezone=ROME)


def test_series_holds_from_its_first_step_to_its_end(cluster: Cluster) -> None:
    add_series(cluster, hours("2030-01-01T00:00+00:00", 0.3, -0.05, 0.0))
    assert prices(cluster, "2029-12-31T23:00+00:00", 5) == [0.172, 0.3, -0.05, 0.0, 0.172]


def test_quarters_of_an_hour_become_price_steps(cluster: Cluster) -> None:
    add_series(cluster, hours("2030-01-01T00:00+00:00", 0.1, 0.2, 0.3, 0.4, minutes=15))
    start_s = datetime(2030, 1, 1, tzinfo=UTC).timestamp()
    steps = price_steps(cluster, start_s, start_s + HOUR_S)
    assert [(s.from_s - start_s, s.price_per_kwh) for s in steps] == [
        (0.0, 0.1), (900.0, 0.2), (1800.0, 0.3), (2700.0, 0.4),
    ]  # fmt: skip


def test_series_that_begins_later_holds_in_its_hours_alone(cluster: Cluster) -> None:
    add_series(cluster, hours("2030-01-01T00:00+00:00", 0.1, 0.1, 0.1, 0.1))
    add_series(cluster, hours("2030-01-01T01:00+00:00", 0.9, 0.8))
    assert prices(cluster, "2030-01-01T00:00+00:00", 4) == [0.1, 0.9, 0.8, 0.1]
    assert cluster.tariffs.count() == 3  # no version is lost


def test_correction_with_the_same_times_holds(cluster: Cluster) -> None:
    for price in (0.1, 0.2):
        add_series(cluster, hours("2030-01-01T00:00+00:00", price, price))
    assert prices(cluster, "2030-01-01T00:00+00:00", 2) == [0.2, 0.2]


def test_series_asks_for_one_round_and_leaves_one_row_of_audit(cluster: Cluster) -> None:
    add_series(cluster, hours("2030-01-01T00:00+00:00", *[0.1] * 48))
    assert RescheduleEvent.objects.filter(cluster=cluster, reason=Reason.TARIFF).count() == 1
    entry = Entry.objects.get(action="tariff.add")
    assert entry.new["steps"] == 48


def test_round_shows_the_price_of_its_step(cluster: Cluster) -> None:
    add_series(cluster, hours("2030-01-01T00:00+00:00", 0.3, -0.05))
    at = datetime(2030, 1, 1, 1, 30, tzinfo=UTC)
    tariff = tariff_in_force(cluster, at)
    assert tariff is not None
    assert price_per_kwh(tariff, at, ROME) == -0.05
    after = tariff_in_force(cluster, at + timedelta(hours=1))
    assert after is not None
    assert after.effective_until is None


ALL_HOURS = [f"{hour:02}:00" for hour in range(24)]


def test_day_of_25_hours_has_its_hour_twice() -> None:
    times = [*ALL_HOURS[:3], "02:00", *ALL_HOURS[3:]]
    series = read_series(wall_clock("2030-10-27", times), ROME)
    assert [step.start.hour for step in series.steps] == [22, 23, *range(23)]
    assert series.until == datetime(2030, 10, 27, 23, tzinfo=UTC)


def test_quarters_of_the_hour_that_is_there_twice_are_told_apart() -> None:
    twice = ["02:00", "02:15", "02:30", "02:45"] * 2
    series = read_series(wall_clock("2030-10-27", ["01:45", *twice, "03:00"]), ROME)
    assert series.until - series.steps[0].start == timedelta(minutes=15 * 10)


def test_day_of_23_hours_leaves_an_hour_out() -> None:
    times = [*ALL_HOURS[:2], *ALL_HOURS[3:]]
    series = read_series(wall_clock("2030-03-31", times), ROME)
    assert len(series.steps) == 23
    assert series.until == datetime(2030, 3, 31, 22, tzinfo=UTC)


FAULTS = [
    (wall_clock("2030-03-31", ALL_HOURS), "line 4: 2030-03-31T02:00 does not exist in Europe/Rome"),
    (wall_clock("2030-10-27", ALL_HOURS), "line 5: begins 2 h after line 4"),
    (wall_clock("2030-01-01", ["00:00", "01:00", "03:00"]), "line 4: begins 2 h .* a gap: add the"),
    (wall_clock("2030-01-01", ["00:00", "01:00", "01:30"]), "line 4: begins 0.5 h .* an overlap"),
    (wall_clock("2030-01-01", ["00:00", "01:00", "01:00"]), "line 4: begins 0 h .* an overlap"),
    (wall_clock("2030-01-01", ["00:00", "01:00", "00:00"]), "line 4: begins -1 h .* out of order"),
    (wall_clock("2030-01-01", ["00:00", "00:01"]), "steps have 5 minutes to 24 hours"),
    (wall_clock("2030-01-01", ["00:00"]), "needs a header and two steps"),
    ("", "needs a header and two steps"),
    ("start,price_per_kwh\nsoon,1\nlater,1\n", "line 2: is no time such as"),
    ("start,price_per_kwh\n2030-01-01,x\n2030-01-02,1\n", "line 2: is no price such as 0.21: 'x'"),
    ("start,price_per_kwh\n2030-01-01,NaN\n2030-01-02,1\n", "line 2: the price must be from"),
    ("start,price_per_kwh\n2030-01-01,1e9\n2030-01-02,1\n", "line 2: "),
    ("start,price_per_kwh\n2030-01-01\n2030-01-02,1\n", "line 2: has 1 fields, not 2"),
    ("start,price\n2030-01-01,1\n2030-01-02,1\n", "line 1: no such column: price; known: start"),
    ("start,end\n2030-01-01,1\n2030-01-02,1\n", "line 1: no such column: end"),
    ("start,time,price_per_kwh\na,b,c\na,b,c\n", "line 1: needs one column of times"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), FAULTS)
def test_faulty_series_is_refused_with_line_and_remedy(
    cluster: Cluster, text: str, words: str
) -> None:
    with pytest.raises(SeriesError, match=words):
        add_series(cluster, text)
    assert cluster.tariffs.count() == 1
    assert not RescheduleEvent.objects.filter(reason=Reason.TARIFF).exists()


SPREADSHEET = (
    "\ufeffStart;Price_per_MWh;emissions_g_per_kwh\r\n"
    "2030-01-01 00:00;-5,5;\r\n"
    "2030-01-01 01:00;\N{MINUS SIGN}0,01;210,5\r\n"
    "2030-01-01 02:00;1.250;0\r\n"
)


def test_series_of_a_spreadsheet_in_megawatt_hours_is_read() -> None:
    series = read_series(SPREADSHEET, ROME)
    assert [step.price for step in series.steps] == [
        Decimal("-0.0055"), Decimal("-0.00001"), Decimal("0.00125"),
    ]  # fmt: skip
    assert [step.emissions_g for step in series.steps] == [None, 210.5, 0.0]
    assert series.steps[0].start == datetime(2029, 12, 31, 23, tzinfo=UTC)


def test_year_of_quarters_is_added_and_priced(cluster: Cluster) -> None:
    count = 365 * 96
    add_series(cluster, hours("2030-01-01T00:00+00:00", *[0.1, -0.1] * (count // 2), minutes=15))
    start_s = datetime(2030, 6, 1, tzinfo=UTC).timestamp()
    steps = price_steps(cluster, start_s, start_s + 24 * HOUR_S)
    assert len(steps) == 96
    assert {step.price_per_kwh for step in steps} == {0.1, -0.1}


# The three ways


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_command_takes_a_series_from_a_file(
    cluster: Cluster, tmp_path: Path, encoding: str
) -> None:
    path = tmp_path / "prices.csv"
    path.write_bytes(hours("2030-01-01T00:00+00:00", 0.3, -0.1).encode(encoding))
    output = StringIO()
    call_command("set_tariff", "lab", "--series", str(path), "--name", "day ahead", stdout=output)
    assert "from 2030-01-01 01:00 CET: to 2030-01-01 03:00 CET, 2 prices, mean 0.1 EUR/kWh" in (
        output.getvalue()
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["0.2", "--series", "prices.csv"], "--series has its own prices and times"),
        (["--series", "nothing.csv"], "--series: nothing.csv cannot be read: No such file"),
    ],
)
def test_command_refuses_a_series_with_other_prices(
    cluster: Cluster, words: list[str], said: str
) -> None:
    with pytest.raises(CommandError, match=said):
        call_command("set_tariff", "lab", *words)


TARIFFS = "/api/v1/clusters/lab/tariffs/"


def test_operators_add_a_series_by_rest_and_all_read_it(cluster: Cluster) -> None:
    operator = api(a_user("grace", operator=True))
    body = {"name": "day ahead", "csv": hours("2030-01-01T00:00+00:00", 0.3, -0.1)}
    answer = operator.post(TARIFFS, body, format="json")
    assert answer.status_code == 201, answer.content
    assert (answer.data["prices"], answer.data["default_price_per_kwh"]) == (2, "0.10000000")
    member = api(a_user("ada"))
    rows = member.get(TARIFFS).data["results"]
    assert [row["prices"] for row in rows] == [2, 0]
    assert member.post(TARIFFS, body, format="json").status_code == 403
    assert EnergyTariff.objects.get(name="day ahead").created_by is not None


def test_faulty_series_by_rest_names_the_field_and_line(cluster: Cluster) -> None:
    operator = api(a_user("grace", operator=True))
    answer = operator.post(TARIFFS, {"csv": "start,price_per_kwh\nx,1\ny,2\n"}, format="json")
    assert answer.status_code == 400
    assert "line 2: is no time" in answer.json()["error"]["fields"]["csv"][0]
    assert operator.get("/api/v1/clusters/none/tariffs/").status_code == 404


def uploaded(client: Client, cluster: Cluster, text: str) -> Any:
    file = StringIO(text)
    file.name = "prices.csv"
    fields = {"cluster": cluster.pk, "name": "day ahead", "file": file}
    return client.post("/admin/clusters/energytariff/series/", fields)


def test_operators_add_a_series_on_the_page(cluster: Cluster) -> None:
    client = Client()
    client.force_login(a_user("grace", operator=True))
    assert "CSV file" in client.get("/admin/clusters/energytariff/series/").text
    answer = uploaded(client, cluster, hours("2030-01-01T00:00+00:00", 0.3, -0.1))
    assert answer.status_code == 302
    assert "2 prices are added" in client.get(answer["Location"]).text
    refused = uploaded(client, cluster, "start,price_per_kwh\nx,1\ny,2\n")
    assert "line 2: is no time" in refused.text
    assert EnergyTariff.objects.filter(name="day ahead").count() == 1


def test_stranger_reaches_no_page_of_series(cluster: Cluster) -> None:
    client = Client()
    client.force_login(a_user("eve"))
    answer = uploaded(client, cluster, hours("2030-01-01T00:00+00:00", 0.3, -0.1))
    assert answer.status_code in (302, 403)
    assert EnergyTariff.objects.count() == 1
