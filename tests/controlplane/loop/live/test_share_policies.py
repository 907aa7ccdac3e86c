"""Gavel's policies through the live loop: teams and prices as operators set them, turns as agents
are told.
"""

from decimal import Decimal
from typing import Any

import pytest

from clusters.models import Cluster, GpuType
from controlplane.loop.models import Round
from jobs.models import Assignment, Job
from policies.host import registry
from tests.builders import a_cluster, a_gpu_type, a_job, a_kind, a_node, a_team, at
from tests.builders_gavel import OBJECTIVES
from tests.builders_live import a_round, taken

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster() -> Cluster:
    """One V100, which is dear, and one K80, half as fast, for a fifth of its price."""
    made = a_cluster(period_s=360.0)
    for name, price in (("V100", "5"), ("K80", "1")):
        a_node(made, gpu_type=a_gpu_type(name, price_per_hour=Decimal(price)), gpus=1)
    return made


def some_jobs(cluster: Cluster, **values: Any) -> list[Job]:
    """A red one and two blue ones; red weighs three times as much."""
    kind = a_kind(steps_per_s={("V100", 1): 2.0, ("K80", 1): 1.0})
    red, blue = a_team("red", weight=3.0), a_team("blue", order="fifo")
    teams = {"red": red, "blue first": blue, "blue second": blue}
    return [
        a_job(
            cluster,
            name=name,
            team=team,
            kind=kind,
            total_steps=100_000,
            submitted_at=at(i - 1000.0),
            **values,
        )
        for i, (name, team) in enumerate(teams.items())
    ]


def plan_of(row: Round) -> dict[str, Any]:
    assert row.plan is not None, row.message
    plan: dict[str, Any] = row.plan
    return plan


def shares_of(row: Round) -> dict[str, dict[str, float]]:
    """By the names of jobs."""
    shares = plan_of(row)["shares"]
    return {job.name: shares[str(job.pk)] for job in Job.objects.all() if str(job.pk) in shares}


def decided(cluster: Cluster, policy: str, **parameters: Any) -> Round:
    Cluster.objects.filter(pk=cluster.pk).update(policy=policy, policy_parameters=parameters)
    return a_round(cluster)


@pytest.mark.parametrize("policy", list(OBJECTIVES))
def test_a_policy_of_the_table_gives_out_turns_and_keeps_what_runs_in_the_next_round(
    cluster: Cluster, policy: str
) -> None:
    some_jobs(cluster)
    first = decided(cluster, policy, **({"fill": True} if policy == "min_cost" else {}))
    assert (first.status, plan_of(first)["policy"]) == ("applied", policy)
    given = list(Assignment.objects.all())
    assert len(given) == 2
    for assignment in given:
        taken(assignment)
    again = a_round(cluster)
    assert (again.status, Assignment.objects.count()) == ("applied", 2)
    assert plan_of(again)["memory"]["made_s"] == plan_of(first)["memory"]["made_s"]


def test_teams_have_the_cluster_by_their_weights_and_a_queue_lets_the_first_go_first(
    cluster: Cluster,
) -> None:
    some_jobs(cluster)
    shares = shares_of(decided(cluster, "hierarchical"))
    assert sum(shares["red"].values()) == pytest.approx(1.0)
    assert shares["red"]["V100"] == pytest.approx(
        1.0
    )  # three times 0.75 of all would be more than a job can use
    assert shares["blue first"] == pytest.approx({"K80": 1.0})
    assert "blue second" not in shares


def test_a_changed_price_makes_shares_anew_and_moves_work_to_the_cheaper_type(
    cluster: Cluster,
) -> None:
    some_jobs(cluster)
    before = decided(cluster, "min_cost", floor=0.0)
    assert {t for of in shares_of(before).values() for t in of} == {"K80"}
    GpuType.objects.filter(name="V100").update(price_per_hour=Decimal("1.5"))
    after = a_round(cluster)
    assert {t for of in shares_of(after).values() for t in of} == {"V100"}
    assert plan_of(after)["message"] == ""


def test_an_slo_that_can_no_longer_be_met_is_reported_with_the_round(cluster: Cluster) -> None:
    late, *_ = some_jobs(cluster)
    Job.objects.filter(pk=late.pk).update(due_at=at(60.0))
    row = decided(cluster, "min_cost", slos=True)
    assert row.message == f"SLOs that can no longer be met: {late.pk}"


def test_parameters_of_every_policy_of_the_table_are_described(cluster: Cluster) -> None:
    for policy in OBJECTIVES:
        properties = registry.schema(policy)["properties"]
        assert {"form", "spread", "recompute_s"} <= set(properties)
        assert all(of["description"] for of in properties.values())
