"""What operators say by `manage.py`: clusters, types, prices, nodes; and what they ask it for."""

from datetime import UTC, datetime
from decimal import Decimal
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from clusters.models import Cluster, EnergyTariff, GpuType, Reason, RescheduleEvent
from clusters.services.enrolment import sha256
from clusters.tariffs import price_steps, tariff_in_force
from controlplane.accounting.ledger import bill
from tests.builders import a_cluster, a_gpu_type, a_job, a_node, a_team
from tests.builders_costs import a_priced_cluster, a_v100_node, some_work
from tests.builders_jobs import a_placement

pytestmark = pytest.mark.django_db


def told(*arguments: str) -> str:
    output = StringIO()
    call_command(*arguments, stdout=output)
    return output.getvalue()


def test_a_tariff_is_added_with_its_bands_and_asks_for_a_round() -> None:
    cluster = a_cluster(name="main", timezone="Europe/Rome")
    words = told(
        "set_tariff",
        "main",
        "0.18",
        "--band",
        "01234 08:00-20:00 0.24",
        "--from",
        "2026-01-01",
        "--name",
        "contract",
    )
    tariff = tariff_in_force(cluster, timezone.now())
    assert tariff is not None
    assert (tariff.default_price_per_kwh, tariff.effective_from) == (
        Decimal("0.18"),
        datetime(2025, 12, 31, 23, tzinfo=UTC),
    )
    assert [(b.days, b.price_per_kwh) for b in tariff.bands.all()] == [("01234", Decimal("0.24"))]
    assert (
        "from 2026-01-01 00:00 CET: 0.18 EUR/kWh; days 01234 08:00-20:00 0.24 (contract)" in words
    )
    assert RescheduleEvent.objects.filter(cluster=cluster, reason=Reason.TARIFF).exists()


def test_prices_may_be_below_0() -> None:
    cluster = a_cluster(name="main")
    words = told("set_tariff", "main", "-0.02", "--band", "0123456 11:00-15:00 -0.085")
    assert "-0.02 EUR/kWh; days 0123456 11:00-15:00 -0.085" in words
    tariff = tariff_in_force(cluster, timezone.now())
    assert tariff is not None
    assert tariff.default_price_per_kwh == Decimal("-0.02")


def test_of_two_tariffs_with_one_time_the_later_entered_holds() -> None:
    cluster = a_cluster(name="main")
    for price in ("0.2", "0.3"):
        told("set_tariff", "main", price, "--from", "2026-01-01T00:00")
    tariff = tariff_in_force(cluster, timezone.now())
    assert tariff is not None
    assert tariff.default_price_per_kwh == Decimal("0.3")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("main", "cheap"), "PRICE: 'cheap' is no price"),
        (("main", "-1001"), "default_price_per_kwh"),
        (("main", "NaN"), "default_price_per_kwh"),
        (("main", "1", "--band", "08:00-20:00 0.2"), "--band: write"),
        (("main", "1", "--band", "789 08:00-20:00 0.2"), "days: write the days as digits"),
        (("main", "1", "--band", "0 20:00-08:00 0.2"), "to_time: must be after"),
        (("main", "1", "--from", "tomorrow"), "--from: write a time"),
        (("main", "--band", "0 08:00-20:00 0.2"), "say the price of the other hours"),
        (("mine", "1"), "there is no cluster 'mine' (known: main)"),
    ],
)
def test_a_wrong_tariff_is_refused_in_words_and_nothing_is_kept(
    arguments: tuple[str, ...], words: str
) -> None:
    cluster = a_cluster(name="main")
    with pytest.raises(CommandError) as refusal:
        told("set_tariff", *arguments)
    assert words in str(refusal.value)
    assert EnergyTariff.objects.filter(cluster=cluster).count() == 1


def test_without_a_price_the_versions_are_shown() -> None:
    a_cluster(name="main")
    Cluster.objects.create(name="new")
    assert "0.172 EUR/kWh" in told("set_tariff", "main")
    assert "energy costs nothing yet" in told("set_tariff", "new")


def test_a_pue_is_added_and_one_below_1_or_above_1000_refused() -> None:
    a_cluster(name="main")
    assert "2026-01-01 00:00 UTC: PUE 1.25" in told(
        "set_pue", "main", "1.25", "--from", "2026-01-01"
    )
    for pue in ("0.9", "1001"):
        with pytest.raises(CommandError, match="pue: "):
            told("set_pue", "main", pue)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("pue", ("set_pue", "main", "nan")),
        ("--lease-s", ("set_cluster", "main", "--lease-s", "inf")),
        ("--hours", ("enrol_token", "main", "--hours", "nan")),
    ],
)
def test_a_number_that_is_not_finite_is_refused_with_its_option(
    option: str, words: tuple[str, ...]
) -> None:
    a_cluster(name="main")
    with pytest.raises(CommandError, match=f"{option}: must be a finite number, not {words[-1]}"):
        told(*words)


def test_a_cluster_is_made_and_then_changed_only_in_what_is_said() -> None:
    told("set_cluster", "main", "--timezone", "Europe/Rome", "--lease-s", "90")
    told("set_cluster", "main", "--period-s", "60")
    cluster = Cluster.objects.get()
    assert (cluster.timezone, cluster.lease_s, cluster.period_s) == ("Europe/Rome", 90.0, 60.0)
    with pytest.raises(CommandError, match="lease_s: must be at least two heartbeats"):
        told("set_cluster", "main", "--lease-s", "5")
    with pytest.raises(CommandError, match="timezone: 'Rome' is no IANA time zone"):
        told("set_cluster", "main", "--timezone", "Rome")


