"""Sums over the energy ledger by hour, day, node, team or job: predicted, billed, measured."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from functools import cached_property
from typing import Any, overload
from uuid import UUID

from django.contrib.auth.models import AnonymousUser, User
from django.db.models import F, Q, QuerySet, Sum

from clusters.models import Node
from controlplane.accounting.models import EnergyEntry
from controlplane.accounting.query import CostQuery
from controlplane.web.operators import is_operator
from controlplane.web.pages.formats import plain as plain
from jobs.models import Team
from jobs.selectors import teams_of
from policies.contract.snapshot import Purpose

SECONDS_PER_HOUR = 3600.0
_GROUP_FIELDS = {
    "hour": ("hour",),
    "day": ("hour",),
    "node": ("node_id",),
    "team": ("team_id",),
    "job": ("job__name", "job_id", "team__name", "job__user__username"),
}
"""Fields of the entries by which each grouping sums up. Days are summed up from hours."""

_NAMED_MODELS: dict[str, type[Node | Team]] = {"node": Node, "team": Team}
"""Groups whose names are read after their sums: a join would read a name for each entry."""

SEE_ALL = "accounting.see_all_costs"
"""Permission to see the costs of every team."""

_SUMMED_FIELDS = (
    "gpu_s",
    "measured_kwh",
    "modelled_kwh",
    "rest_kwh",
    "facility_kwh",
    "emissions_g",
    "cost",
    "measured_cost",
)
"""Fields of the entries that are summed up."""

_PREDICTED_FIELDS = ("predicted_kwh", "predicted_cost")
"""Fields that are summed up over the entries with a prediction; None without any."""

_PARTIAL_SUMS = ("compared_cost", "profiling_kwh", "profiling_cost")
"""Sums over some of the entries, which `_aggregates` defines."""

_FLOAT_FIGURES = (
    "gpu_h",
    "measured_kwh",
    "modelled_kwh",
    "rest_kwh",
    "facility_kwh",
    "emissions_kg",
    "profiling_kwh",
)
"""Figures of a row that are numbers."""

_MONEY_FIGURES = ("cost", "measured_cost", "compared_cost", "profiling_cost")
"""Figures of a row that are amounts of money."""

JOBS_AT_ONCE = 500
"""Jobs whose sums an export reads with one query."""

UUID_BYTES = 16
"""Length of a job's packed id."""


@dataclass(frozen=True, slots=True)
class CostRow:
    """Sum over the entries of a group; kWh are IT energy except `facility_kwh`.

    `compared_cost`: billed cost of the entries with a prediction. `profiling_kwh` and
    `profiling_cost`: part of dedicated profile runs. `at`: begin of an hour or day. `job_id`,
    `team` and `user`: of a job.
    """

    name: str
    gpu_h: float
    measured_kwh: float
    modelled_kwh: float
    rest_kwh: float
    facility_kwh: float
    emissions_kg: float
    cost: Decimal
    measured_cost: Decimal
    predicted_kwh: float | None
    predicted_cost: Decimal | None
    compared_cost: Decimal
    profiling_kwh: float
    profiling_cost: Decimal
    at: datetime | None = None
    job_id: str = ""
    team: str = ""
    user: str = ""

    @property
    def kwh(self) -> float:
        """IT energy of the GPUs, measured and modelled, and of the rest of the nodes."""
        return self.measured_kwh + self.modelled_kwh + self.rest_kwh

    @property
    def measured_share(self) -> float:
        """Measured fraction of the GPUs' energy, 0 to 1."""
        gpus_kwh = self.measured_kwh + self.modelled_kwh
        return self.measured_kwh / gpus_kwh if gpus_kwh else 0.0

    @property
    def off(self) -> float | None:
        """Bill over prediction, less 1: 0.05 if 5% more was billed. None without prediction."""
        if not self.predicted_cost:
            return None
        return float(self.compared_cost / self.predicted_cost) - 1.0


def sees_all_costs(user: User | AnonymousUser) -> bool:
    """Return True for operators and holders of `accounting.see_all_costs`."""
    return is_operator(user) or bool(user.is_active and user.has_perm(SEE_ALL))


def visible_entries(user: User | AnonymousUser, query: CostQuery) -> QuerySet[EnergyEntry]:
    """Return the entries of the query's time that this user may see."""
    entries = EnergyEntry.objects.filter(
        cluster=query.cluster, hour__gte=query.since, hour__lt=query.until
    )
    if sees_all_costs(user):
        return entries
    return entries.filter(team__in=teams_of(user))


