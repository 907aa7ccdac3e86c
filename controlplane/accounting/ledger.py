"""Energy ledger: energy of each assignment by hour of the cluster's clock; bills are sums.

`meter` updates the entries of running assignments. When an assignment has ended, all of its entries
are written anew.
"""

import logging
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db import OperationalError, transaction
from django.utils import timezone

from clusters.energy import HOUR_S, Priced, priced
from clusters.tariffs import price_steps
from controlplane.accounting.models import EnergyEntry
from controlplane.accounting.power import MEASURED, MODELLED, PowerDraw, PowerStep, power_drawn
from jobs.assignment_lifecycle import LIVE
from jobs.models import Assignment
from jobs.moves import lock_assignment
from policies.contract.snapshot import PriceInterval

log = logging.getLogger(__name__)

_PLACES = Decimal("0.00000001")
"""Decimal places of money in the database."""

EVERY = timedelta(minutes=5)
"""Age at which the entries of a running assignment are updated."""

AT_ONCE = 5000
"""Most assignments per pass of `meter`: of those never metered, and of the others."""

BUDGET_S = 3.0
"""Time of a pass: rounds wait for it where there is one worker."""


def as_money(amount: float) -> Decimal:
    """Round an amount to the places of the database."""
    return Decimal(repr(amount)).quantize(_PLACES)


def hours(zone: str, from_s: float, to_s: float) -> Iterator[tuple[float, float, float]]:
    """Yield (hour, begin, end) for each hour of the zone's clock that [from_s, to_s) touches.

    `hour` is the time at which the hour begins; begin and end are those of the touched part.
    """
    begin_s = from_s
    while begin_s < to_s:
        hour_s = _hour_start(zone, begin_s)
        end_s = min(to_s, hour_s + HOUR_S)
        yield hour_s, begin_s, end_s
        begin_s = end_s


def _hour_start(zone: str, at_s: float) -> float:
    """Return the beginning of the hour on the zone's clock, in epoch seconds."""
    offset = datetime.fromtimestamp(at_s, ZoneInfo(zone)).utcoffset() or timedelta(0)
    offset_s = offset.total_seconds()
    return (at_s + offset_s) // HOUR_S * HOUR_S - offset_s


def _whole_hour(zone: str, hour: datetime) -> datetime:
    """Return the beginning of the whole hour on the zone's clock in which an entry begins.

    It is earlier than the entry's `hour` if clocks changed by half an hour just then: the first
    hour after the change begins within the last one before it.
    """
    return datetime.fromtimestamp(_hour_start(zone, hour.timestamp()), UTC)


def write_entries(
    assignment: Assignment, until: datetime, *, anew: bool = False
) -> list[EnergyEntry]:
    """Write the entries of a locked assignment up to `until`: all `anew`, else from the last hour.

    Return the written entries.
    """
    since = None
    if not anew:
        known = EnergyEntry.objects.filter(assignment=assignment).order_by("-hour")
        last_hour = known.values_list("hour", flat=True).first()
        if last_hour is not None:
            since = _whole_hour(assignment.node.cluster.timezone, last_hour)
    with transaction.atomic():
        written = _replace_entries(assignment, until, since)
        Assignment.objects.filter(pk=assignment.pk).update(metered_until=until)
    return written


def _replace_entries(
    assignment: Assignment, until: datetime, since: datetime | None
) -> list[EnergyEntry]:
    """Replace the assignment's entries from `since` (None: all) by new ones up to `until`."""
    if assignment.metered_until is not None:
        earlier = EnergyEntry.objects.filter(assignment=assignment)
        if since is not None:
            earlier = earlier.filter(hour__gte=since)
        earlier.delete()
    return EnergyEntry.objects.bulk_create(entries(assignment, until, since))


def entries(
    assignment: Assignment, until: datetime, since: datetime | None = None
) -> list[EnergyEntry]:
    """Return unsaved entries of the assignment from `since` (None: its beginning) to `until`."""
    draw = power_drawn(assignment, until, since)
    if draw is None:
        return []
    return list(_entries_of(assignment, draw))


def _entries_of(assignment: Assignment, draw: PowerDraw) -> Iterator[EnergyEntry]:
    """Yield an unsaved entry for each hour of a power draw."""
    cluster = assignment.node.cluster
    job = assignment.job
    holding = draw.holding
    price_intervals = price_steps(cluster, holding.from_s, holding.to_s)
    for hour_s, from_s, to_s in hours(cluster.timezone, holding.from_s, holding.to_s):
        prices = [p for p in price_intervals if p.from_s < to_s and p.to_s > from_s]
        own = _clip(draw.own, from_s, to_s)
        rest = _clip(draw.rest, from_s, to_s)
        yield EnergyEntry(
            assignment=assignment,
            hour=datetime.fromtimestamp(hour_s, UTC),
            cluster_id=cluster.pk,
            node_id=assignment.node_id,
            job_id=job.pk,
            team_id=job.team_id,
            purpose=assignment.purpose,
            gpu_s=holding.gpus * (to_s - from_s),
            **_figures(own, rest, prices),
            **_predicted_figures(assignment, prices, from_s, to_s),
        )


