"""A cluster's tariffs and PUE: rows to prices over time, versions in force, and new versions.

Rows never change and are never deleted, so earlier knowledge can be had again by `known_by`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time
from decimal import Decimal

from django.contrib.auth.models import User
from django.db import transaction

from clusters.caps import cap_steps, lowest_cap_w, read_cap_hours
from clusters.energy import Band, Pue, Tariff, price_intervals
from clusters.events import request_reschedule
from clusters.models import Cluster, EnergyTariff, PueRecord, Reason, TariffBand
from policies.contract.snapshot import PowerCapStep, PriceInterval


def tariff_changed(cluster: Cluster) -> None:
    """Trigger a round, in the transaction that changes a tariff, band, PUE or watts."""
    request_reschedule(cluster, Reason.TARIFF)


def costs_changed(clusters: Iterable[Cluster]) -> None:
    """`tariff_changed` of several clusters."""
    for cluster in clusters:
        tariff_changed(cluster)


def price_steps(
    cluster: Cluster,
    from_s: float,
    to_s: float,
    known_by: datetime | None = None,
    *,
    zone: str = "",
) -> tuple[PriceInterval, ...]:
    """The cluster's prices over [from_s, to_s], seconds since the epoch (`price_intervals`).

    `zone`: the IANA zone of the tariffs' hours, if it was another one then.
    """
    end = datetime.fromtimestamp(to_s, UTC)
    tariffs = EnergyTariff.objects.filter(
        cluster=cluster, effective_from__lte=end
    ).prefetch_related("bands")
    pues = PueRecord.objects.filter(cluster=cluster, effective_from__lte=end)
    if known_by is not None:
        tariffs, pues = (
            tariffs.filter(created_at__lte=known_by),
            pues.filter(created_at__lte=known_by),
        )
    return price_intervals(
        [_tariff(row) for row in tariffs.order_by("effective_from", "id")],
        [
            Pue(row.effective_from.timestamp(), row.pue)
            for row in pues.order_by("effective_from", "id")
        ],
        zone or cluster.timezone,
        from_s,
        to_s,
    )


def power_cap_steps(cluster: Cluster, from_s: float, to_s: float) -> tuple[PowerCapStep, ...]:
    """The cluster's caps by hour over [from_s, to_s], seconds since the epoch."""
    return cap_steps(read_cap_hours(cluster.power_cap_hours), cluster.timezone, from_s, to_s)


def power_cap_now_w(cluster: Cluster, now_s: float) -> float | None:
    """Watts allowed from now to the next periodic round, included; None if unlimited."""
    until_s = now_s + cluster.period_s
    return lowest_cap_w(
        cluster.power_cap_w, power_cap_steps(cluster, now_s, until_s + 1.0), now_s, until_s
    )


def tariff_in_force(cluster: Cluster, at: datetime) -> EnergyTariff | None:
    """The version of the prices that holds at a time; None before the first."""
    return (
        EnergyTariff.objects.filter(cluster=cluster, effective_from__lte=at)
        .order_by("-effective_from", "-id")
        .first()
    )


def pue_in_force(cluster: Cluster, at: datetime) -> PueRecord | None:
    """The PUE that holds at a time; None (which counts as 1) before the first."""
    return (
        PueRecord.objects.filter(cluster=cluster, effective_from__lte=at)
        .order_by("-effective_from", "-id")
        .first()
    )


def _tariff(row: EnergyTariff) -> Tariff:
    bands = sorted(row.bands.all(), key=lambda b: (b.from_time, b.pk))
    return Tariff(
        row.effective_from.timestamp(),
        float(row.default_price_per_kwh),
        tuple(
            Band(
                frozenset(map(int, b.days)),
                b.from_time,
                b.to_time,
                float(b.price_per_kwh),
                b.emissions_g_per_kwh,
            )
            for b in bands
        ),
        row.emissions_g_per_kwh,
    )


DAYS = "0123456"


@dataclass(frozen=True, slots=True)
class BandWords:
    """A price per kWh and grams of CO2 for hours of some days; `to_time` 00:00: day's end."""

    days: str
    from_time: time
    to_time: time
    price_per_kwh: Decimal
    emissions_g_per_kwh: float | None = None


def add_tariff(
    cluster: Cluster,
    price_per_kwh: Decimal,
    effective_from: datetime,
    bands: Sequence[BandWords] = (),
    *,
    name: str = "",
    emissions_g_per_kwh: float = 0.0,
    created_by: User | None = None,
) -> EnergyTariff:
    """Add a version of the prices; of two with the same time the later written holds.

    Raises ValidationError.
    """
    tariff = EnergyTariff(
        cluster=cluster, name=name, effective_from=effective_from,
        default_price_per_kwh=price_per_kwh,
        emissions_g_per_kwh=emissions_g_per_kwh, created_by=created_by,
    )  # fmt: skip
    tariff.full_clean()
    rows = [
        TariffBand(
            tariff=tariff, days=b.days, from_time=b.from_time, to_time=b.to_time,
            price_per_kwh=b.price_per_kwh,
            emissions_g_per_kwh=b.emissions_g_per_kwh,
        )
        for b in bands
    ]  # fmt: skip
    for row in rows:
        row.full_clean(exclude=["tariff"])
    with transaction.atomic():
        tariff.save()
        TariffBand.objects.bulk_create(rows)
        tariff_changed(cluster)
    return tariff


def add_pue(
    cluster: Cluster, pue: float, effective_from: datetime, created_by: User | None = None
) -> PueRecord:
    """A PUE in force from `effective_from`. ValidationError below 1."""
    record = PueRecord(
        cluster=cluster, pue=pue, effective_from=effective_from, created_by=created_by
    )
    record.full_clean()
    with transaction.atomic():
        record.save()
        tariff_changed(cluster)
    return record
