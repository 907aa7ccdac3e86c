"""A plan comes true as far as the newest state allows: gangs whole, plans in part, the database's
constraints as the last judge.
"""

from decimal import Decimal
from typing import Any

import pytest
from django.db import OperationalError
from django.db.models import F
from pytest_django import Settings

from clusters.models import Cluster, Device, Node, Reason, RescheduleEvent
from controlplane.loop.live.world import Ports, hold_round
from controlplane.loop.models import Round
from jobs.models import Assignment, Attempt, Job
from loadmaster.protocol import AssignmentState
from policies.contract.plan import Placement, Plan, PlanStatus
from policies.contract.snapshot import RankPlacement
from tests.builders import a_job, a_node
from tests.builders_live import (
    a_round,
    a_round_of_waiting_events,
    changes_of,
    devices_of,
    placing,
    progressed,
    refused,
    running,
    said,
    taken,
    utc,
)

pytestmark = pytest.mark.django_db


def test_a_start_offers_the_job_to_its_node_under_the_next_fence(
    cluster: Cluster, node: Node
) -> None:
    job = a_job(
        cluster, name="a", fence=4, checkpoint_steps=30, waiting_code="no_capacity", gpus_max=2
    )
    row = a_round(cluster, placing(a=(node, *devices_of(node))))
    assignment = Assignment.objects.get()
    job.refresh_from_db()
    assert (job.state, job.fence, job.waiting_code) == ("starting", 5, "")
    assert (assignment.job, assignment.node, assignment.round) == (job, node, row)
    assert (assignment.state, assignment.fence, assignment.gpus, assignment.start_steps) == (
        "offered",
        5,
        2,
        30,
    )
    assert {s.device.uuid for s in assignment.slots.all()} == {d.uuid for d in devices_of(node)}
    assert (row.status, changes_of(row), row.rejected) == ("applied", {"a": "start"}, [])
    assert [e.event for e in job.events.all()] == ["place"]
    assert [e.to_state for e in assignment.events.all()] == ["offered"]


def test_an_offer_says_what_the_round_expects_of_it(cluster: Cluster, node: Node) -> None:
    a_job(cluster, name="a")
    a_job(cluster, name="b")

    def solve(*given: Any) -> Plan:
        plan = placing(a=(node, devices_of(node)[0]), b=(node, devices_of(node)[1]))(*given)
        first, second = plan.placements
        told = Placement(
            first.job,
            first.ranks,
            predicted_run_s=100.0,
            predicted_energy_cost=0.125,
            until_s=2e9,
            steps_quota=9,
        )
        return Plan("told", PlanStatus.HEURISTIC, (told, second))

    a_round(cluster, solve)
    offer, plain = Assignment.objects.get(job__name="a"), Assignment.objects.get(job__name="b")
    assert (offer.predicted_run_s, offer.predicted_energy_cost) == (100.0, Decimal("0.125"))
    assert (offer.term_until, offer.steps_quota) == (utc(2e9), 9)
    assert offer.predicted_steps_per_s == pytest.approx(1.0)
    assert offer.predicted_power_w == pytest.approx(700.0 / 2)
    assert (plain.predicted_run_s, plain.predicted_energy_cost, plain.term_until) == (
        None,
        None,
        None,
    )
    assert (plain.gang_port, plain.term_at, offer.term_at) == (None, None, None)


def test_only_a_clusters_newest_round_says_how_long_its_placements_are_expected_to_run(
    cluster: Cluster, node: Node
) -> None:
    assignment = running(cluster, "a", node, devices_of(node)[0])
    seat = RankPlacement(str(node.pk), (devices_of(node)[0].uuid,))
    rows = []
    for run_s in (100.0, 90.0, None):
        plan = Plan(
            "told",
            PlanStatus.HEURISTIC,
            (Placement(str(assignment.job_id), (seat,), predicted_run_s=run_s),),
        )
        rows.append(a_round(cluster, lambda *_, plan=plan: plan))
        told = [
            r.runs_expected
            for r in Round.objects.filter(pk__in=[r.pk for r in rows]).order_by("pk")
        ]
        assert told[:-1] == [None] * (len(rows) - 1)
        assert told[-1] == (
            [] if run_s is None else [[str(assignment.job_id), "training", 0, run_s]]
        )


