"""Series of prices: one for each hour or quarter of an hour, as day-ahead markets publish them.

A CSV with a header: the start of each step, and its price per kWh or MWh. Times with an offset mean
themselves; others are the wall clock of the cluster, whose hour in autumn is there twice.
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
from loadmaster.text_formats import delimiter_of, moment, plain_number, rows, without_mark

STARTS = ("start", "from", "time", "datetime", "timestamp")
PRICES = {"price_per_kwh": Decimal(1), "price_per_mwh": Decimal(1000)}
"""Columns of prices, and what to divide them by."""

EMISSIONS = "emissions_g_per_kwh"
SHORTEST_STEP = timedelta(minutes=5)
MOST_STEPS = 40_000
"""A year of quarter-hours has 35,136."""

MOST_PRICE = Decimal(1000)
DECIMALS = Decimal("0.00000001")


class SeriesError(ValueError):
    """A series that cannot be taken; the message names line and remedy."""


@dataclass(frozen=True, slots=True)
class Step:
    """Price per kWh from `start` (UTC) on; `line` of the file."""

    line: int
    start: datetime
    price: Decimal
    emissions_g: float | None


@dataclass(frozen=True, slots=True)
class Series:
    """Equal steps that follow each other to `until`."""

    steps: Sequence[Step]
    until: datetime

    @property
    def mean(self) -> Decimal:
        """Mean price per kWh."""
        total = sum((step.price for step in self.steps), Decimal(0))
        return (total / len(self.steps)).quantize(DECIMALS)


def read_series(text: str, zone: str) -> Series:
    """Read the CSV of a series. SeriesError names the line, what is wrong and the remedy.

    `zone`: of times without an offset.
    """
    text = without_mark(text)
    delimiter = delimiter_of(text)
    try:
        table = list(rows(text, delimiter))
    except CsvError as error:
        raise SeriesError(f"is no CSV: {error}") from None
    if len(table) < 3:
        raise SeriesError("needs a header and two steps or more, such as 2026-05-01T00:00,0.21")
    if len(table) - 1 > MOST_STEPS:
        raise SeriesError(f"has more than {MOST_STEPS:,} steps; add them as several series")
    columns = _columns(table[0])
    steps = list(_steps(table, columns, delimiter, ZoneInfo(zone)))
    return Series(steps, _end(steps, ZoneInfo(zone)))


@dataclass(frozen=True, slots=True)
class _Columns:
    """Indices of the columns that are read; `per`: kWh of the price's unit."""

    start: int
    price: int
    per: Decimal
    emissions: int | None
    width: int


def _columns(header: tuple[int, list[str]]) -> _Columns:
    line, fields = header
    names = [field.lower() for field in fields]
    known = (*STARTS, *PRICES, EMISSIONS)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SeriesError(f"line {line}: no such column: {unknown[0]}; known: {', '.join(known)}")
    starts = [name for name in names if name in STARTS]
    prices = [name for name in names if name in PRICES]
    if len(starts) != 1 or len(prices) != 1 or len(set(names)) != len(names):
        one_of = f"{', '.join(STARTS)}; {', '.join(PRICES)}"
        raise SeriesError(f"line {line}: needs one column of times and one of prices: {one_of}")
    emissions = names.index(EMISSIONS) if EMISSIONS in names else None
    return _Columns(
        names.index(starts[0]), names.index(prices[0]), PRICES[prices[0]], emissions, len(names)
    )


def _steps(
    table: Sequence[tuple[int, list[str]]], columns: _Columns, delimiter: str, zone: ZoneInfo
) -> Iterator[Step]:
    before: datetime | None = None
    for line, fields in table[1:]:
        if len(fields) != columns.width:
            raise SeriesError(f"line {line}: has {len(fields)} fields, not {columns.width}")
        start = _start(line, fields[columns.start], zone, before)
        price = _price(line, plain_number(fields[columns.price], delimiter), columns.per)
        emissions_g = None
        if columns.emissions is not None and fields[columns.emissions]:
            emissions_g = _emissions(line, plain_number(fields[columns.emissions], delimiter))
        yield Step(line, start, price, emissions_g)
        before = start


def _start(line: int, text: str, zone: ZoneInfo, before: datetime | None) -> datetime:
    """Start of a step in UTC. A wall-clock time that is there twice is the one after `before`."""
    try:
        at = moment(text, zone)
        start = at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise SeriesError(
            f"line {line}: is no time such as 2026-05-01T13:00 or 2026-05-01T13:00Z: {text!r:.40}"
        ) from None
    if at.tzinfo is not zone:
        return start
    if start.astimezone(zone).replace(tzinfo=None) != at.replace(tzinfo=None):
        raise SeriesError(
            f"line {line}: {text} does not exist in {zone.key}, where clocks go forward; leave it"
            " out, or write times with an offset"
        )
    if before is not None and start <= before:
        return at.replace(fold=1).astimezone(UTC)
    return start


def _price(line: int, text: str, per: Decimal) -> Decimal:
    try:
        price = (Decimal(text) / per).quantize(DECIMALS)
    except InvalidOperation:
        raise SeriesError(f"line {line}: is no price such as 0.21: {text!r:.40}") from None
    if not price.is_finite() or abs(price) > MOST_PRICE:
        raise SeriesError(f"line {line}: the price must be from -1000 to 1000 per kWh")
    return price


def _emissions(line: int, text: str) -> float:
    try:
        grams = float(text)
    except ValueError:
        grams = -1.0
    if not 0 <= grams <= 1e9:
        raise SeriesError(f"line {line}: grams of CO2 per kWh must be from 0 to 1e9: {text!r:.40}")
    return grams


def _end(steps: Sequence[Step], zone: tzinfo) -> datetime:
    """End of the last step. SeriesError for a gap or an overlap."""
    length = steps[1].start - steps[0].start
    if not SHORTEST_STEP <= length <= LONGEST_STEP:
        raise SeriesError(
            f"line {steps[1].line}: begins {_hours(length)} after the line before; steps have 5"
            " minutes to 24 hours"
        )
    for before, step in pairwise(steps):
        apart = step.start - before.start
        if apart == length:
            continue
        expected = (before.start + length).astimezone(zone)
        fault = "a gap: add" if apart > length else "an overlap, or out of order: begin with"
        raise SeriesError(
            f"line {step.line}: begins {_hours(apart)} after line {before.line}, and the steps"
            f" before {_hours(length)}; this is {fault} the step at {expected:%Y-%m-%d %H:%M%z}"
        )
    return steps[-1].start + length


def _hours(length: timedelta) -> str:
    return f"{length.total_seconds() / 3600:g} h"


def add_series(
    cluster: Cluster, text: str, *, name: str = "", by: User | None = None
) -> EnergyTariff:
    """Save a series as a version of the prices, and trigger one round.

    Raises SeriesError and ValidationError.
    """
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
    with transaction.atomic():
        tariff.save()
        TariffStep.objects.bulk_create(
            [
                TariffStep(
                    tariff=tariff,
                    starts_at=step.start,
                    price_per_kwh=step.price,
                    emissions_g_per_kwh=step.emissions_g,
                )
                for step in series.steps
            ],
            batch_size=1000,
        )
        new = {
            "effective_from": tariff.effective_from,
            "effective_until": series.until,
            "steps": len(series.steps),
            "mean_price": series.mean,
        }
        record("tariff.add", cluster, new=new, by=by)
        costs_changed([cluster])
    return tariff
