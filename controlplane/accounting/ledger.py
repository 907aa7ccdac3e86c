"""Energy ledger: energy of each assignment by hour of the cluster's clock; bills are sums.

`meter` updates running assignments; at its end all hours of one are written anew.
"""

import logging
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise, takewhile
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
EVERY = timedelta(minutes=5)
"""Greatest age of a running assignment's entries."""
AT_ONCE = 5000
"""Assignments of each sort per pass of `meter`."""
BUDGET_S = 3.0
"""Time of a pass: rounds wait for it where a worker is alone."""


def as_money(amount: float) -> Decimal:
    """Round an amount to the places of the database."""
    return Decimal(repr(amount)).quantize(_PLACES)


def hours(zone: str, from_s: float, to_s: float) -> Iterator[tuple[float, float, float]]:
    """(hour on the zone's clock, from, to) for each hour that [from_s, to_s) touches. Pure."""
    edges = [from_s]
    while edges[-1] < to_s:
        edges.append(min(to_s, _hour_start(zone, edges[-1]) + HOUR_S))
    for a, b in pairwise(edges):
        yield _hour_start(zone, a), a, b


def _hour_start(zone: str, at_s: float) -> float:
    offset = datetime.fromtimestamp(at_s, ZoneInfo(zone)).utcoffset() or timedelta(0)
    offset_s = offset.total_seconds()
    return (at_s + offset_s) // HOUR_S * HOUR_S - offset_s


def _whole_hour(zone: str, hour: datetime) -> datetime:
    """Return an entry's hour as counted from that moment: where clocks change by half an hour, the
    hour after a change begins within the one before.
    """
    return datetime.fromtimestamp(_hour_start(zone, hour.timestamp()), UTC)


def write_entries(
    assignment: Assignment, until: datetime, *, anew: bool = False
) -> list[EnergyEntry]:
    """Write entries up to `until`, from their last hour or `anew`; the caller holds the lock."""
    known = EnergyEntry.objects.filter(assignment=assignment)
    last = None if anew else known.order_by("-hour").values_list("hour", flat=True).first()
    since = None if last is None else _whole_hour(assignment.node.cluster.timezone, last)
    with transaction.atomic():
        written = _replace_entries(assignment, until, since)
        Assignment.objects.filter(pk=assignment.pk).update(metered_until=until)
    return written


def _replace_entries(
    assignment: Assignment, until: datetime, since: datetime | None
) -> list[EnergyEntry]:
    if assignment.metered_until is not None:
        known = EnergyEntry.objects.filter(assignment=assignment)
        (known.filter(hour__gte=since) if since else known).delete()
    return EnergyEntry.objects.bulk_create(entries(assignment, until, since))


def entries(
    assignment: Assignment, until: datetime, since: datetime | None = None
) -> list[EnergyEntry]:
    """Unsaved entries of the assignment from `since` (None: its beginning) to `until`."""
    draw = power_drawn(assignment, until, since)
    return list(_entries(assignment, draw)) if draw else []


def _entries(assignment: Assignment, draw: PowerDraw) -> Iterator[EnergyEntry]:
    cluster, job, holding = assignment.node.cluster, assignment.job, draw.holding
    steps = price_steps(cluster, holding.from_s, holding.to_s)
    for hour_s, from_s, to_s in hours(cluster.timezone, holding.from_s, holding.to_s):
        prices = [s for s in steps if s.from_s < to_s and s.to_s > from_s]
        yield EnergyEntry(
            assignment=assignment,
            hour=datetime.fromtimestamp(hour_s, UTC),
            cluster_id=cluster.pk,
            node_id=assignment.node_id,
            job_id=job.pk,
            team_id=job.team_id,
            purpose=assignment.purpose,
            gpu_s=holding.gpus * (to_s - from_s),
            **_figures(_within(draw.own, from_s, to_s), _within(draw.rest, from_s, to_s), prices),
            **_predicted(assignment, prices, from_s, to_s),
        )


