"""Sums over the energy ledger by hour, day, node, team or job: predicted, billed, measured."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, time
from decimal import Decimal
from functools import cached_property
from itertools import groupby
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
_KEYS = {
    "hour": ("hour",),
    "day": ("hour",),
    "node": ("node_id",),
    "team": ("team_id",),
    "job": ("job__name", "job_id", "team__name", "job__user__username"),
}
_NAMED: dict[str, type[Node | Team]] = {"node": Node, "team": Team}
"""Groups whose names are read after their sums: a join would read a name for each entry."""

SEE_ALL = "accounting.see_all_costs"
_SUMS = (
    "gpu_s", "measured_kwh", "modelled_kwh", "rest_kwh", "facility_kwh", "emissions_g",
    "predicted_kwh", "cost", "measured_cost",
    "predicted_cost",
)  # fmt: skip

_PARTS = ("compared_cost", "profiling_kwh", "profiling_cost")
_ENERGIES = (
    "gpu_h", "measured_kwh", "modelled_kwh", "rest_kwh", "facility_kwh", "emissions_kg",
    "profiling_kwh",
)  # fmt: skip
_AMOUNTS = ("cost", "measured_cost", "compared_cost", "profiling_cost")

JOBS_AT_ONCE = 500
"""Jobs of which an export reads the sums at once."""


@dataclass(frozen=True, slots=True)
class CostRow:
    """Sum of IT kWh (but for `facility_kwh`); `compared_cost`: billed where predicted.

    `profiling_kwh` and `profiling_cost` are the part of dedicated profile runs.
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
        """IT energy: of the GPUs, measured and modelled, and of the rest of the nodes."""
        return self.measured_kwh + self.modelled_kwh + self.rest_kwh

    @property
    def measured_share(self) -> float:
        """Measured fraction of the GPUs' energy, 0 to 1."""
        gpus = self.measured_kwh + self.modelled_kwh
        return self.measured_kwh / gpus if gpus else 0.0

    @property
    def off(self) -> float | None:
        """Relative error of the prediction: 0.05 if 5% more was billed. None without prediction."""
        if not self.predicted_cost:
            return None
        return float(self.compared_cost / self.predicted_cost) - 1.0


def sees_all_costs(user: User | AnonymousUser) -> bool:
    """Return True for operators and holders of `accounting.see_all_costs`."""
    return is_operator(user) or bool(user.is_active and user.has_perm(SEE_ALL))


def visible_entries(user: User | AnonymousUser, query: CostQuery) -> QuerySet[EnergyEntry]:
    """Entries of the query's time that this user may see."""
    entries = EnergyEntry.objects.filter(
        cluster=query.cluster, hour__gte=query.since, hour__lt=query.until
    )
    return entries if sees_all_costs(user) else entries.filter(team__in=teams_of(user))


class Costs:
    """Sums of a query that a user may see: rows by group, and their total.

    Rows are by time, else the highest cost first. Those by job are read as far as they are wanted,
    and at most `most_jobs` of them are there.
    """

    def __init__(
        self, user: User | AnonymousUser, query: CostQuery, most_jobs: int | None = None
    ) -> None:
        self.query, self._entries = query, visible_entries(user, query)
        self._most_jobs = most_jobs

    @cached_property
    def rows(self) -> Sequence[CostRow]:
        """Rows to be counted, sliced and walked through."""
        if self.query.by == "job":
            return JobRows(self.query, self._entries, self._most_jobs)
        keys = _KEYS[self.query.by]
        groups = self._entries.order_by().values(*keys).annotate(**_aggregates())
        if named := _NAMED.get(self.query.by):
            sums = {group[keys[0]]: group for group in groups}
            names = named.objects.in_bulk(list(sums))
            name = f"{self.query.by}__name"
            found = [_row(self.query, {**sums[key], name: of.name}) for key, of in names.items()]
            return sorted(found, key=lambda row: (-row.cost, row.name))
        found = [_row(self.query, group) for group in groups.order_by("hour")]
        return _by_day(self.query, found) if self.query.by == "day" else found

    @cached_property
    def total(self) -> CostRow:
        """Sum of all rows."""
        if isinstance(self.rows, JobRows):
            return _row(self.query, {"total": None, **self._entries.aggregate(**_aggregates())})
        return _added(self.rows, "total")