@pytest.mark.parametrize("value", ["-1", "10001", "nan", "plenty"])
def test_a_negative_or_absurd_value_of_time_is_refused_and_the_old_one_stays(value: str) -> None:
    a_cluster(name="main")
    with pytest.raises(CommandError, match=r"value.of.time: "):
        told("set_cluster", "main", "--value-of-time", value)
    assert Cluster.objects.get().value_of_time == Decimal("0.01")


def test_a_cluster_is_capped_by_hour_and_its_emissions_are_weighed() -> None:
    a_cluster(name="main")
    caps = '[{"power_cap_w": 2000, "from": "08:00", "to": "20:00", "days": "01234"}]'
    told("set_cluster", "main", "--power-cap-hours", caps, "--emissions-cost-per-kg", "0.08")
    cluster = Cluster.objects.get()
    assert (cluster.power_cap_hours[0]["power_cap_w"], cluster.emissions_cost_per_kg) == (
        2000,
        Decimal("0.08"),
    )
    for option, value, said in (
        ("--power-cap-hours", '[{"watts": 1}]', "power_cap_hours: entry 1: 'watts' is no field"),
        ("--power-cap-hours", "2000", "power_cap_hours: must be a list"),
        ("--power-cap-hours", "{", "is no JSON"),
        ("--emissions-cost-per-kg", "-1", "emissions_cost_per_kg"),
        ("--emissions-cost-per-kg", "much", "is no number"),
    ):
        with pytest.raises(CommandError, match=said):
            told("set_cluster", "main", option, value)


def test_a_band_may_have_emissions_of_its_own() -> None:
    cluster = a_cluster(name="main")
    words = (
        "--band",
        "0123456 00:00-12:00 0.2 90",
        "--band",
        "0123456 12:00-00:00 0.3",
        "--from",
        "2026-01-01",
    )
    told("set_tariff", "main", "0.18", *words, "--emissions-g", "400")
    day = datetime(2026, 11, 2, tzinfo=UTC).timestamp()
    steps = price_steps(cluster, day, day + 86_400.0)
    assert [(s.price_per_kwh, s.emissions_g_per_kwh) for s in steps] == [(0.2, 90.0), (0.3, 400.0)]
    with pytest.raises(CommandError, match="--band: write"):
        told("set_tariff", "main", "0.18", "--band", "0 00:00-12:00 0.2 few")


def test_a_gpu_type_is_made_and_changed_watts_ask_for_a_round() -> None:
    with pytest.raises(CommandError, match="A100 is new: say --memory-gb, --idle-w, --peak-w too"):
        told("set_gpu_type", "A100", "--tflops", "19.5")
    told(
        "set_gpu_type",
        "A100",
        "--tflops",
        "19.5",
        "--memory-gb",
        "40",
        "--idle-w",
        "50",
        "--peak-w",
        "400",
    )
    cluster = a_cluster()
    a_node(cluster, gpu_type="A100")
    assert "380 W at work" in told("set_gpu_type", "A100", "--peak-w", "380")
    assert "380 W at work, 3.1 an hour" in told("set_gpu_type", "A100", "--price-per-hour", "3.1")
    assert GpuType.objects.get().memory_gb == 40
    assert RescheduleEvent.objects.filter(cluster=cluster, reason=Reason.TARIFF).exists()
    with pytest.raises(CommandError, match="peak_w: must be at least the idle watts"):
        told("set_gpu_type", "A100", "--peak-w", "40")
    for price in ("-1", "nan", "inf"):
        with pytest.raises(CommandError, match=r"price.per.hour: "):
            told("set_gpu_type", "A100", "--price-per-hour", price)


def test_a_revoked_nodes_token_opens_nothing() -> None:
    node = a_node(a_cluster(name="main"), name="gpu-7", token_sha256=sha256("its token"))
    told("revoke_node", "main", "gpu-7")
    node.refresh_from_db()
    assert node.token_sha256 == ""
    assert node.events.filter(event="revoked").exists()
    with pytest.raises(CommandError, match="has no node 'gpu-8'"):
        told("revoke_node", "main", "gpu-8")


def test_two_revoked_nodes_do_not_stand_in_each_others_way() -> None:
    cluster = a_cluster(name="main")
    for name in ("a", "b"):
        a_node(cluster, name=name)
        told("revoke_node", "main", name)


def test_leases_show_what_is_held_and_what_is_wanted_of_it() -> None:
    assert told("leases") == "nothing is held\n"
    cluster = a_cluster()
    node = a_node(cluster, name="volta")
    now = timezone.now()
    a_placement(
        a_job(cluster, name="digits"), node, desired="preempt", desired_at=now, lease_expires_at=now
    )
    assert "on volta: fence 1, running, wanted: preempt for " in told("leases", "--node", "volta")
    assert told("leases", "--node", "pascal") == "nothing is held\n"


def test_costs_come_as_csv_of_every_team() -> None:
    node = a_v100_node(a_priced_cluster(name="main"))
    bill(
        some_work(
            node, (0, 2), job=a_job(node.cluster, team=a_team("vision")), predicted_power_w=700.0
        )
    )
    lines = told("costs_csv", "main", "--from", "2026-05-01", "--to", "2026-05-02").splitlines()
    assert lines[0].startswith("name,team,user,job_id,gpu_hours")
    assert lines[1].startswith("vision,vision,,")
    with pytest.raises(CommandError, match="--from: must be a day"):
        told("costs_csv", "main", "--from", "May")


def test_a_new_type_is_not_emulated_unless_said() -> None:
    figures = ("--tflops", "1", "--memory-gb", "1", "--idle-w", "1", "--peak-w", "1")
    told("set_gpu_type", "real", *figures)
    told("set_gpu_type", "clock", *figures, "--emulated")
    assert dict(GpuType.objects.values_list("name", "emulated")) == {"real": False, "clock": True}
    assert a_gpu_type("clock").emulated
