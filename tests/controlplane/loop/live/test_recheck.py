"""A plan is rechecked against the newest state: gangs whole, and capacity, memory and power cap."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from clusters.models import Cluster, Device, Node
from controlplane.execution.gangs import PORTS
from controlplane.loop.live import recheck
from controlplane.loop.live.live_assignments import LiveAssignments
from controlplane.loop.live.recheck import FreeCapacity
from jobs.models import Assignment, AssignmentSlot, Job
from loadmaster.protocol import MOST_LAUNCHES, AssignmentState
from policies.contract.plan import Placement, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.snapshot import NodeView, RankPlacement
from profiling.models import Profile
from tests.builders import a_job, a_kind, a_node, type_of
from tests.builders_live import (
    a_round,
    devices_of,
    placing,
    refused,
    running,
    said,
)

pytestmark = pytest.mark.django_db


def test_a_gang_is_launched_whole_or_not_at_all(cluster: Cluster, node: Node) -> None:
    other = a_node(cluster, gpus=1)
    job = a_job(cluster, name="a", gpus_min=2, gpus_max=2)
    seats = (
        RankPlacement(str(node.pk), (devices_of(node)[0].uuid,)),
        RankPlacement(str(other.pk), (devices_of(other)[0].uuid,)),
    )
    plan = Plan("told", PlanStatus.HEURISTIC, (Placement(str(job.pk), seats),))

    def meanwhile(*_: object) -> Plan:
        Node.objects.filter(pk=other.pk).update(state="lost")
        return plan

    assert refused(a_round(cluster, meanwhile)) == {"a": "stale"}
    assert not Assignment.objects.exists()
    job.refresh_from_db()
    assert (job.state, job.fence) == ("queued", 0)
    Node.objects.filter(pk=other.pk).update(state="ready")
    a_round(cluster, lambda *_: plan)
    assert [
        (a.rank, a.world_size, a.fence, a.node) for a in Assignment.objects.order_by("rank")
    ] == [
        (0, 2, 1, node),
        (1, 2, 1, other),
    ]
    (port,) = set(Assignment.objects.values_list("gang_port", flat=True))
    assert port in PORTS


@pytest.mark.parametrize("slow_first", [False, True])
def test_a_gang_of_two_types_is_expected_to_be_as_fast_as_its_slowest_worker(
    cluster: Cluster, node: Node, slow_first: bool
) -> None:
    slow, kind = a_node(cluster, gpu_type="T4", gpus=1), a_kind()
    for gpu_type, steps_per_s in ((type_of(node), 18.0), (type_of(slow), 1.8)):
        Profile.objects.create(
            kind=kind,
            gpu_type=gpu_type,
            gpus=2,
            spread=True,
            steps_per_s=steps_per_s,
            source="measured",
        )
    job = a_job(cluster, name="a", kind=kind, gpus_min=2, gpus_max=2, may_mix=True)
    seats = [RankPlacement(str(n.pk), (devices_of(n)[0].uuid,)) for n in (node, slow)]
    ranks = tuple(reversed(seats)) if slow_first else tuple(seats)
    plan = Plan("told", PlanStatus.HEURISTIC, (Placement(str(job.pk), ranks),))
    assert a_round(cluster, lambda *_: plan).rejected == []
    assert {a.predicted_steps_per_s for a in Assignment.objects.all()} == {1.8}


def test_ranks_of_a_gang_on_one_node_are_rechecked_together(cluster: Cluster, node: Node) -> None:
    job = a_job(cluster, name="a", gpus_min=2, gpus_max=2, cores=16.0)
    seats = tuple(RankPlacement(str(node.pk), (device.uuid,)) for device in devices_of(node))
    plan = Plan("told", PlanStatus.HEURISTIC, (Placement(str(job.pk), seats),))

    def meanwhile(*_: object) -> Plan:
        Node.objects.filter(pk=node.pk).update(cores=31.0)
        return plan

    assert refused(a_round(cluster, meanwhile)) == {"a": "stale"}
    Node.objects.filter(pk=node.pk).update(cores=32.0, reserved_cores=0.0)
    a_round(cluster, lambda *_: plan)
    assert Assignment.objects.count() == 2


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"features": ["process"], "address": "10.0.0.5"}, "install a newer one"),
        ({"features": ["process", "gang"]}, "docs/agent.md"),
    ],
)
def test_a_gang_waits_where_a_node_cannot_run_a_rank_of_it(
    cluster: Cluster, node: Node, values: dict[str, Any], word: str
) -> None:
    other = a_node(cluster, gpus=1)
    Node.objects.filter(pk=other.pk).update(**values)
    job = a_job(cluster, name="a", gpus_min=2, gpus_max=2)
    seats = tuple(RankPlacement(str(n.pk), (devices_of(n)[0].uuid,)) for n in (node, other))
    row = a_round(
        cluster, lambda *_: Plan("told", PlanStatus.HEURISTIC, (Placement(str(job.pk), seats),))
    )
    assert refused(row) == {"a": "stale"}
    assert word in row.rejected[0]["detail"]
    assert not Assignment.objects.exists()
    a_job(cluster, name="b")
    a_round(cluster, placing(b=(other, devices_of(other)[0])))
    assert Assignment.objects.get().node == other, "a job of one rank may run there"


def test_the_database_is_the_last_judge_of_a_slot(
    cluster: Cluster, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = devices_of(node)
    running(cluster, "a", node, first)
    a_job(cluster, name="b")
    a_job(cluster, name="c")
    monkeypatch.setattr(
        "controlplane.loop.live.recheck.FreeCapacity._objections_to_devices", lambda *_: iter(())
    )
    a_round(cluster, placing(a=(node, first), b=(node, second)))
    both = Plan(
        "told",
        PlanStatus.HEURISTIC,
        tuple(
            Placement(str(j.pk), (RankPlacement(str(node.pk), (first.uuid,)),))
            for j in Job.objects.filter(name="c")
        ),
    )
    monkeypatch.setattr("policies.contract.repair.validate_plan", lambda *_: ())
    row = a_round(cluster, lambda *_: both)
    assert refused(row) == {"c": "stale"}
    assert Job.objects.get(name="c").state == "queued"
    assert AssignmentSlot.objects.filter(device=first, live=True).count() == 1


@pytest.mark.parametrize(("amount", "word"), [("memory_gb", "memory"), ("cores", "cores")])
def test_a_node_that_a_stopping_job_still_fills_takes_the_next_one_later(
    cluster: Cluster, node: Node, amount: str, word: str
) -> None:
    first, second = devices_of(node)
    most = {amount: 0.8 * getattr(node, amount)}
    running(cluster, "old", node, first, **most)
    a_job(cluster, name="new", **most)
    row = a_round(cluster, placing(new=(node, second)))
    assert refused(row) == {"new": "deferred"}
    assert f"not enough {word} free" in row.rejected[0]["detail"]


def test_named_resources_are_rechecked_too(cluster: Cluster) -> None:
    node = a_node(cluster, gpus=0, resources={"mic": 1})
    a_job(cluster, name="a", gpus_min=0, gpus_max=0, batch=True, resources={"mic": 1.0})

    def meanwhile(*_: object) -> Plan:
        Node.objects.filter(pk=node.pk).update(resources={})
        return Plan("told", PlanStatus.HEURISTIC)

    row = a_round(cluster, meanwhile)
    assert refused(row) == {"a": "stale"}
    assert "not enough mic free" in row.rejected[0]["detail"]


def test_jobs_without_gpus_start_on_free_cores_and_wait_for_more(cluster: Cluster) -> None:
    node = a_node(cluster, gpus=0, cores=8.0)
    fields: dict[str, Any] = {"gpus_min": 0, "gpus_max": 0, "batch": True, "cores": 4.0}
    first, second, third = (a_job(cluster, name=name, **fields) for name in "abc")
    a_round(cluster)
    held = Assignment.objects.order_by("job__name")
    assert [(a.job, a.node, a.gpus) for a in held] == [(first, node, 0), (second, node, 0)]
    assert held[0].predicted_power_w == pytest.approx(node.base_w / 2)
    third.refresh_from_db()
    assert (third.state, third.waiting_code) == ("queued", "no_capacity")


def test_half_of_a_device_waits_until_nobody_has_it_whole(cluster: Cluster, node: Node) -> None:
    first, _ = devices_of(node)
    Device.objects.filter(pk=first.pk).update(slots=2)
    whole = running(cluster, "a", node, first)
    b = a_job(cluster, name="b", may_share=True)
    half = RankPlacement(str(node.pk), (first.uuid,), share=0.5)
    waits = (Waiting(str(whole.job_id), WaitCode.POSTPONED),)
    row = a_round(
        cluster,
        lambda *_: Plan("told", PlanStatus.HEURISTIC, (Placement(str(b.pk), (half,)),), waits),
    )
    assert refused(row) == {"b": "deferred"}
    assert not Assignment.objects.filter(job=b).exists()


def test_a_node_that_is_given_to_profiling_meanwhile_gets_no_training(
    cluster: Cluster, node: Node
) -> None:
    a_job(cluster, name="a")

    def meanwhile(*given: Any) -> Plan:
        plan = placing(a=(node, devices_of(node)[0]))(*given)
        Node.objects.filter(pk=node.pk).update(role="profiling")
        return plan

    assert refused(a_round(cluster, meanwhile)) == {"a": "stale"}
    assert not Assignment.objects.exists()


def test_under_a_power_cap_the_next_one_waits_until_the_stopping_one_is_gone(node: Node) -> None:
    cluster = node.cluster
    cluster.power_cap_w = 600.0
    cluster.save()
    first, second = devices_of(node)
    running(cluster, "old", node, first)
    a_job(cluster, name="new")
    row = a_round(cluster, placing(new=(node, second)))
    assert refused(row) == {"new": "deferred"}
    assert "600 W" in row.rejected[0]["detail"]


def test_a_cap_that_comes_before_the_next_round_holds_for_launches_too(node: Node) -> None:
    """The cap begins with the next hour, in which the next periodic round is."""
    cluster = node.cluster
    now = timezone.now().replace(minute=30)
    hour = f"{now + timedelta(hours=1):%H}:00"
    cluster.power_cap_hours = [{"power_cap_w": 600, "from": hour}]
    cluster.period_s = 3600.0
    cluster.save()
    first, _ = devices_of(node)
    job = a_job(cluster, name="new", gpus_max=2)
    both = Placement(
        str(job.pk), (RankPlacement(str(node.pk), tuple(d.uuid for d in devices_of(node))),)
    )
    room = FreeCapacity(
        LiveAssignments.of(cluster), {str(node.pk): a_curve(node)}, now, [str(node.pk)]
    )
    assert room.refusal(both, job) is not None
    one = Placement(str(job.pk), (RankPlacement(str(node.pk), (first.uuid,)),))
    assert room.refusal(one, job) is None


def a_curve(node: Node) -> NodeView:
    return NodeView(str(node.pk), node.name, "V100", (), (360.0, 530.0, 700.0))


def test_a_node_holds_no_more_launches_than_its_agent_may_list_with_room_for_ended_ones(
    cluster: Cluster, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert recheck.MOST_LIVE_LAUNCHES < MOST_LAUNCHES
    monkeypatch.setattr(recheck, "MOST_LIVE_LAUNCHES", 1)
    first, second = devices_of(node)
    old = running(cluster, "old", node, first)
    a_job(cluster, name="new")
    plan = placing(new=(node, second))
    assert refused(a_round(cluster, plan)) == {"new": "deferred"}, "the old one is to stop"
    said(old, AssignmentState.PREEMPTED)
    assert refused(a_round(cluster, plan)) == {}


@pytest.mark.parametrize(("former", "latter"), [(True, False), (False, True)])
def test_an_exclusive_job_is_alone_also_while_the_one_before_it_stops(
    cluster: Cluster, node: Node, former: bool, latter: bool
) -> None:
    first, second = devices_of(node)
    old = running(cluster, "old", node, first, exclusive=former)
    new = a_job(cluster, name="new", exclusive=latter)
    plan = placing(new=(node, second))
    assert refused(a_round(cluster, plan)) == {"new": "deferred"}
    said(old, AssignmentState.PREEMPTED)
    assert refused(a_round(cluster, plan)) == {}
    assert Assignment.objects.get(job=new).node == node


def test_two_jobs_of_one_plan_are_not_launched_beside_an_exclusive_one(
    cluster: Cluster, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = devices_of(node)
    for name in "ab":
        a_job(cluster, name=name, exclusive=name == "a")
    monkeypatch.setattr("policies.contract.repair.validate_plan", lambda *_: ())
    row = a_round(cluster, placing(a=(node, first), b=(node, second)))
    assert len(refused(row)) == 1
    assert Assignment.objects.count() == 1


@pytest.mark.parametrize(
    ("change", "said_of_it"),
    [
        ({"session_expires_at": None}, "silent"),
        ({"state": "cordoned"}, "cordoned"),
        ({"state": "draining"}, "draining"),
    ],
)
def test_a_node_that_takes_no_jobs_any_more_gets_none(
    cluster: Cluster, node: Node, change: dict[str, Any], said_of_it: str
) -> None:
    a_job(cluster, name="a")

    def meanwhile(*given: Any) -> Plan:
        plan = placing(a=(node, devices_of(node)[0]))(*given)
        Node.objects.filter(pk=node.pk).update(**change)
        return plan

    row = a_round(cluster, meanwhile)
    assert refused(row) == {"a": "stale"}
    assert said_of_it in row.rejected[0]["detail"]
    assert not Assignment.objects.exists()


def test_a_gpu_that_breaks_meanwhile_gets_no_job(cluster: Cluster, node: Node) -> None:
    a_job(cluster, name="a")
    first = devices_of(node)[0]

    def meanwhile(*given: Any) -> Plan:
        plan = placing(a=(node, first))(*given)
        Device.objects.filter(pk=first.pk).update(healthy=False)
        return plan

    row = a_round(cluster, meanwhile)
    assert refused(row) == {"a": "stale"}
    assert "unhealthy" in row.rejected[0]["detail"]
    assert not Assignment.objects.exists()
