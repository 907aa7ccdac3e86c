"""Series of prices: one for each hour or quarter of an hour, as day-ahead markets publish them.

A series is a CSV with a header, and a line for each step: its start, and its price per kWh or MWh.
Times without an offset are wall-clock times of the cluster, of which one hour in autumn is twice.
"""

from collections.abc import Iterator, Sequence
from csv import Error as CsvError
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from zoneinfo import ZoneInfo

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction

from clusters.models import Cluster, EnergyTariff, TariffStep
from clusters.tariffs import LONGEST_STEP, costs_changed
from controlplane.audit.record import record
from loadmaster import text_formats
from loadmaster.text_formats import delimiter_of, moment, plain_number, without_mark

START_COLUMNS = ("start", "from", "time", "datetime", "timestamp")
"""Possible names of the column of starts; a file has one."""

PRICE_COLUMNS = {"price_per_kwh": Decimal(1), "price_per_mwh": Decimal(1000)}
"""Possible names of the column of prices, with the kWh of their unit; a file has one."""

EMISSIONS_COLUMN = "emissions_g_per_kwh"
"""Name of the column of emissions; a file may have none."""

SHORTEST_STEP = timedelta(minutes=5)
MOST_STEPS = 40_000
"""Most steps of a series; a year of quarter-hours has 35,136."""

MOST_PRICE = Decimal(1000)
"""Bound of a price per kWh, above and below 0."""

DECIMALS = Decimal("0.00000001")
"""Places of a price in the database."""

Record = tuple[int, list[str]]
"""Line number and fields of a record of the CSV."""


class SeriesError(ValueError):
    """A series that cannot be saved; the message names line and remedy."""


@dataclass(frozen=True, slots=True)
class Step:
    """Price per kWh and emissions in g/kWh from `start` (UTC) on, from this `line` of the file."""

    line: int
    start: datetime
    price: Decimal
    emissions_g: float | None


@dataclass(frozen=True, slots=True)
class Series:
    """Steps of equal length, without gaps; the last one ends at `until` (UTC)."""

    steps: Sequence[Step]
    until: datetime

    @property
    def mean(self) -> Decimal:
        """Mean price per kWh."""
        total = sum((step.price for step in self.steps), Decimal(0))
        return (total / len(self.steps)).quantize(DECIMALS)


def read_series(text: str, zone: str) -> Series:
    """Read the CSV of a series; times without an offset are of the time zone `zone`.

    Raises SeriesError, which names the line, what is wrong and the remedy.
    """
    # 1. Split the text into records.
    text = without_mark(text)
    delimiter = delimiter_of(text)
    try:
        table = list(text_formats.rows(text, delimiter))
    except CsvError as error:
        raise SeriesError(f"is no CSV: {error}") from None
    if len(table) < 3:
        raise SeriesError("needs a header and two steps or more, such as 2026-05-01T00:00,0.21")
    if len(table) - 1 > MOST_STEPS:
        raise SeriesError(f"has more than {MOST_STEPS:,} steps; add them as several series")

    # 2. Read each record by the header, and check that each step begins where the last one ends.
    columns = _find_columns(table[0])
    steps = list(_read_steps(table[1:], columns, delimiter, ZoneInfo(zone)))
    return Series(steps, _end(steps, ZoneInfo(zone)))


@dataclass(frozen=True, slots=True)
class _Columns:
    """Positions of the columns in a record, and their `count`; `unit_kwh`: of the price."""

    start: int
    price: int
    unit_kwh: Decimal
    emissions: int | None
    count: int


def _find_columns(header: Record) -> _Columns:
    """Find the columns by their names in the header. Raises SeriesError."""
    # 1. All names are known.
    line, fields = header
    names = [field.lower() for field in fields]
    known = (*START_COLUMNS, *PRICE_COLUMNS, EMISSIONS_COLUMN)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SeriesError(f"line {line}: no such column: {unknown[0]}; known: {', '.join(known)}")

    # 2. A series has one column of times, one of prices, and no column twice.
    start_names = [name for name in names if name in START_COLUMNS]
    price_names = [name for name in names if name in PRICE_COLUMNS]
    if len(start_names) != 1 or len(price_names) != 1 or len(set(names)) != len(names):
        one_of = f"{', '.join(START_COLUMNS)}; {', '.join(PRICE_COLUMNS)}"
        raise SeriesError(f"line {line}: needs one column of times and one of prices: {one_of}")

    # 3. Their positions.
    emissions = None
    if EMISSIONS_COLUMN in names:
        emissions = names.index(EMISSIONS_COLUMN)
    return _Columns(
        start=names.index(start_names[0]),
        price=names.index(price_names[0]),
        unit_kwh=PRICE_COLUMNS[price_names[0]],
        emissions=emissions,
        count=len(names),
    )