def _within(powers: Sequence[PowerStep], from_s: float, to_s: float) -> list[PowerStep]:
    first = bisect_right(powers, from_s, key=lambda p: p.to_s)
    inside = takewhile(lambda p: p.from_s < to_s, powers[first:])
    return [replace(p, from_s=max(p.from_s, from_s), to_s=min(p.to_s, to_s)) for p in inside]


def _figures(
    own: Sequence[PowerStep], rest: Sequence[PowerStep], prices: Sequence[PriceInterval]
) -> dict[str, float | Decimal]:
    measured = _sum((p for p in own if p.measured), prices)
    modelled = _sum((p for p in own if not p.measured), prices)
    around = _sum(rest, prices)
    whole = measured + modelled + around
    return {
        "measured_kwh": measured.kwh,
        "modelled_kwh": modelled.kwh,
        "rest_kwh": around.kwh,
        "facility_kwh": whole.facility_kwh,
        "emissions_g": whole.emissions_g,
        "cost": as_money(whole.cost),
        "measured_cost": as_money(measured.cost),
    }


def _sum(powers: Iterable[PowerStep], prices: Sequence[PriceInterval]) -> Priced:
    return sum((priced(p.power_w, p.from_s, p.to_s, prices) for p in powers), Priced())


def _predicted(
    assignment: Assignment, prices: Sequence[PriceInterval], from_s: float, to_s: float
) -> dict[str, float | Decimal]:
    if assignment.predicted_power_w is None:
        return {}
    expected = priced(assignment.predicted_power_w, from_s, to_s, prices)
    return {"predicted_kwh": expected.kwh, "predicted_cost": as_money(expected.cost)}


def meter(now: datetime | None = None, *, budget_s: float = BUDGET_S) -> int:
    """Update entries of running and of unbilled ended assignments for about `budget_s`.

    Return their number. One that cannot be metered holds up no other.
    """
    now, until_s, done = now or timezone.now(), time.monotonic() + budget_s, 0
    for pk in takewhile(lambda _: time.monotonic() < until_s, _behind(now)):
        try:
            done += _meter_one(pk, now)
        except OperationalError:  # the database is away, or busy for too long
            raise
        except Exception:  # whatever it is, the others are metered
            log.exception("assignment %s cannot be metered", pk)
    return done


def _behind(now: datetime) -> list[UUID]:
    """Assignments that are due: those never metered, then by the age of their entries."""
    taken = Assignment.objects.filter(accepted_at__isnull=False)
    never = taken.filter(metered_until__isnull=True, accepted_at__lt=now - EVERY)
    running = taken.filter(state__in=LIVE, metered_until__lt=now - EVERY)
    due = (never.order_by("accepted_at"), running.order_by("metered_until"))
    return [pk for found in due for pk in found.values_list("pk", flat=True)[:AT_ONCE]]


def _meter_one(pk: UUID, now: datetime) -> bool:
    with transaction.atomic():
        assignment = lock_assignment(pk)
        if assignment.ended_at and assignment.metered_until:
            return False
        write_entries(assignment, assignment.ended_at or now, anew=assignment.ended_at is not None)
    return True


@dataclass(frozen=True, slots=True)
class Bill:
    """IT energy in kWh and its cost; `power_source` is measured if all GPU watts were."""

    energy_kwh: float
    energy_cost: Decimal
    power_source: str


def bill(assignment: Assignment) -> Bill:
    """Write the bill of an ended assignment to its row and the ledger, in its transaction."""
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
    """Unsaved energy and cost from an assignment's acceptance until then."""
    return _bill_of(entries(assignment, until))


def _bill_of(hours: Sequence[EnergyEntry]) -> Bill:
    kwh = sum(e.measured_kwh + e.modelled_kwh + e.rest_kwh for e in hours)
    measured = any(e.measured_kwh for e in hours) and not any(e.modelled_kwh for e in hours)
    return Bill(kwh, sum((e.cost for e in hours), Decimal(0)), MEASURED if measured else MODELLED)
