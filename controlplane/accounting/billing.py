"""What an assignment's energy was and cost: its watts (`power`) over the price steps of
the cluster's tariff and PUE.

The bill covers the time from the acceptance to the end. It is kept twice: as a sum in the
assignment's row, and hour by hour in the ledger (`ledger`), which the page of costs is
made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from controlplane.accounting.ledger import entries, write_entries
from controlplane.accounting.models import EnergyEntry
from controlplane.accounting.power import MEASURED, MODELLED
from jobs.models import Assignment


@dataclass(frozen=True, slots=True)
class Bill:
    """IT energy, its cost in the cluster's currency; `measured`: all GPU watts were measured."""

    energy_kwh: float
    energy_cost: Decimal
    power_source: str


def bill(assignment: Assignment) -> Bill:
    """Write the bill of an ended assignment to its row and the ledger, in its transaction."""
    if assignment.ended_at is None:
        raise ValueError(
            f"assignment {assignment.pk} has not ended: use bill_until for what it has cost so far"
        )
    result = _sum(write_entries(assignment, assignment.ended_at, anew=True))
    values = {
        "energy_kwh": result.energy_kwh,
        "energy_cost": result.energy_cost,
        "power_source": result.power_source,
    }
    Assignment.objects.filter(pk=assignment.pk).update(**values)
    for name, value in values.items():
        setattr(assignment, name, value)
    return result


def bill_until(assignment: Assignment, until: datetime) -> Bill:
    """What it has taken and cost from its acceptance until then (for a running one: so far)."""
    return _sum(entries(assignment, until))


def _sum(hours: Sequence[EnergyEntry]) -> Bill:
    """Measured means every watt of the GPUs: the rest of the node is always modelled."""
    kwh = sum(e.measured_kwh + e.modelled_kwh + e.rest_kwh for e in hours)
    measured = any(e.measured_kwh for e in hours) and not any(e.modelled_kwh for e in hours)
    return Bill(kwh, sum((e.cost for e in hours), Decimal(0)), MEASURED if measured else MODELLED)
