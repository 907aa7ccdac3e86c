"""Every number that costs depend on is set in the administration, takes effect at the next round,
and stays in the history.
"""

from datetime import time, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils import timezone

from clusters.models import (
    Cluster,
    EnergyTariff,
    GpuType,
    Node,
    PueRecord,
    Reason,
    RescheduleEvent,
    TariffBand,
)
from controlplane.loop.live.lock import acquire
from controlplane.web.pages.admin_base import save_changed
from tests.builders import a_cluster, a_node, type_of
from tests.builders_admin import admin_path, change_form
from tests.builders_pages import Demo, a_busy_cluster

pytestmark = pytest.mark.django_db


@pytest.fixture(name="demo")
def _demo() -> Demo:
    return a_busy_cluster()


@pytest.fixture(name="grace")
def _grace(demo: Demo, client: Client) -> Client:
    client.force_login(demo.operator)
    return client


def asked() -> list[tuple[int, str]]:
    """Clusters for which a round was asked for, and why."""
    return list(RescheduleEvent.objects.values_list("cluster_id", "reason"))


def a_typed_tariff(demo: Demo, **values: Any) -> dict[str, Any]:
    band = {"days": "01234", "from_time": "08:00", "to_time": "20:00", "price_per_kwh": "0.25"}
    return {
        "cluster": demo.cluster.pk, "name": "winter", "effective_from_0": "2030-01-01",
        "effective_from_1": "00:00:00",
        "default_price_per_kwh": "0.10", "emissions_g_per_kwh": "200", "bands-TOTAL_FORMS": "1",
        "bands-INITIAL_FORMS": "0",
        **{f"bands-0-{name}": value for name, value in band.items()}, **values,
    }  # fmt: skip


def test_a_new_tariff_asks_for_a_round_and_knows_who_made_it(grace: Client, demo: Demo) -> None:
    assert grace.post(admin_path(EnergyTariff, "add"), a_typed_tariff(demo)).status_code == 302
    tariff = EnergyTariff.objects.get(name="winter")
    assert tariff.created_by == demo.operator
    assert tariff.bands.get().price_per_kwh == Decimal("0.25")
    assert asked() == [(demo.cluster.pk, Reason.TARIFF)]
    assert LogEntry.objects.get().object_repr == str(tariff)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"default_price_per_kwh": "-1001"}, "greater than or equal to -1000"),
        ({"bands-0-days": "89"}, "write the days as digits"),
        ({"bands-0-to_time": "07:00"}, "must be after from_time"),
    ],
)
def test_a_tariff_that_makes_no_sense_is_refused(
    grace: Client, demo: Demo, values: dict[str, str], message: str
) -> None:
    answer = grace.post(admin_path(EnergyTariff, "add"), a_typed_tariff(demo, **values))
    assert answer.status_code == 200
    assert message in answer.content.decode()
    assert not asked()


def test_a_saved_tariff_and_its_bands_stay_as_they_are(grace: Client, demo: Demo) -> None:
    tariff = demo.cluster.tariffs.get()
    url = admin_path(EnergyTariff, "change", tariff.pk)
    assert grace.get(url).status_code == 200
    assert grace.post(url, a_typed_tariff(demo)).status_code == 403
    assert (
        grace.post(admin_path(EnergyTariff, "delete", tariff.pk), {"post": "yes"}).status_code
        == 403
    )
    assert not TariffBand.objects.filter(tariff=tariff).exists()


def test_a_new_version_begins_with_the_figures_of_the_old_one(grace: Client, demo: Demo) -> None:
    old = demo.cluster.tariffs.get()
    TariffBand.objects.create(
        tariff=old, days="56", from_time=time(6), to_time=time(9), price_per_kwh=Decimal("0.3")
    )
    TariffBand.objects.create(
        tariff=old, days="0", from_time=time(9), to_time=time(0), price_per_kwh=Decimal("0.4")
    )
    chosen = {"action": "new_version", "_selected_action": [old.pk]}
    answer = grace.post(admin_path(EnergyTariff, "changelist"), chosen)
    assert answer["Location"] == f"/admin/clusters/energytariff/add/?copy={old.pk}"
    typed = change_form(grace, answer["Location"])
    assert typed["default_price_per_kwh"] == Decimal("0.17200000")
    assert typed["bands-1-price_per_kwh"] == Decimal("0.40000000")
    sent = {
        **typed,
        "effective_from_0": "2030-01-01",
        "effective_from_1": "00:00",
        "default_price_per_kwh": "0.2",
    }
    assert grace.post(answer["Location"], sent).status_code == 302
    new = EnergyTariff.objects.exclude(pk=old.pk).get()
    assert list(new.bands.values_list("days", "from_time")) == list(
        old.bands.values_list("days", "from_time")
    )
    assert old.default_price_per_kwh != new.default_price_per_kwh


def test_a_tariffs_own_page_leads_to_its_next_version(grace: Client, demo: Demo) -> None:
    old = demo.cluster.tariffs.get()
    page = grace.get(admin_path(EnergyTariff, "change", old.pk)).content.decode()
    link = next(
        part.split('"')[0]
        for part in page.split('href="')
        if "new_version_of" in part.split('"')[0]
    )
    assert grace.get(link)["Location"].endswith(f"/add/?copy={old.pk}")