class JobRows(Sequence[CostRow]):
    """Rows of jobs, `most` of the highest cost first: a page of them costs little."""

    def __init__(self, query: CostQuery, entries: QuerySet[EnergyEntry], most: int | None) -> None:
        self._query, self._entries, self._most = query, entries, most
        jobs = entries.order_by().values("job_id").annotate(sum_cost=Sum("cost"))
        self._jobs = jobs.order_by("-sum_cost", "job_id")[:most]

    def __len__(self) -> int:
        return self._entries.order_by().values("job_id").distinct()[: self._most].count()

    @overload
    def __getitem__(self, place: int) -> CostRow: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[CostRow]: ...

    def __getitem__(self, place: int | slice) -> CostRow | Sequence[CostRow]:
        if isinstance(place, int):
            return self._of([self._jobs[place]["job_id"]])[0]
        return self._of([group["job_id"] for group in self._jobs[place]])

    def __iter__(self) -> Iterator[CostRow]:
        # The ids at first, 16 bytes each, and no cursor while a client takes its time.
        ids = b"".join(group["job_id"].bytes for group in self._jobs.iterator())
        for first in range(0, len(ids), 16 * JOBS_AT_ONCE):
            some = ids[first : first + 16 * JOBS_AT_ONCE]
            yield from self._of([UUID(bytes=some[at : at + 16]) for at in range(0, len(some), 16)])

    def _of(self, jobs: Sequence[UUID]) -> list[CostRow]:
        groups = self._entries.order_by().filter(job__in=jobs).values(*_KEYS["job"])
        found = {group["job_id"]: group for group in groups.annotate(**_aggregates())}
        return [_row(self._query, found[job]) for job in jobs if job in found]


def _aggregates() -> dict[str, Sum]:
    """Sums by name: 0 without entries, but None where nothing was predicted."""
    compared = Sum("cost", filter=Q(predicted_cost__isnull=False), default=0)
    sums = {
        f"sum_{name}": Sum(name) if name.startswith("predicted") else Sum(name, default=0)
        for name in _SUMS
    }
    profiled = Q(purpose=Purpose.PROFILING)
    its_kwh = F("measured_kwh") + F("modelled_kwh") + F("rest_kwh")
    return {
        **sums,
        "sum_compared_cost": compared,
        "sum_profiling_kwh": Sum(its_kwh, filter=profiled, default=0.0),
        "sum_profiling_cost": Sum("cost", filter=profiled, default=0),
    }


def _by_day(query: CostQuery, hours: Iterable[CostRow]) -> list[CostRow]:
    """Sum hours up here, as SQLite would ask Python for the day of each entry."""
    days = groupby(hours, key=lambda row: row.at.astimezone(query.zone).date() if row.at else None)
    return [
        _added(list(of_day), f"{day:%Y-%m-%d}", datetime.combine(day, time(0), query.zone))
        for day, of_day in days
        if day
    ]


def _added(rows: Sequence[CostRow], name: str, at: datetime | None = None) -> CostRow:
    """Sum of some rows: of a prediction None where none has one."""
    predicted_kwh = [row.predicted_kwh for row in rows if row.predicted_kwh is not None]
    predicted_cost = [row.predicted_cost for row in rows if row.predicted_cost is not None]
    sums: dict[str, Any] = {
        **{field: sum((getattr(row, field) for row in rows), 0.0) for field in _ENERGIES},
        **{field: sum((getattr(row, field) for row in rows), Decimal(0)) for field in _AMOUNTS},
    }
    return CostRow(
        name=name,
        at=at,
        predicted_kwh=sum(predicted_kwh) if predicted_kwh else None,
        predicted_cost=sum(predicted_cost, Decimal(0)) if predicted_cost else None,
        **sums,
    )


def _row(query: CostQuery, group: dict[str, Any]) -> CostRow:
    sums = {name: group[f"sum_{name}"] for name in (*_SUMS, *_PARTS)}
    gpu_s, emissions_g = sums.pop("gpu_s"), sums.pop("emissions_g")
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
    if "hour" in group:
        return f"{group['hour'].astimezone(query.zone):%Y-%m-%d %H:%M}"
    for key in ("node__name", "job__name", "team__name"):
        if key in group:
            return str(group[key])
    return "total"


CSV_COLUMNS = (
    "name", "team", "user", "job_id", "gpu_hours", "it_kwh", "gpu_measured_kwh", "gpu_modelled_kwh",
    "rest_of_nodes_modelled_kwh",
    "facility_kwh", "emissions_kg_co2", "cost", "measured_cost", "predicted_it_kwh",
    "predicted_cost",
    "billed_cost_where_predicted", "profiling_it_kwh", "profiling_cost", "currency",
)  # fmt: skip


def csv_line(row: CostRow, currency: str) -> Sequence[object]:
    """Values of a row for CSV_COLUMNS; empty where nothing was predicted."""
    return (
        row.at.isoformat() if row.at else row.name, row.team, row.user, row.job_id, row.gpu_h,
        row.kwh, row.measured_kwh,
        row.modelled_kwh, row.rest_kwh, row.facility_kwh, row.emissions_kg, row.cost,
        row.measured_cost,
        "" if row.predicted_kwh is None else row.predicted_kwh,
        "" if row.predicted_cost is None else row.predicted_cost,
        row.compared_cost, row.profiling_kwh, row.profiling_cost, currency,
    )  # fmt: skip


class _Echo:
    def write(self, line: str) -> str:
        return line


def csv_of(rows: Iterable[CostRow], currency: str) -> Iterator[str]:
    """Lines of the file, the header first."""
    writer = csv.writer(_Echo())
    yield writer.writerow(CSV_COLUMNS)
    for row in rows:
        yield writer.writerow([plain(cell) for cell in csv_line(row, currency)])
