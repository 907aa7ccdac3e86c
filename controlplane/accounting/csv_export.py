"""Costs as CSV: ISO 8601 times in UTC, decimal points, no cell that is a formula."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence

from controlplane.accounting.costs import CostRow
from controlplane.web.pages.csv_cells import plain as plain

CSV_COLUMNS = (
    "name", "team", "user", "job_id", "gpu_hours", "it_kwh", "gpu_measured_kwh", "gpu_modelled_kwh",
    "rest_of_nodes_modelled_kwh",
    "facility_kwh", "emissions_kg_co2", "cost", "measured_cost", "predicted_it_kwh",
    "predicted_cost",
    "billed_cost_where_predicted", "currency",
)  # fmt: skip


def csv_line(row: CostRow, currency: str) -> Sequence[object]:
    """A row's values for CSV_COLUMNS; empty where nothing was predicted."""
    return (
        row.at.isoformat() if row.at else row.name, row.team, row.user, row.job_id, row.gpu_h,
        row.kwh, row.measured_kwh,
        row.modelled_kwh, row.rest_kwh, row.facility_kwh, row.emissions_kg, row.cost,
        row.measured_cost,
        "" if row.predicted_kwh is None else row.predicted_kwh,
        "" if row.predicted_cost is None else row.predicted_cost,
        row.compared_cost, currency,
    )  # fmt: skip


class _Echo:
    """A file for the CSV writer which hands each line on."""

    def write(self, line: str) -> str:
        """The line itself."""
        return line


def csv_of(rows: Iterable[CostRow], currency: str) -> Iterator[str]:
    """The lines of the file, the header first."""
    writer = csv.writer(_Echo())
    yield writer.writerow(CSV_COLUMNS)
    for row in rows:
        yield writer.writerow([plain(cell) for cell in csv_line(row, currency)])