class Costs:
    """Sums of a query that a user may see: rows by group, and their total.

    Hours and days are in the order of time, other rows from the highest cost down. Rows of jobs are
    read lazily, and at most `most_jobs` of them (None: all).
    """

    def __init__(
        self, user: User | AnonymousUser, query: CostQuery, most_jobs: int | None = None
    ) -> None:
        self.query = query
        self._entries = visible_entries(user, query)
        self._most_jobs = most_jobs

    @cached_property
    def rows(self) -> Sequence[CostRow]:
        """Rows of the groups."""
        # 1. Jobs, of which there may be a million.
        by = self.query.by
        if by == "job":
            return JobRows(self.query, self._entries, self._most_jobs)

        # 2. Nodes and teams.
        groups = self._entries.order_by().values(*_GROUP_FIELDS[by]).annotate(**_aggregates())
        named_model = _NAMED_MODELS.get(by)
        if named_model is not None:
            return self._named_rows(named_model, groups)

        # 3. Hours and days.
        hours = [_row(self.query, group) for group in groups.order_by("hour")]
        if by == "day":
            return _by_day(self.query, hours)
        return hours

    def _named_rows(
        self, model: type[Node | Team], groups: Iterable[dict[str, Any]]
    ) -> list[CostRow]:
        """Return rows of nodes or teams, with their names, the highest cost first."""
        key_field = f"{self.query.by}_id"
        name_field = f"{self.query.by}__name"
        groups_by_key = {group[key_field]: group for group in groups}
        rows = []
        for key, named in model.objects.in_bulk(list(groups_by_key)).items():
            rows.append(_row(self.query, {**groups_by_key[key], name_field: named.name}))
        return sorted(rows, key=lambda row: (-row.cost, row.name))

    @cached_property
    def total(self) -> CostRow:
        """Sum of all rows."""
        if isinstance(self.rows, JobRows):
            return _row(self.query, self._entries.aggregate(**_aggregates()))
        return _sum_of(self.rows, "total")


class JobRows(Sequence[CostRow]):
    """Rows of the `most` most expensive jobs (None: all); slices of it cost little to read."""

    def __init__(self, query: CostQuery, entries: QuerySet[EnergyEntry], most: int | None) -> None:
        self._query = query
        self._entries = entries
        self._most = most
        jobs = entries.order_by().values("job_id").annotate(sum_cost=Sum("cost"))
        self._jobs = jobs.order_by("-sum_cost", "job_id")[:most]

    def __len__(self) -> int:
        return self._entries.order_by().values("job_id").distinct()[: self._most].count()

    @overload
    def __getitem__(self, index: int) -> CostRow: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[CostRow]: ...

    def __getitem__(self, index: int | slice) -> CostRow | Sequence[CostRow]:
        if isinstance(index, int):
            return self._rows_of([self._jobs[index]["job_id"]])[0]
        return self._rows_of([group["job_id"] for group in self._jobs[index]])

    def __iter__(self) -> Iterator[CostRow]:
        """Yield the rows, read JOBS_AT_ONCE at a time."""
        # All ids are read first, so that no cursor stays open while a client takes its time. They
        # are packed, as there may be a million.
        packed_ids = b"".join(group["job_id"].bytes for group in self._jobs.iterator())
        bytes_at_once = UUID_BYTES * JOBS_AT_ONCE
        for first in range(0, len(packed_ids), bytes_at_once):
            yield from self._rows_of(_unpacked_ids(packed_ids[first : first + bytes_at_once]))

    def _rows_of(self, jobs: Sequence[UUID]) -> list[CostRow]:
        """Return the rows of these jobs in their order; jobs deleted meanwhile are left out."""
        groups = self._entries.order_by().filter(job__in=jobs).values(*_GROUP_FIELDS["job"])
        groups_by_job = {group["job_id"]: group for group in groups.annotate(**_aggregates())}
        return [_row(self._query, groups_by_job[job]) for job in jobs if job in groups_by_job]


def _unpacked_ids(packed_ids: bytes) -> list[UUID]:
    """Return the ids of jobs from their bytes."""
    starts = range(0, len(packed_ids), UUID_BYTES)
    return [UUID(bytes=packed_ids[start : start + UUID_BYTES]) for start in starts]


def _aggregates() -> dict[str, Sum]:
    """Return sums over entries as annotations by name.

    Without entries they are 0, but those of predictions are None.
    """
    sums = {}
    for name in _SUMMED_FIELDS:
        sums[f"sum_{name}"] = Sum(name, default=0)
    for name in _PREDICTED_FIELDS:
        sums[f"sum_{name}"] = Sum(name)
    is_predicted = Q(predicted_cost__isnull=False)
    is_profiling = Q(purpose=Purpose.PROFILING)
    it_kwh = F("measured_kwh") + F("modelled_kwh") + F("rest_kwh")
    sums["sum_compared_cost"] = Sum("cost", filter=is_predicted, default=0)
    sums["sum_profiling_kwh"] = Sum(it_kwh, filter=is_profiling, default=0.0)
    sums["sum_profiling_cost"] = Sum("cost", filter=is_profiling, default=0)
    return sums


