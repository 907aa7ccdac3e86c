"""A cluster's rows of tariffs and PUE as prices over time, and the versions in force."""

from datetime import datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.utils import timezone

from clusters.models import Cluster, EnergyTariff, PueRecord, Reason, RescheduleEvent, TariffBand
from clusters.tariffs import costs_changed, price_steps, pue_in_force, tariff_in_force
from tests.builders import a_cluster, at

pytestmark = pytest.mark.django_db
HOUR = 3600.0


def a_tariff(cluster: Cluster, price: str, effective_from: datetime, **values: Any) -> EnergyTariff:
    return EnergyTariff.objects.create(
        cluster=cluster,
        default_price_per_kwh=Decimal(price),
        effective_from=effective_from,
        **values,
    )


def test_rows_become_price_steps() -> None:
    cluster = a_cluster(timezone="Europe/Rome")
    now_s = timezone.now().timestamp()
    (step,) = price_steps(cluster, now_s, now_s + HOUR)
    assert (step.price_per_kwh, step.pue) == (0.172, 1.33)


def test_bands_are_read_in_the_clusters_zone() -> None:
    cluster = a_cluster(timezone="Asia/Tokyo")
    tariff = a_tariff(cluster, "0.3", at(-60))
    TariffBand.objects.create(
        tariff=tariff, from_time=time(9), to_time=time(10), price_per_kwh=Decimal("0.1")
    )
    midnight_utc = datetime.fromisoformat("2030-06-01T00:00+00:00").timestamp()
    steps = price_steps(cluster, midnight_utc - HOUR, midnight_utc + 2 * HOUR)
    assert [(s.from_s - midnight_utc, s.price_per_kwh) for s in steps] == [
        (-HOUR, 0.3),
        (0.0, 0.1),
        (HOUR, 0.3),
    ]


def test_a_tariff_and_a_pue_of_the_future_are_foreseen() -> None:
    cluster = a_cluster()
    soon, later = at(HOUR), at(2 * HOUR)
    a_tariff(cluster, "0.5", soon)
    PueRecord.objects.create(cluster=cluster, pue=1.1, effective_from=later)
    now_s = timezone.now().timestamp()
    steps = price_steps(cluster, now_s, now_s + 3 * HOUR)
    assert [(s.price_per_kwh, s.pue) for s in steps] == [(0.172, 1.33), (0.5, 1.33), (0.5, 1.1)]
    assert steps[1].from_s == pytest.approx(soon.timestamp())


def test_what_was_known_at_a_time_can_be_had_again() -> None:
    cluster = a_cluster()
    now = timezone.now()
    a_tariff(cluster, "9.0", now - timedelta(days=1))
    EnergyTariff.objects.filter(cluster=cluster, default_price_per_kwh=9).update(
        created_at=now + timedelta(seconds=1)
    )
    PueRecord.objects.create(cluster=cluster, pue=2.0, effective_from=now - timedelta(days=1))
    PueRecord.objects.filter(pue=2.0).update(created_at=now + timedelta(seconds=1))
    (then,) = price_steps(cluster, now.timestamp(), now.timestamp() + 1, known_by=now)
    (today,) = price_steps(cluster, now.timestamp(), now.timestamp() + 1)
    assert ((then.price_per_kwh, then.pue), (today.price_per_kwh, today.pue)) == (
        (0.172, 1.33),
        (9.0, 2.0),
    )


def test_other_clusters_prices_are_not_mixed_in() -> None:
    cluster, other = a_cluster(), a_cluster()
    a_tariff(other, "7.0", at(-10))
    now_s = timezone.now().timestamp()
    assert price_steps(cluster, now_s, now_s + 1)[0].price_per_kwh == 0.172


def test_the_version_in_force_is_the_newest_that_has_begun() -> None:
    cluster = a_cluster()
    now = timezone.now()
    newer = a_tariff(cluster, "0.2", now - timedelta(hours=1))
    a_tariff(cluster, "0.4", now + timedelta(hours=1))
    assert tariff_in_force(cluster, now) == newer
    assert tariff_in_force(cluster, now - timedelta(days=9999)) is None
    assert pue_in_force(cluster, now - timedelta(days=9999)) is None


def test_of_two_versions_of_one_moment_the_later_row_is_in_force() -> None:
    cluster = a_cluster()
    moment = at(-5)
    a_tariff(cluster, "0.2", moment)
    corrected = a_tariff(cluster, "0.25", moment)
    assert tariff_in_force(cluster, timezone.now()) == corrected


def test_a_changed_tariff_asks_for_a_round() -> None:
    cluster = a_cluster()
    costs_changed([cluster])
    assert list(RescheduleEvent.objects.values_list("cluster", "reason")) == [
        (cluster.pk, Reason.TARIFF)
    ]