def test_only_one_tariff_is_copied_at_a_time(grace: Client, demo: Demo) -> None:
    a_cluster()
    every = list(EnergyTariff.objects.values_list("pk", flat=True))
    chosen = {"action": "new_version", "_selected_action": every}
    answer = grace.post(admin_path(EnergyTariff, "changelist"), chosen, follow=True)
    assert "Choose one tariff to copy" in answer.content.decode()


def test_a_new_pue_asks_for_a_round_and_the_old_one_stays(grace: Client, demo: Demo) -> None:
    values = {
        "cluster": demo.cluster.pk,
        "effective_from_0": "2030-01-01",
        "effective_from_1": "00:00",
        "pue": "1.2",
    }
    assert grace.post(admin_path(PueRecord, "add"), values).status_code == 302
    assert sorted(demo.cluster.pues.values_list("pue", flat=True)) == [1.2, 1.33]
    assert PueRecord.objects.get(pue=1.2).created_by == demo.operator
    assert asked() == [(demo.cluster.pk, Reason.TARIFF)]
    old = PueRecord.objects.get(pue=1.33)
    assert grace.post(admin_path(PueRecord, "change", old.pk), values).status_code == 403


def test_changed_watts_of_a_type_ask_for_a_round_wherever_it_is(grace: Client, demo: Demo) -> None:
    other, without = a_cluster(), a_cluster()
    a_node(other, gpu_type="A100")
    a_node(other, gpu_type="A100")
    url = admin_path(GpuType, "change", GpuType.objects.get(name="A100").pk)
    grace.post(url, {**change_form(grace, url), "peak_w": "350"})
    assert GpuType.objects.get(name="A100").peak_w == 350
    assert sorted(asked()) == sorted([(demo.cluster.pk, Reason.TARIFF), (other.pk, Reason.TARIFF)])
    assert without.pk not in {cluster for cluster, _ in asked()}
    assert "peak_w from 400.0 to 350.0" in LogEntry.objects.get().get_change_message()


def test_a_changed_price_of_a_type_asks_for_a_round_and_one_below_nothing_is_refused(
    grace: Client, demo: Demo
) -> None:
    url = admin_path(GpuType, "change", GpuType.objects.get(name="A100").pk)
    assert (
        "greater than or equal to 0"
        in grace.post(url, {**change_form(grace, url), "price_per_hour": "-1"}).content.decode()
    )
    grace.post(url, {**change_form(grace, url), "price_per_hour": "3.1"})
    assert GpuType.objects.get(name="A100").price_per_hour == Decimal("3.1")
    assert asked() == [(demo.cluster.pk, Reason.TARIFF)]


def test_a_type_that_takes_less_at_work_than_idle_is_refused(grace: Client, demo: Demo) -> None:
    url = admin_path(GpuType, "change", GpuType.objects.get(name="A100").pk)
    answer = grace.post(url, {**change_form(grace, url), "peak_w": "3"})
    assert "must be at least the idle watts" in answer.content.decode()


def test_changed_watts_of_a_node_ask_for_a_round_and_an_unchanged_one_does_not(
    grace: Client, demo: Demo
) -> None:
    url = admin_path(Node, "change", demo.nodes[0].pk)
    grace.post(url, change_form(grace, url))
    assert not asked()
    grace.post(url, {**change_form(grace, url), "base_w": "450"})
    assert Node.objects.get(pk=demo.nodes[0].pk).base_w == 450
    assert asked() == [(demo.cluster.pk, Reason.TARIFF)]
    changes = [entry.get_change_message() for entry in LogEntry.objects.all()]
    assert any("base_w from 300.0 to 450.0" in text for text in changes)


def test_a_cluster_with_a_history_keeps_its_currency_and_a_type_its_name(
    grace: Client, demo: Demo
) -> None:
    gpu_type = type_of(demo.nodes[0])
    for model, pk, field, value in (
        (Cluster, demo.cluster.pk, "currency", "USD"),
        (GpuType, gpu_type.pk, "name", "X1"),
    ):
        url = admin_path(model, "change", pk)
        values = change_form(grace, url)
        assert field not in values
        assert grace.post(url, {**values, field: value}).status_code == 302
    assert Cluster.objects.get(pk=demo.cluster.pk).currency == demo.cluster.currency
    assert GpuType.objects.get(pk=gpu_type.pk).name == gpu_type.name


def test_saving_a_cluster_writes_only_what_was_changed_and_leaves_the_running_round_its_lock(
    demo: Demo,
) -> None:
    as_read, now = demo.cluster, timezone.now()
    lock = acquire(as_read.pk, now, now + timedelta(seconds=60))
    assert lock is not None
    as_read.power_cap_w = 900.0
    save_changed(as_read, ["power_cap_w"])
    kept = Cluster.objects.get(pk=as_read.pk)
    assert (kept.power_cap_w, kept.round_number, kept.round_owner) == (
        900.0,
        lock.number,
        lock.owner,
    )