def _by_day(query: CostQuery, hours: Iterable[CostRow]) -> list[CostRow]:
    """Return the sums of days of the cluster's zone from those of hours, which are in order.

    The database does not do this, as SQLite would ask Python for the day of each entry.
    """
    hours_by_day: dict[date, list[CostRow]] = {}
    for hour in hours:
        if hour.at is not None:
            day = hour.at.astimezone(query.zone).date()
            hours_by_day.setdefault(day, []).append(hour)
    days = []
    for day, day_hours in hours_by_day.items():
        midnight = datetime.combine(day, time(0), query.zone)
        days.append(_sum_of(day_hours, f"{day:%Y-%m-%d}", midnight))
    return days


def _sum_of(rows: Sequence[CostRow], name: str, at: datetime | None = None) -> CostRow:
    """Return the sum of rows; its prediction is None if no row has one."""
    sums: dict[str, Any] = {"predicted_kwh": None, "predicted_cost": None}
    for figure in _FLOAT_FIGURES:
        sums[figure] = sum((getattr(row, figure) for row in rows), 0.0)
    for figure in _MONEY_FIGURES:
        sums[figure] = sum((getattr(row, figure) for row in rows), Decimal(0))
    predicted_kwh = [row.predicted_kwh for row in rows if row.predicted_kwh is not None]
    if predicted_kwh:
        sums["predicted_kwh"] = sum(predicted_kwh)
    predicted_cost = [row.predicted_cost for row in rows if row.predicted_cost is not None]
    if predicted_cost:
        sums["predicted_cost"] = sum(predicted_cost, Decimal(0))
    return CostRow(name=name, at=at, **sums)


def _row(query: CostQuery, group: dict[str, Any]) -> CostRow:
    """Return the row of a group that the database has summed up."""
    names = (*_SUMMED_FIELDS, *_PREDICTED_FIELDS, *_PARTIAL_SUMS)
    sums = {name: group[f"sum_{name}"] for name in names}
    gpu_s = sums.pop("gpu_s")
    emissions_g = sums.pop("emissions_g")
    return CostRow(
        name=_name(query, group),
        at=group.get("hour"),
        job_id=str(group.get("job_id", "")),
        team=str(group.get("team__name", "")),
        user=str(group.get("job__user__username", "")),
        gpu_h=gpu_s / SECONDS_PER_HOUR,
        emissions_kg=emissions_g / 1000.0,
        **sums,
    )


def _name(query: CostQuery, group: dict[str, Any]) -> str:
    """Return the name of a group: its hour, node, job or team; "total" for all entries."""
    if "hour" in group:
        return f"{group['hour'].astimezone(query.zone):%Y-%m-%d %H:%M}"
    for field in ("node__name", "job__name", "team__name"):
        if field in group:
            return str(group[field])
    return "total"


_CSV_COLUMNS = (
    ("team", "team"),
    ("user", "user"),
    ("job_id", "job_id"),
    ("gpu_hours", "gpu_h"),
    ("it_kwh", "kwh"),
    ("gpu_measured_kwh", "measured_kwh"),
    ("gpu_modelled_kwh", "modelled_kwh"),
    ("rest_of_nodes_modelled_kwh", "rest_kwh"),
    ("facility_kwh", "facility_kwh"),
    ("emissions_kg_co2", "emissions_kg"),
    ("cost", "cost"),
    ("measured_cost", "measured_cost"),
    ("predicted_it_kwh", "predicted_kwh"),
    ("predicted_cost", "predicted_cost"),
    ("billed_cost_where_predicted", "compared_cost"),
    ("profiling_it_kwh", "profiling_kwh"),
    ("profiling_cost", "profiling_cost"),
)
"""(heading, figure of a row) of the columns between the name and the currency."""


def csv_of(rows: Iterable[CostRow], currency: str) -> Iterator[str]:
    """Yield the lines of the CSV, the header first; an unknown figure is an empty cell."""
    writer = csv.writer(_Echo())
    yield writer.writerow(["name", *(heading for heading, _ in _CSV_COLUMNS), "currency"])
    for row in rows:
        name = row.at.isoformat() if row.at else row.name
        figures = [getattr(row, figure) for _, figure in _CSV_COLUMNS]
        yield writer.writerow([plain(cell) for cell in (name, *figures, currency)])


class _Echo:
    """File whose `write` returns the line, so that `writerow` returns it too."""

    def write(self, line: str) -> str:
        return line