def test_a_plan_that_leaves_a_job_where_it_is_writes_nothing_but_its_term(
    cluster: Cluster, node: Node
) -> None:
    assignment = running(cluster, "a", node, devices_of(node)[0])
    seat = RankPlacement(str(node.pk), (devices_of(node)[0].uuid,))
    prolonged = Plan(
        "told", PlanStatus.HEURISTIC, (Placement(str(assignment.job_id), (seat,), until_s=2e9),)
    )
    row = a_round(cluster, lambda *_: prolonged)
    assert changes_of(row) == {"a": "keep"}
    assert Assignment.objects.get().term_until == utc(2e9)
    assert Assignment.objects.get().term_at is not None, "its agent is to hear of it at once"
    assert Assignment.objects.get().state == "running"


def test_a_job_that_is_to_wait_is_asked_to_stop_and_its_devices_are_given_on_when_it_has(
    cluster: Cluster, node: Node
) -> None:
    first, _ = devices_of(node)
    old = running(cluster, "old", node, first)
    a_job(cluster, name="new")
    row = a_round(cluster, placing(new=(node, first)))
    old.refresh_from_db()
    assert (old.desired, old.job.state) == ("preempt", "stopping")
    assert (row.status, changes_of(row), refused(row)) == (
        "partial",
        {"old": "preempt", "new": "start"},
        {"new": "deferred"},
    )
    assert Job.objects.get(name="new").waiting_code == "deferred"
    assert not RescheduleEvent.objects.filter(round=None).exists(), (
        "the end of the stop asks for a round, nothing else does"
    )
    progressed(old, 40, "checkpoint")
    said(old, AssignmentState.PREEMPTED)
    assert list(RescheduleEvent.objects.filter(round=None).values_list("reason", flat=True)) == [
        Reason.STOPPED
    ]
    assert a_round_of_waiting_events(cluster, placing(new=(node, first))) is not None
    assert Job.objects.get(name="new").state == "starting"
    assert Job.objects.get(name="old").state == "queued"


@pytest.mark.parametrize(("devices", "change"), [((1,), "migrate"), ((0, 1), "resize")])
def test_a_moved_job_is_stopped_first_and_goes_on_from_its_checkpoint(
    cluster: Cluster, node: Node, devices: tuple[int, ...], change: str
) -> None:
    mine = devices_of(node)
    old = running(cluster, "a", node, mine[0])
    elsewhere = placing(a=(node, *(mine[i] for i in devices)))
    row = a_round(cluster, elsewhere)
    assert (changes_of(row), refused(row)) == ({"a": change}, {"a": "deferred"})
    progressed(old, 40, "checkpoint")
    said(old, AssignmentState.PREEMPTED)
    a_round_of_waiting_events(cluster, elsewhere)
    new = Assignment.objects.get(state="offered")
    assert (new.fence, new.start_steps, new.attempt) == (old.fence + 1, 40, old.attempt)
    assert {s.device for s in new.slots.all()} == {mine[i] for i in devices}


def test_an_offer_nobody_has_taken_is_withdrawn_and_given_elsewhere_at_once(
    cluster: Cluster, node: Node
) -> None:
    first, second = devices_of(node)
    a_job(cluster, name="a")
    a_round(cluster, placing(a=(node, first)))
    row = a_round(cluster, placing(a=(node, second)))
    assert (row.status, refused(row)) == ("applied", {})
    assert list(Assignment.objects.order_by("fence").values_list("state", flat=True)) == [
        "preempted",
        "offered",
    ]


def test_an_attempt_spans_preemptions_and_a_new_one_begins_after_its_end(
    cluster: Cluster, node: Node
) -> None:
    old = running(cluster, "a", node, devices_of(node)[0])
    a_round(cluster, placing())
    said(old, AssignmentState.PREEMPTED)
    a_round(cluster, placing(a=(node, devices_of(node)[0])))
    assert list(Attempt.objects.values_list("number", flat=True)) == [1]
    assert Attempt.objects.get().assignments.count() == 2
    Attempt.objects.update(ended_at=utc(2e9))
    said(taken(Assignment.objects.get(state="offered")), AssignmentState.PREEMPTED)
    a_round(cluster, placing(a=(node, devices_of(node)[0])))
    assert list(Attempt.objects.order_by("number").values_list("number", flat=True)) == [1, 2]


def test_what_no_longer_fits_is_recorded_and_asks_for_one_more_round(
    cluster: Cluster, node: Node
) -> None:
    first, second = devices_of(node)
    for name in "abc":
        a_job(cluster, name=name)
    other = a_node(cluster, gpus=1)
    told = placing(a=(node, first), b=(node, second), c=(other, *devices_of(other)))

    def meanwhile(*given: Any) -> Plan:
        plan = told(*given)
        Job.objects.filter(name="a").update(state="held")
        Device.objects.filter(pk=second.pk).update(healthy=False)
        return plan

    row = a_round(cluster, meanwhile)
    assert (row.status, refused(row)) == ("partial", {"a": "stale", "b": "stale"})
    assert Job.objects.get(name="c").state == "starting"
    assert list(RescheduleEvent.objects.filter(round=None).values_list("reason", flat=True)) == [
        Reason.LEFTOVER
    ]


