"""A stored round once more: its figures from the rows they rest on, its plan from its snapshot."""

import hashlib
from datetime import time, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from clusters.models import Cluster, EnergyTariff, PueRecord
from controlplane.loop.models import Round
from controlplane.loop.recompute import Figure, find_round, recompute, replay
from policies.__main__ import main as policies_main
from policies.contract import plan_json
from tests.builders import a_cluster, a_job, a_node, a_user, at, type_of
from tests.builders_live import a_round

pytestmark = pytest.mark.django_db


def a_busy_cluster(policy: str = "randomized_greedy", **values: object) -> Cluster:
    """More jobs than devices, some of which are late."""
    cluster = a_cluster(policy=policy, **values)
    a_node(cluster, gpus=2)
    a_node(cluster, gpus=1)
    for number in range(6):
        a_job(
            cluster,
            gpus_max=2,
            due_at=at(60 + 40 * number),
            tardiness_weight=0.001 * (1 + number % 3),
        )
    return cluster


def figures(row: Round) -> dict[str, Figure]:
    return {figure.name: figure for figure in recompute(row)}


def test_an_operator_downloads_a_rounds_snapshot_and_solves_it_alone(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = a_round(a_busy_cluster(policy_parameters={"iterations": 50}))
    client.force_login(a_user(operator=True))
    answer = client.get(f"/rounds/{row.pk}/snapshot.json")
    assert f"{row.cluster.name}-round-{row.number}-snapshot.json" in answer["Content-Disposition"]
    file = tmp_path / "snapshot.json"
    file.write_bytes(answer.content)
    assert (
        policies_main(
            [
                "solve",
                "--policy",
                row.policy,
                "--parameters",
                '{"iterations": 50}',
                "--snapshot",
                str(file),
                "--json",
            ]
        )
        == 0
    )
    assert hashlib.sha256(capsys.readouterr().out.strip().encode()).hexdigest() == row.plan_sha256


def test_a_rounds_snapshot_is_for_operators(client: Client) -> None:
    row = a_round(a_busy_cluster())
    client.force_login(a_user())
    assert client.get(f"/rounds/{row.pk}/snapshot.json").status_code == 404
    assert "snapshot.json" not in client.get(f"/rounds/{row.pk}/").content.decode()


def test_a_round_is_recomputed_in_the_time_zone_it_was_decided_in() -> None:
    cluster = a_busy_cluster()
    tariff = EnergyTariff.objects.create(
        cluster=cluster, effective_from=at(-9000), default_price_per_kwh=Decimal("0.1")
    )
    for hour in range(0, 24, 2):
        tariff.bands.create(
            from_time=time(hour), to_time=time(hour + 1), price_per_kwh=Decimal("0.9")
        )
    row = a_round(cluster)
    for zone in (
        "Europe/Rome",
        "Africa/Cairo",
        "Asia/Karachi",
    ):  # an odd number of hours lies between some of them
        Cluster.objects.filter(pk=cluster.pk).update(timezone=zone)
        assert figures(Round.objects.get(pk=row.pk))["cost_rate_per_h"].difference == pytest.approx(
            0.0, abs=1e-12
        )


def printed(*command: str) -> str:
    out = StringIO()
    call_command(*command, stdout=out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("policy", "parameters"),
    [
        ("cost_search", {"moves": 50}),
        ("randomized_greedy", {"mode": "paper", "iterations": 50}),
        ("randomized_greedy", {"mode": "coded", "iterations": 50}),
    ],
)
def test_objective_and_cost_rate_are_found_again_from_the_rows(
    policy: str, parameters: dict[str, object]
) -> None:
    found = figures(a_round(a_busy_cluster(policy, policy_parameters=parameters)))
    assert found["objective"].stored is not None
    assert found["objective"].difference == pytest.approx(0.0, abs=1e-9)
    assert found["cost_rate_per_h"].stored is not None
    assert found["cost_rate_per_h"].stored > 0.0
    assert found["cost_rate_per_h"].difference == pytest.approx(0.0, abs=1e-12)


def test_the_cost_rate_is_that_of_the_nodes_at_their_gpus_in_use() -> None:
    cluster = a_cluster(policy="fifo")
    node = a_node(cluster, gpus=2, base_w=300.0)
    a_job(cluster)
    watts = 300.0 + type_of(node).idle_w + type_of(node).peak_w
    row = a_round(cluster)
    assert row.cost_rate_per_h == pytest.approx(watts / 1000 * 0.172 * 1.33)
    assert (row.tariff, row.pue) == (cluster.tariffs.get(), cluster.pues.get())


def test_a_policy_without_an_objective_has_none_to_recompute() -> None:
    found = figures(a_round(a_busy_cluster("edf")))
    assert found["objective"] == Figure("objective", None, None)
    assert found["objective"].difference is None


def test_versions_that_came_later_change_nothing() -> None:
    cluster = a_busy_cluster()
    row = a_round(cluster)
    later = timezone.now() + timedelta(seconds=1)
    EnergyTariff.objects.create(
        cluster=cluster, effective_from=at(-9000), default_price_per_kwh=Decimal(9)
    )
    PueRecord.objects.create(cluster=cluster, effective_from=at(-9000), pue=3.0)
    EnergyTariff.objects.filter(default_price_per_kwh=9).update(created_at=later)
    PueRecord.objects.filter(pue=3.0).update(created_at=later)
    assert all(figure.difference == pytest.approx(0.0, abs=1e-9) for figure in recompute(row))


def test_a_changed_row_of_the_rounds_version_shows_as_a_difference() -> None:
    row = a_round(a_busy_cluster())
    EnergyTariff.objects.filter(cluster=row.cluster).update(default_price_per_kwh=Decimal("0.344"))
    rate = figures(row)["cost_rate_per_h"]
    assert rate.stored is not None
    assert rate.difference == pytest.approx(rate.stored)


def test_a_changed_price_takes_effect_at_the_next_round_and_the_old_one_stays_with_the_last() -> (
    None
):
    cluster = a_busy_cluster("fifo")
    first = a_round(cluster)
    EnergyTariff.objects.create(cluster=cluster, default_price_per_kwh=Decimal("0.344"))
    second = a_round(cluster)
    assert first.cost_rate_per_h is not None
    assert second.cost_rate_per_h == pytest.approx(2 * first.cost_rate_per_h)
    assert first.tariff != second.tariff
    assert figures(first)["cost_rate_per_h"].difference == pytest.approx(0.0, abs=1e-12)


def test_the_command_prints_stored_recomputed_and_difference() -> None:
    row = a_round(a_busy_cluster())
    lines = printed("recompute_cost", f"{row.cluster.name}:{row.number}").splitlines()
    assert lines[1].split() == ["figure", "stored", "recomputed", "difference"]
    assert [line.split()[0] for line in lines[2:]] == ["objective", "cost_rate_per_h"]
    assert printed("recompute_cost", str(row.pk)).splitlines() == lines


@pytest.mark.parametrize("policy", ["cost_search", "randomized_greedy", "fifo", "edf", "priority"])
def test_a_round_is_replayed_to_the_same_plan(policy: str) -> None:
    row = a_round(a_busy_cluster(policy))
    assert plan_json.digest(replay(row)) == row.plan_sha256
    stored, replayed = (
        line.split()[1] for line in printed("replay_round", str(row.pk)).splitlines()
    )
    assert stored == replayed == row.plan_sha256


def test_a_replay_that_comes_to_another_plan_is_an_error() -> None:
    row = a_round(a_busy_cluster())
    Round.objects.filter(pk=row.pk).update(policy="fifo")
    with pytest.raises(CommandError, match="differ"):
        call_command("replay_round", str(row.pk), stdout=StringIO())


@pytest.mark.parametrize(
    ("name", "reason"),
    [("nonsense", "cluster and number"), ("12345", "no round"), ("x:1", "no round")],
)
def test_a_round_that_is_not_there_is_named(name: str, reason: str) -> None:
    for command in ("recompute_cost", "replay_round"):
        with pytest.raises(CommandError, match=reason):
            call_command(command, name)


def test_a_round_without_a_plan_has_nothing_to_recompute() -> None:
    row = Round.objects.create(
        cluster=a_cluster(), number=3, policy="fifo", seed=1, status="abandoned"
    )
    with pytest.raises(CommandError, match="no plan"):
        call_command("recompute_cost", str(row.pk))
    with pytest.raises(CommandError, match="no plan"):
        call_command("replay_round", str(row.pk))


def test_a_kept_round_decided_nothing_and_is_replayed_to_what_it_kept() -> None:
    cluster = a_busy_cluster(policy_parameters={"mode": "nonsense"})
    row = a_round(cluster)
    assert row.status == "kept"
    assert figures(row)["objective"] == Figure("objective", None, None)
    assert plan_json.digest(replay(find_round(str(row.pk)))) == row.plan_sha256
