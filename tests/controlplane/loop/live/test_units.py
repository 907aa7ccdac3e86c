"""Units of batch jobs in the live world: snapshots, rechecks, launches, watts and bills."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from clusters.models import Cluster, Node
from controlplane.accounting.ledger import bill
from controlplane.loop.live.observe import observe
from jobs.models import Assignment, Job
from loadmaster.features import LIMITS, SHARED, features_with
from policies.contract.plan import Placement, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.snapshot import JobView, NodeView, RankPlacement, Snapshot
from tests.builders import a_cluster, a_job, a_node
from tests.builders_live import a_round, refused, taken

pytestmark = pytest.mark.django_db

NEW = list(features_with("process", SHARED))


@pytest.fixture
def cluster() -> Cluster:
    """A cluster whose policy places batch jobs itself, so that a test's plan is the whole plan."""
    return a_cluster(policy="backfilling")


@pytest.fixture
def wide(cluster: Cluster) -> Node:
    return a_cpu_node(cluster, name="wide", cores=16.0, memory_gb=32.0)


@pytest.fixture
def narrow(cluster: Cluster) -> Node:
    return a_cpu_node(cluster, name="narrow", cores=8.0, memory_gb=16.0)


def a_cpu_node(cluster: Cluster, **values: Any) -> Node:
    return a_node(cluster, gpus=0, epoch=1, **{"features": NEW, "base_w": 100.0, **values})


def units(cluster: Cluster, count: int = 3, **values: Any) -> Job:
    given = {"batch": True, "preemptible": False, "gpus_min": 0, "gpus_max": 0, "cores": 8.0}
    return a_job(cluster, units=count, **{**given, "memory_gb": 4.0, **values})


def told(*placements: Placement) -> Any:
    def solve(policy: str, parameters: Mapping[str, Any], snapshot: Snapshot) -> Plan:
        return Plan("told", PlanStatus.HEURISTIC, placements)

    return solve


def seats(job: Job, *on: tuple[Node, int]) -> Placement:
    ranks = tuple(RankPlacement(str(node.pk), (), units=of) for node, of in on)
    return Placement(str(job.pk), ranks)


def seen(cluster: Cluster) -> tuple[JobView, dict[str, NodeView]]:
    snapshot = observe(cluster.pk, timezone.now().timestamp(), 1).snapshot
    return snapshot.jobs[0], {node.name: node for node in snapshot.nodes}


def test_a_waiting_jobs_units_reach_the_snapshot(cluster: Cluster, wide: Node) -> None:
    units(cluster, 4, units_per_node=2, nodes=2, resources={"mic": 1})
    job, _ = seen(cluster)
    assert (job.units, job.units_per_node, job.nodes) == (4, 2, 2)
    assert (job.cores, job.memory_gb, job.resources) == (8.0, 4.0, (("mic", 1.0),))


def test_two_units_and_one_are_launched_and_kept(
    cluster: Cluster, wide: Node, narrow: Node
) -> None:
    job = units(cluster)
    placed = seats(job, (wide, 2), (narrow, 1))
    a_round(cluster, told(placed))
    found = list(Assignment.objects.order_by("rank"))
    assert [(a.node, a.rank, a.world_size, a.units, a.gang_port) for a in found] == [
        (wide, 0, 2, 2, None),
        (narrow, 1, 2, 1, None),
    ]
    view, _ = seen(cluster)
    assert view.running[0].ranks == placed.ranks
    a_round(cluster, told(placed))
    assert Assignment.objects.filter(desired="run").count() == 2


def test_the_clusters_own_policy_finds_such_seats(
    cluster: Cluster, wide: Node, narrow: Node
) -> None:
    units(cluster)
    a_round(cluster)
    assert {a.node.name: a.units for a in Assignment.objects.all()} == {"wide": 2, "narrow": 1}


@pytest.mark.parametrize(
    ("lacking", "word"),
    [
        ({"cores": 15.0}, "cores"),
        ({"memory_gb": 7.0}, "memory"),
        ({"resources": {"mic": 3}}, "mic"),
    ],
)
def test_a_launch_is_rechecked_with_all_units_of_a_seat(
    cluster: Cluster, wide: Node, narrow: Node, lacking: dict[str, Any], word: str
) -> None:
    Node.objects.update(resources={"mic": 4})
    job = units(cluster, resources={"mic": 2})
    placed = seats(job, (wide, 2), (narrow, 1))

    def meanwhile(*_: object) -> Plan:
        Node.objects.filter(pk=wide.pk).update(**lacking)
        return Plan("told", PlanStatus.HEURISTIC, (placed,))

    row = a_round(cluster, meanwhile)
    assert not Assignment.objects.exists()
    assert refused(row) == {job.name: "stale"}
    assert word in str(row.rejected)