def test_what_runs_on_a_silent_node_keeps_its_place_and_nothing_new_comes(node: Node) -> None:
    cluster = node.cluster
    cluster.policy = "fifo"
    cluster.save(update_fields=["policy"])
    running(cluster, "old", node, devices_of(node)[0])
    new = a_job(cluster, name="new")
    Node.objects.filter(pk=node.pk).update(session_expires_at=None)
    row = a_round(cluster)
    assert changes_of(row) == {"old": "keep"}
    new.refresh_from_db()
    assert (new.state, new.waiting_code) == ("queued", "nodes_unavailable")
    assert a_round(cluster).rejected == []


def test_a_node_that_fell_silent_while_the_policy_thought_is_offered_nothing(
    cluster: Cluster, node: Node
) -> None:
    a_job(cluster, name="a")

    def meanwhile(*given: Any) -> Plan:
        plan = placing(a=(node, devices_of(node)[0]))(*given)
        Node.objects.filter(pk=node.pk).update(session_expires_at=None)
        return plan

    row = a_round(cluster, meanwhile)
    assert refused(row) == {"a": "stale"}
    assert row.rejected[0]["detail"] == f"the agent of node {node.name} is silent"


def test_a_round_asked_for_by_leftovers_alone_asks_for_no_other(
    cluster: Cluster, node: Node
) -> None:
    a_job(cluster, name="a")

    def meanwhile(*given: Any) -> Plan:
        plan = placing(a=(node, devices_of(node)[0]))(*given)
        Node.objects.filter(pk=node.pk).update(state="cordoned")
        return plan

    row = a_round(cluster, meanwhile, reason=Reason.LEFTOVER)
    assert refused(row) == {"a": "stale"}
    assert "cordoned" in row.rejected[0]["detail"]
    assert not RescheduleEvent.objects.filter(round=None).exists()


def test_a_window_of_which_nothing_starts_while_gpus_are_idle_is_followed_by_another_one_once(
    cluster: Cluster, node: Node, settings: Settings
) -> None:
    settings.ROUND_JOBS = 4
    for i in range(6):
        a_job(cluster, name=f"job-{i}")
    a_round(cluster, placing())
    assert list(RescheduleEvent.objects.filter(round=None).values_list("reason", flat=True)) == [
        Reason.LEFTOVER
    ]
    a_round_of_waiting_events(cluster, placing())
    assert not RescheduleEvent.objects.filter(round=None).exists()


def test_a_long_queue_before_full_nodes_asks_for_no_other_round(
    cluster: Cluster, node: Node, settings: Settings
) -> None:
    settings.ROUND_JOBS = 4
    running(cluster, "held", node, *devices_of(node))
    for i in range(6):
        a_job(cluster, name=f"job-{i}")
    a_round(cluster, placing(held=(node, *devices_of(node))))
    assert not RescheduleEvent.objects.filter(round=None).exists()


def test_nothing_is_applied_by_a_round_that_another_one_has_followed(
    cluster: Cluster, node: Node
) -> None:
    a_job(cluster, name="a")
    RescheduleEvent.objects.create(cluster=cluster, reason=Reason.OPERATOR)

    def meanwhile(*given: Any) -> Plan:
        Cluster.objects.update(round_number=F("round_number") + 1, round_owner="another")
        return placing(a=(node, devices_of(node)[0]))(*given)

    assert hold_round(cluster.pk, Ports(meanwhile)) is None
    assert not Assignment.objects.exists()
    assert Round.objects.get().status == "abandoned"
    assert RescheduleEvent.objects.filter(round=None).count() == 1


def test_a_plan_is_applied_whole_or_not_at_all(
    cluster: Cluster, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that dies after its launches, or loses the database, has launched nothing."""
    a_job(cluster, name="a")

    def dies(*_: object) -> None:
        assert Assignment.objects.exists()
        raise OperationalError("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr("controlplane.loop.live.record.close_round", dies)
        with pytest.raises(OperationalError):
            a_round(cluster, placing(a=(node, devices_of(node)[0])))
    assert not Assignment.objects.exists()
    assert [(j.state, j.fence) for j in Job.objects.all()] == [("queued", 0)]
    assert not Job.objects.get().events.exists()
    assert RescheduleEvent.objects.filter(round=None).count() == 1