def _read_steps(
    records: Sequence[Record], columns: _Columns, delimiter: str, zone: ZoneInfo
) -> Iterator[Step]:
    """Read the records below the header. Raises SeriesError."""
    previous_start: datetime | None = None
    for line, fields in records:
        if len(fields) != columns.count:
            raise SeriesError(f"line {line}: has {len(fields)} fields, not {columns.count}")
        start = _start(line, fields[columns.start], zone, previous_start)
        price = _price(line, plain_number(fields[columns.price], delimiter), columns.unit_kwh)
        emissions_g = None
        if columns.emissions is not None and fields[columns.emissions]:
            emissions_g = _emissions(line, plain_number(fields[columns.emissions], delimiter))
        yield Step(line, start, price, emissions_g)
        previous_start = start


def _start(line: int, text: str, zone: ZoneInfo, previous_start: datetime | None) -> datetime:
    """Return the start of a step in UTC. Raises SeriesError.

    `previous_start`: of the step before. If a wall-clock time occurs twice and the first occurrence
    is not after it, the second one is meant.
    """
    # 1. Read the time; one with an offset of its own is unambiguous.
    try:
        local = moment(text, zone)
        start = local.astimezone(UTC)
    except (ValueError, OverflowError):
        raise SeriesError(
            f"line {line}: is no time such as 2026-05-01T13:00 or 2026-05-01T13:00Z: {text!r:.40}"
        ) from None
    if local.tzinfo is not zone:
        return start

    # 2. A wall-clock time in the hour that clocks skip in spring does not survive a way to UTC.
    if start.astimezone(zone).replace(tzinfo=None) != local.replace(tzinfo=None):
        raise SeriesError(
            f"line {line}: {text} does not exist in {zone.key}, where clocks go forward; leave it"
            " out, or write times with an offset"
        )

    # 3. Of a time that occurs twice in autumn, the second one follows the step before.
    if previous_start is not None and start <= previous_start:
        return local.replace(fold=1).astimezone(UTC)
    return start


def _price(line: int, text: str, unit_kwh: Decimal) -> Decimal:
    """Return a price per kWh. Raises SeriesError."""
    try:
        price = (Decimal(text) / unit_kwh).quantize(DECIMALS)
    except InvalidOperation:
        raise SeriesError(f"line {line}: is no price such as 0.21: {text!r:.40}") from None
    if not price.is_finite() or abs(price) > MOST_PRICE:
        raise SeriesError(f"line {line}: the price must be from -1000 to 1000 per kWh")
    return price


def _emissions(line: int, text: str) -> float:
    """Return emissions in g/kWh. Raises SeriesError."""
    try:
        grams = float(text)
    except ValueError:
        grams = -1.0  # out of bounds, as a negative number is
    if not 0 <= grams <= 1e9:
        raise SeriesError(f"line {line}: grams of CO2 per kWh must be from 0 to 1e9: {text!r:.40}")
    return grams


def _end(steps: Sequence[Step], zone: tzinfo) -> datetime:
    """Return the end of the last step, in UTC. Raises SeriesError for a gap or an overlap."""
    # 1. The first two steps give the length of all.
    length = steps[1].start - steps[0].start
    if not SHORTEST_STEP <= length <= LONGEST_STEP:
        raise SeriesError(
            f"line {steps[1].line}: begins {_hours(length)} after the line before; steps have 5"
            " minutes to 24 hours"
        )

    # 2. The first step that begins at another time ends the reading.
    for previous, step in pairwise(steps):
        distance = step.start - previous.start
        if distance == length:
            continue
        fault = "an overlap, or out of order: begin with"
        if distance > length:
            fault = "a gap: add"
        expected = (previous.start + length).astimezone(zone)
        raise SeriesError(
            f"line {step.line}: begins {_hours(distance)} after line {previous.line}, and the steps"
            f" before {_hours(length)}; this is {fault} the step at {expected:%Y-%m-%d %H:%M%z}"
        )
    return steps[-1].start + length


def _hours(length: timedelta) -> str:
    return f"{length.total_seconds() / 3600:g} h"


def add_series(
    cluster: Cluster, text: str, *, name: str = "", by: User | None = None
) -> EnergyTariff:
    """Save a series as a version of the prices, and ask for one round.

    Raises SeriesError and ValidationError.
    """
    # 1. Read the series and check the version that holds it.
    series = read_series(text, cluster.timezone)
    if "\0" in name:
        raise ValidationError({"name": "may hold no NUL character"})
    tariff = EnergyTariff(
        cluster=cluster,
        name=name,
        effective_from=series.steps[0].start,
        effective_until=series.until,
        default_price_per_kwh=series.mean,
        created_by=by,
    )
    tariff.full_clean()

    # 2. Save it with its steps and its row of the audit, and ask for a round.
    with transaction.atomic():
        tariff.save()
        steps = []
        for step in series.steps:
            saved_step = TariffStep(
                tariff=tariff,
                starts_at=step.start,
                price_per_kwh=step.price,
                emissions_g_per_kwh=step.emissions_g,
            )
            steps.append(saved_step)
        TariffStep.objects.bulk_create(steps, batch_size=1000)
        values = {
            "effective_from": tariff.effective_from,
            "effective_until": series.until,
            "steps": len(series.steps),
            "mean_price": series.mean,
        }
        record("tariff.add", cluster, new=values, by=by)
        costs_changed([cluster])
    return tariff
