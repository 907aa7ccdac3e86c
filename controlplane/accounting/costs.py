"""Sums over the energy ledger by hour, day, node, team or job: predicted, billed, measured."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.contrib.auth.models import AnonymousUser, User
from django.db.models import F, Q, QuerySet, Sum
from django.db.models.functions import TruncDay

from controlplane.accounting.models import EnergyEntry
from controlplane.accounting.query import CostQuery
from controlplane.web.operators import is_operator
from controlplane.web.pages.formats import plain as plain
from jobs.selectors import teams_of
from policies.contract.snapshot import Purpose

SECONDS_PER_HOUR = 3600.0
_KEYS = {
    "hour": ("hour",),
    "day": ("day",),
    "node": ("node__name",),
    "team": ("team__name",),
    "job": ("job__name", "job_id", "team__name", "job__user__username"),
}
SEE_ALL = "accounting.see_all_costs"
_SUMS = (
    "gpu_s", "measured_kwh", "modelled_kwh", "rest_kwh", "facility_kwh", "emissions_g",
    "predicted_kwh", "cost", "measured_cost",
    "predicted_cost",
)  # fmt: skip

_PARTS = ("compared_cost", "profiling_kwh", "profiling_cost")


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


def cost_rows(
    user: User | AnonymousUser, query: CostQuery
) -> QuerySet[EnergyEntry, dict[str, Any]]:
    """Dictionaries of sums per group for `as_row`: by time, else the highest cost first."""
    entries = visible_entries(user, query)
    if query.by == "day":
        entries = entries.annotate(day=TruncDay("hour", tzinfo=query.zone))
    order = (query.by,) if query.by in ("hour", "day") else ("-sum_cost", *_KEYS[query.by])
    groups: QuerySet[EnergyEntry, dict[str, Any]] = (
        entries.order_by().values(*_KEYS[query.by]).annotate(**_aggregates())
    )
    return groups.order_by(*order)


def as_rows(query: CostQuery, groups: Iterable[dict[str, Any]]) -> list[CostRow]:
    return [_row(query, group) for group in groups]


def cost_total(user: User | AnonymousUser, query: CostQuery) -> CostRow:
    """Sum of all that the query covers."""
    sums = visible_entries(user, query).aggregate(**_aggregates())
    return _row(query, {"total": None, **sums})


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


def _row(query: CostQuery, group: dict[str, Any]) -> CostRow:
    sums = {name: group[f"sum_{name}"] for name in (*_SUMS, *_PARTS)}
    gpu_s, emissions_g = sums.pop("gpu_s"), sums.pop("emissions_g")
    return CostRow(
        name=_name(query, group),
        at=group.get("hour") or group.get("day"),
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
    if "day" in group:
        return f"{group['day'].astimezone(query.zone):%Y-%m-%d}"
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