def _clip(steps: Sequence[PowerStep], from_s: float, to_s: float) -> list[PowerStep]:
    """Return the parts of the steps, which are in order, between two times."""
    clipped = []
    first = bisect_right(steps, from_s, key=lambda step: step.to_s)
    for step in steps[first:]:
        if step.from_s >= to_s:
            break
        part = replace(step, from_s=max(step.from_s, from_s), to_s=min(step.to_s, to_s))
        clipped.append(part)
    return clipped


def _figures(
    own: Sequence[PowerStep], rest: Sequence[PowerStep], prices: Sequence[PriceInterval]
) -> dict[str, float | Decimal]:
    """Return energy and cost of an hour, by field of its entry.

    `own`: power of the assignment's GPUs. `rest`: its part of the rest of the node's.
    """
    measured = _priced_sum((step for step in own if step.measured), prices)
    modelled = _priced_sum((step for step in own if not step.measured), prices)
    rest_of_node = _priced_sum(rest, prices)
    total = measured + modelled + rest_of_node
    return {
        "measured_kwh": measured.kwh,
        "modelled_kwh": modelled.kwh,
        "rest_kwh": rest_of_node.kwh,
        "facility_kwh": total.facility_kwh,
        "emissions_g": total.emissions_g,
        "cost": as_money(total.cost),
        "measured_cost": as_money(measured.cost),
    }


def _priced_sum(steps: Iterable[PowerStep], prices: Sequence[PriceInterval]) -> Priced:
    """Return the energy of the steps and its cost."""
    total = Priced()
    for step in steps:
        total += priced(step.power_w, step.from_s, step.to_s, prices)
    return total


def _predicted_figures(
    assignment: Assignment, prices: Sequence[PriceInterval], from_s: float, to_s: float
) -> dict[str, float | Decimal]:
    """Return predicted energy and cost of an hour by field of its entry; {} without prediction."""
    if assignment.predicted_power_w is None:
        return {}
    predicted = priced(assignment.predicted_power_w, from_s, to_s, prices)
    return {"predicted_kwh": predicted.kwh, "predicted_cost": as_money(predicted.cost)}


def meter(now: datetime | None = None, *, budget_s: float = BUDGET_S) -> int:
    """Update entries of running and of unbilled ended assignments for about `budget_s`.

    Return how many were updated. An assignment that cannot be metered is logged and left out.
    """
    now = now or timezone.now()
    until_s = time.monotonic() + budget_s
    metered = 0
    for pk in _overdue(now):
        if time.monotonic() >= until_s:
            break
        try:
            if _meter_one(pk, now):
                metered += 1
        except OperationalError:  # the database is away, or busy for too long
            raise
        except Exception:  # the other assignments are metered all the same
            log.exception("assignment %s cannot be metered", pk)
    return metered


def _overdue(now: datetime) -> list[UUID]:
    """Return the assignments whose entries are too old: the never metered first, then by age."""
    accepted = Assignment.objects.filter(accepted_at__isnull=False)
    never = accepted.filter(metered_until__isnull=True, accepted_at__lt=now - EVERY)
    running = accepted.filter(state__in=LIVE, metered_until__lt=now - EVERY)
    keys = list(never.order_by("accepted_at").values_list("pk", flat=True)[:AT_ONCE])
    keys += running.order_by("metered_until").values_list("pk", flat=True)[:AT_ONCE]
    return keys


def _meter_one(pk: UUID, now: datetime) -> bool:
    """Update the entries of an assignment; return False if it is billed already."""
    with transaction.atomic():
        assignment = lock_assignment(pk)
        has_ended = assignment.ended_at is not None
        if has_ended and assignment.metered_until:
            return False
        write_entries(assignment, assignment.ended_at or now, anew=has_ended)
    return True


@dataclass(frozen=True, slots=True)
class Bill:
    """IT energy in kWh and its cost; `power_source`: "measured" if all watts of GPUs were."""

    energy_kwh: float
    energy_cost: Decimal
    power_source: str


def bill(assignment: Assignment) -> Bill:
    """Write the bill of an ended assignment to its row and the ledger; return it.

    The caller holds the transaction. Raises ValueError for an assignment that has not ended.
    """
    if assignment.ended_at is None:
        raise ValueError(
            f"assignment {assignment.pk} has not ended: use bill_until for what it has cost so far"
        )
    result = _bill_of(_replace_entries(assignment, assignment.ended_at, None))
    values = {**asdict(result), "metered_until": assignment.ended_at}
    Assignment.objects.filter(pk=assignment.pk).update(**values)
    for name, value in values.items():
        setattr(assignment, name, value)
    return result


def bill_until(assignment: Assignment, until: datetime) -> Bill:
    """Return the bill of an assignment from its acceptance to a time; nothing is written."""
    return _bill_of(entries(assignment, until))


def _bill_of(hourly_entries: Sequence[EnergyEntry]) -> Bill:
    """Return the sum of an assignment's entries."""
    energy_kwh = 0.0
    cost = Decimal(0)
    for entry in hourly_entries:
        energy_kwh += entry.measured_kwh + entry.modelled_kwh + entry.rest_kwh
        cost += entry.cost
    any_measured = any(entry.measured_kwh for entry in hourly_entries)
    any_modelled = any(entry.modelled_kwh for entry in hourly_entries)
    source = MEASURED if any_measured and not any_modelled else MODELLED
    return Bill(energy_kwh, cost, source)
