"""Forecasts of starts as people may read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from django.db.models import F, Max, QuerySet
from django.utils import timezone

from controlplane.web.pages.formats import duration
from jobs.lifecycle import JobState
from jobs.models import UNFINISHED, Forecast, Job

TELLS = (JobState.QUEUED, JobState.PROFILING, JobState.STOPPING)
"""States of jobs for which a start may be expected."""

NOT_FORECAST = frozenset({"resting", "array_limit"})
"""Codes of waiting jobs that nobody simulates: their last forecast is out of date."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected start of a waiting job, never before now; `end` None: unknown."""

    start: datetime
    low: datetime
    high: datetime
    end: datetime | None
    nodes: tuple[str, ...]
    gpus: int
    position: int | None = None

    @property
    def words(self) -> str:
        """Start in words: "today 03:59"."""
        return day_and_time(self.start, timezone.now())

    @property
    def interval(self) -> str:
        """Interval in words."""
        now = timezone.now()
        low, high = day_and_time(self.low, now), day_and_time(self.high, now)
        if low == high:
            return f"{low}, in four of five cases"
        return f"{low} to {high} UTC, in four of five cases"

    @property
    def place(self) -> str:
        """Place in words; "" if unknown."""
        gpus = f"{self.gpus} GPU{'s' if self.gpus > 1 else ''}" if self.gpus else ""
        return " on ".join(part for part in (gpus, ", ".join(self.nodes)) if part)


def day_and_time(moment: datetime, now: datetime) -> str:
    """Day and time in UTC: "today 03:59", "tomorrow 03:59", "2027-01-15 03:59"; "any moment"."""
    if moment <= now:
        return "any moment"
    at, today = moment.astimezone(UTC), now.astimezone(UTC).date()
    days = {today: "today", today + timedelta(days=1): "tomorrow"}
    return f"{days.get(at.date(), at.date().isoformat())} {at:%H:%M}"


def newest(forecasts: QuerySet[Forecast]) -> QuerySet[Forecast]:
    """Newest forecast of each job."""
    last = forecasts.order_by().values("job").annotate(last=Max("pk")).values("last")
    return Forecast.objects.filter(pk__in=last)


class Starts(NamedTuple):
    """Expected starts of waiting jobs, and why others have none, where that is known."""

    expected: dict[UUID, Expected]
    unknown: dict[UUID, str]

    @property
    def of_known_end(self) -> set[UUID]:
        """Jobs of which an end is expected, too."""
        return {job for job, expected in self.expected.items() if expected.end is not None}


def expected_starts(jobs: Iterable[Job], now: datetime) -> dict[UUID, Expected]:
    """Expected starts of those of these jobs that wait; one query."""
    return _starts(_newest_of(jobs), now)


def _newest_of(jobs: Iterable[Job]) -> list[Forecast]:
    """Newest forecasts of those of these jobs that wait, if made since their last launch."""
    waiting = [j.pk for j in jobs if j.state in TELLS and j.waiting_code not in NOT_FORECAST]
    if not waiting:
        return []
    return list(newest(Forecast.objects.filter(job__in=waiting)).filter(fence=F("job__fence")))


def _starts(rows: Iterable[Forecast], now: datetime) -> dict[UUID, Expected]:
    starts = {}
    for row in rows:
        expected = _expected(row, now)
        if expected is not None:
            starts[row.job_id] = expected
    return starts


@dataclass(frozen=True, slots=True)
class FirstForecast:
    """First forecast of a job that has started, and how much later it started, in seconds."""

    start: datetime
    made: datetime
    later_s: float
    inside: bool

    @property
    def words(self) -> str:
        """How far off the forecast was, in words."""
        if abs(self.later_s) < 1.0:
            return "as forecast"
        way = "later" if self.later_s > 0 else "sooner"
        return f"{duration(abs(self.later_s))} {way} than first forecast"


def first_forecast(job: Job) -> FirstForecast | None:
    """Return what was forecast of a job at first, once it has started; one query."""
    if job.started_at is None:
        return None
    row = job.forecasts.filter(first=True, made_at__lt=job.started_at).order_by("pk").first()
    if row is None or row.start_at is None or row.low_at is None or row.high_at is None:
        return None
    later_s = (job.started_at - row.start_at).total_seconds()
    inside = row.low_at <= job.started_at <= row.high_at
    return FirstForecast(row.start_at, row.made_at, later_s, inside)


def starts_of(jobs: Iterable[Job], now: datetime) -> Starts:
    """Expected starts of waiting jobs with their places in the queue; two queries."""
    rows = _newest_of(jobs)
    unknown = {row.job_id: row.why for row in rows if row.start_at is None and row.why}
    return Starts(_with_positions(_starts(rows, now)), unknown)


def _with_positions(starts: dict[UUID, Expected]) -> dict[UUID, Expected]:
    """Add the places in the clusters' queues, by expected starts, from 1; one query.

    Jobs of all teams count. Of jobs with equal starts the one with the greater priority comes
    first, then the earlier submission, so that no two have the same place.
    """
    if not starts:
        return {}
    clusters = Job.objects.filter(pk__in=starts).values("cluster")
    waiting = Job.objects.filter(UNFINISHED, cluster__in=clusters, state__in=TELLS)
    queue = Forecast.objects.filter(job__in=waiting.exclude(waiting_code__in=NOT_FORECAST))
    rows = newest(queue).filter(fence=F("job__fence"), start_at__isnull=False)
    in_order = rows.order_by("start_at", "-job__priority", "job__submitted_at", "job")
    places = Counter[int]()
    placed = {}
    for job, cluster in in_order.values_list("job", "job__cluster"):
        places[cluster] += 1
        if job in starts:
            placed[job] = replace(starts[job], position=places[cluster])
    return placed


def _expected(row: Forecast, now: datetime) -> Expected | None:
    if row.start_at is None or row.low_at is None or row.high_at is None:
        return None
    late = max(now - row.start_at, timedelta())
    return Expected(
        start=row.start_at + late,
        low=max(row.low_at, now),
        high=max(row.high_at, now),
        end=row.end_at and row.end_at + late,
        nodes=tuple(row.nodes),
        gpus=row.gpus,
    )
