"""A cluster's tariffs and PUE: prices over time, versions in force, new versions."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from math import inf
from zoneinfo import ZoneInfo

from django.db import transaction
from django.db.models import Prefetch

from clusters.caps import cap_steps, lowest_cap_w, read_cap_hours
from clusters.energy import Band, Pue, SeriesStep, Tariff, price_intervals
from clusters.events import request_reschedule
from clusters.models import Cluster, EnergyTariff, PueRecord, Reason, TariffBand, TariffStep
from controlplane.audit.record import record
from policies.contract.snapshot import PowerCapStep, PriceInterval

LONGEST_STEP = timedelta(days=1)
"""Longest step of a series."""


def costs_changed(clusters: Iterable[Cluster]) -> None:
    """Ask for rounds of these clusters after a change of tariffs, PUE or watts."""
    for cluster in clusters:
        request_reschedule(cluster, Reason.TARIFF)


def price_steps(
    cluster: Cluster,
    from_s: float,
    to_s: float,
    known_by: datetime | None = None,
    *,
    zone: str = "",
) -> tuple[PriceInterval, ...]:
    """Return the prices over [from_s, to_s] (Unix seconds).

    `known_by`: leave out rows that were added later. `zone`: time zone of the tariffs' hours; ""
    for the cluster's.
    """
    # 1. The tariffs of that time, with the steps of series, and the PUE.
    begin = datetime.fromtimestamp(from_s, UTC)
    end = datetime.fromtimestamp(to_s, UTC)
    steps = TariffStep.objects.filter(starts_at__gt=begin - LONGEST_STEP, starts_at__lt=end)
    tariffs = EnergyTariff.objects.filter(cluster=cluster, effective_from__lte=end)
    tariffs = tariffs.exclude(effective_until__lte=begin)
    tariffs = tariffs.prefetch_related("bands", Prefetch("steps", steps))
    pues = PueRecord.objects.filter(cluster=cluster, effective_from__lte=end)
    if known_by is not None:
        tariffs = tariffs.filter(created_at__lte=known_by)
        pues = pues.filter(created_at__lte=known_by)

    # 2. The prices; of two rows that begin at the same time the later one holds.
    tariff_versions = []
    for tariff in tariffs.order_by("effective_from", "id"):
        tariff_versions.append(_tariff(tariff, tariff.steps.all()))
    pue_versions = []
    for pue in pues.order_by("effective_from", "id"):
        pue_versions.append(Pue(pue.effective_from.timestamp(), pue.pue))
    zone = zone or cluster.timezone
    return price_intervals(tariff_versions, pue_versions, zone, from_s, to_s)


def power_cap_steps(cluster: Cluster, from_s: float, to_s: float) -> tuple[PowerCapStep, ...]:
    """Return the caps by hour over [from_s, to_s] (Unix seconds)."""
    return cap_steps(read_cap_hours(cluster.power_cap_hours), cluster.timezone, from_s, to_s)


def power_cap_now_w(cluster: Cluster, now_s: float) -> float | None:
    """Return the lowest cap in watts until the next periodic round; None if unlimited."""
    until_s = now_s + cluster.period_s
    steps = power_cap_steps(cluster, now_s, until_s + 1.0)
    return lowest_cap_w(cluster.power_cap_w, steps, now_s, until_s)


def tariff_in_force(cluster: Cluster, at: datetime) -> EnergyTariff | None:
    """Return the tariff in force at a time; None before the first."""
    tariffs = EnergyTariff.objects.filter(cluster=cluster, effective_from__lte=at)
    in_force = tariffs.exclude(effective_until__lte=at)
    return in_force.order_by("-effective_from", "-id").first()


def pue_in_force(cluster: Cluster, at: datetime) -> PueRecord | None:
    """Return the PUE in force at a time; None, which counts as 1, before the first."""
    records = PueRecord.objects.filter(cluster=cluster, effective_from__lte=at)
    return records.order_by("-effective_from", "-id").first()


def price_per_kwh(tariff: EnergyTariff, at: datetime, zone: str) -> float:
    """Return the price of a tariff at a time; its bands are hours of this time zone."""
    step = tariff.steps.filter(starts_at__lte=at).last()
    if step is not None:
        return float(step.price_per_kwh)
    return _tariff(tariff, ()).price_at(at.astimezone(ZoneInfo(zone)))


def _tariff(row: EnergyTariff, steps: Iterable[TariffStep]) -> Tariff:
    """Return a tariff in the form in which prices are computed."""
    bands = sorted(row.bands.all(), key=lambda band: (band.from_time, band.pk))
    until_s = inf
    if row.effective_until is not None:
        until_s = row.effective_until.timestamp()
    return Tariff(
        effective_from_s=row.effective_from.timestamp(),
        default_price_per_kwh=float(row.default_price_per_kwh),
        bands=tuple(_band(band) for band in bands),
        emissions_g_per_kwh=row.emissions_g_per_kwh,
        until_s=until_s,
        steps=tuple(_step(step) for step in steps),
    )


def _step(row: TariffStep) -> SeriesStep:
    """Return a step of a series in the form in which prices are computed."""
    price = float(row.price_per_kwh)
    return SeriesStep(row.starts_at.timestamp(), price, row.emissions_g_per_kwh)


def _band(row: TariffBand) -> Band:
    """Return a band in the form in which prices are computed."""
    days = frozenset(map(int, row.days))
    price = float(row.price_per_kwh)
    return Band(days, row.from_time, row.to_time, price, row.emissions_g_per_kwh)


def add_tariff(tariff: EnergyTariff, bands: Sequence[TariffBand]) -> None:
    """Save a version of the prices with its bands, and ask for a round. Raises ValidationError."""
    # 1. Check all of it before the first row is written; bands have no saved tariff yet.
    tariff.full_clean()
    for band in bands:
        band.full_clean(exclude=["tariff"])

    # 2. Save the version with its row of the audit, and ask for a round.
    with transaction.atomic():
        tariff.save()
        for band in bands:
            band.tariff = tariff
        TariffBand.objects.bulk_create(bands)
        values = {
            "effective_from": tariff.effective_from,
            "price": tariff.default_price_per_kwh,
            "bands": len(bands),
        }
        record("tariff.add", tariff.cluster, new=values)
        costs_changed([tariff.cluster])
