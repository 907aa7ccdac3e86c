"""Operators' changes of prices: a new tariff version or PUE. Both trigger a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, time
from decimal import Decimal

from django.contrib.auth.models import User
from django.db import transaction

from clusters.models import Cluster, EnergyTariff, PueRecord, TariffBand
from clusters.tariffs import tariff_changed

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