def test_what_the_seats_of_another_job_hold_is_counted_by_units(
    cluster: Cluster, wide: Node, narrow: Node
) -> None:
    first, second = units(cluster), units(cluster, 1, name="second")
    a_round(cluster, told(seats(first, (wide, 2), (narrow, 1))))

    def without_the_first(*_: object) -> Plan:
        kept = seats(first, (wide, 2), (narrow, 1))
        return Plan("told", PlanStatus.HEURISTIC, (kept, seats(second, (narrow, 1))))

    row = a_round(cluster, without_the_first)
    assert not Assignment.objects.filter(job=second).exists()
    assert row.status != "applied"


def test_a_batch_seat_needs_no_address_and_no_agent_that_knows_gangs(
    cluster: Cluster, wide: Node, narrow: Node
) -> None:
    Node.objects.update(features=[f for f in NEW if f != "gang"], address="")
    a_round(cluster, told(seats(units(cluster), (wide, 2), (narrow, 1))))
    assert Assignment.objects.count() == 2


def test_an_older_agent_gets_no_job_of_several_units_and_the_reason_says_so(
    cluster: Cluster, wide: Node
) -> None:
    Node.objects.update(features=["process", LIMITS, SHARED])
    several, one = units(cluster, 2, name="several"), units(cluster, 1, name="one")
    a_round(cluster)
    assert [a.job for a in Assignment.objects.all()] == [one]
    several.refresh_from_db()
    assert several.waiting_code == "agent_too_old"


def test_an_older_agent_gets_no_job_that_wants_a_signal_before_its_end(
    cluster: Cluster, wide: Node
) -> None:
    Node.objects.update(features=["process", LIMITS, SHARED])
    ends = {"walltime_s": 60.0, "on_walltime": "kill", "signal": "USR1@10"}
    warned, never = units(cluster, 1, **ends), units(cluster, 1, signal="USR1@10")
    a_round(cluster)
    assert [a.job for a in Assignment.objects.all()] == [never]
    warned.refresh_from_db()
    assert warned.waiting_code == "agent_too_old"


def test_a_seats_watts_and_bill_are_by_the_cores_of_its_units(cluster: Cluster, wide: Node) -> None:
    """Of 100 W, a seat of 2 x 4 cores beside one of 4 cores bears two thirds."""
    two, one = units(cluster, 2, cores=4.0), units(cluster, 1, cores=4.0)
    a_round(cluster, told(seats(two, (wide, 2)), seats(one, (wide, 1))))
    predicted = {a.job_id: a.predicted_power_w or 0.0 for a in Assignment.objects.all()}
    assert predicted[two.pk] == pytest.approx(2 * predicted[one.pk])
    now = timezone.now()
    Assignment.objects.update(
        accepted_at=now - timedelta(hours=1), running_at=now - timedelta(hours=1), ended_at=now
    )
    billed = {a.job_id: bill(a).energy_kwh for a in Assignment.objects.all()}
    assert billed[two.pk] == pytest.approx(2 * billed[one.pk])
    assert sum(billed.values()) == pytest.approx(0.1)


def test_the_cost_of_a_placement_is_expected_of_its_seats_together(
    cluster: Cluster, wide: Node, narrow: Node
) -> None:
    placed = replace(
        seats(units(cluster), (wide, 2), (narrow, 1)),
        predicted_run_s=60.0,
        predicted_energy_cost=0.3,
    )
    a_round(cluster, told(placed))
    costs = Assignment.objects.order_by("rank").values_list("predicted_energy_cost", flat=True)
    assert [float(cost or 0) for cost in costs] == pytest.approx([0.2, 0.1])


def test_equal_parts_of_what_a_node_has_are_launched_together(cluster: Cluster) -> None:
    a_cpu_node(cluster, cores=16.0, resources={"tokens": 1e8})
    units(cluster, 11, cores=0.1, memory_gb=0.1, resources={"tokens": 1e8 / 11})
    assert refused(a_round(cluster)) == {}
    assert Assignment.objects.get().units == 11


def test_a_node_is_filled_by_all_units_of_a_job_that_stops(cluster: Cluster, wide: Node) -> None:
    first = units(cluster, 2, preemptible=True)
    a_round(cluster, told(seats(first, (wide, 2))))
    taken(Assignment.objects.get())
    second = seats(units(cluster, 1, name="second"), (wide, 1))
    stops = (Waiting(str(first.pk), WaitCode.POSTPONED),)
    row = a_round(cluster, lambda *_: Plan("told", PlanStatus.HEURISTIC, (second,), stops))
    assert refused(row) == {"second": "deferred"}
