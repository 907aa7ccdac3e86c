"""The live world: the round of an ended stop carries out the plan that asked for it, says so, and
is replayed to it exactly.
"""

from collections.abc import Mapping
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from clusters.events import request_reschedule
from clusters.models import Cluster, Node, Reason, RescheduleEvent
from controlplane.loop.live.solver import solve_here
from controlplane.loop.live.world import Solve
from controlplane.loop.models import Round
from controlplane.loop.recompute import Figure, recompute, replay
from jobs.models import Assignment, Job
from jobs.services import job_hold
from loadmaster.protocol import AssignmentState, ReasonClass
from policies.contract import plan_json
from policies.contract.plan import Plan
from policies.contract.policy import PolicyError
from policies.contract.snapshot import Snapshot
from tests.builders import a_job, a_user
from tests.builders_live import (
    a_round,
    a_round_of_waiting_events,
    accepted,
    changes_of,
    devices_of,
    placing,
    refused,
    running,
    said,
)

pytestmark = pytest.mark.django_db


def nobody(policy: str, parameters: Mapping[str, Any], snapshot: Snapshot) -> Plan:
    """A policy that must not be asked."""
    raise AssertionError("nothing is to be decided")


def answered(cluster: Cluster, solve: Solve) -> Round:
    """The round that answers what waits to be answered."""
    assert a_round_of_waiting_events(cluster, solve) is not None
    return Round.objects.filter(cluster=cluster).latest("number")


def put_off(cluster: Cluster, node: Node) -> tuple[Round, Assignment]:
    """A round that takes the device of `old` for `new`; the stop is under way."""
    old = running(cluster, "old", node, devices_of(node)[0])
    a_job(cluster, name="new")
    row = a_round(cluster, placing(new=(node, devices_of(node)[0])))
    assert (changes_of(row), refused(row)) == (
        {"old": "preempt", "new": "start"},
        {"new": "deferred"},
    )
    return row, old


def test_the_end_of_a_stop_carries_out_the_plan_that_asked_for_it(
    cluster: Cluster, node: Node
) -> None:
    first, old = put_off(cluster, node)
    said(old, AssignmentState.PREEMPTED)
    row = answered(cluster, nobody)
    assert (row.status, row.reasons, row.carried) == ("applied", ["stopped"], first.number)
    assert (row.message, row.plan_status, row.solve_s) == (
        f"carried out round {first.number}'s plan",
        first.plan_status,
        None,
    )
    assert changes_of(row) == {"new": "start"}
    assert Job.objects.get(name="new").state == "starting"
    assert Job.objects.get(name="old").waiting_code == "postponed"


def test_the_rounds_page_and_the_api_say_whose_plan_was_carried_out(
    cluster: Cluster, node: Node, client: Client
) -> None:
    first, old = put_off(cluster, node)
    said(old, AssignmentState.PREEMPTED)
    row = answered(cluster, nobody)
    client.force_login(a_user(operator=True))
    page = client.get(f"/rounds/{row.pk}/").content.decode()
    assert f'<p class="note ">carried out round {first.number}&#x27;s plan</p>' in page
    assert "a stop has ended" in page
    found = client.get(f"/api/v1/rounds/{row.pk}/").json()
    assert (found["carried"], found["reasons"]) == (first.number, ["stopped"])


def test_stops_that_end_one_after_another_carry_out_the_same_plan(
    cluster: Cluster, node: Node
) -> None:
    one, two = devices_of(node)
    a, b = running(cluster, "a", node, one), running(cluster, "b", node, two)
    for name in ("c", "d"):
        a_job(cluster, name=name)
    first = a_round(cluster, placing(c=(node, one), d=(node, two)))
    said(a, AssignmentState.PREEMPTED)
    second = answered(cluster, nobody)
    assert (second.carried, refused(second)) == (first.number, {"d": "deferred"})
    said(b, AssignmentState.PREEMPTED)
    third = answered(cluster, nobody)
    assert (third.carried, changes_of(third), refused(third)) == (
        first.number,
        {"c": "keep", "d": "start"},
        {},
    )


def something_happens(cluster: Cluster, node: Node, what: str) -> None:
    match what:
        case "submission":
            request_reschedule(cluster, Reason.SUBMISSION, job=a_job(cluster, name="late"))
        case "a node lost":
            Node.objects.filter(pk=node.pk).update(state="lost")
        case "another policy":
            Cluster.objects.filter(pk=cluster.pk).update(policy="edf")
        case "other parameters":
            Cluster.objects.filter(pk=cluster.pk).update(policy_parameters={"iterations": 5})
        case "a job that comes from its rest":
            a_job(cluster, name="rested")


@pytest.mark.parametrize(
    "what",
    [
        "submission",
        "a node lost",
        "another policy",
        "other parameters",
        "a job that comes from its rest",
    ],
)
def test_what_has_happened_meanwhile_makes_a_new_decision(
    cluster: Cluster, node: Node, what: str
) -> None:
    _, old = put_off(cluster, node)
    said(old, AssignmentState.PREEMPTED)
    something_happens(cluster, node, what)
    row = answered(cluster, placing())
    assert (row.carried, row.message, changes_of(row)) == (None, "", {})


def test_a_round_whose_policy_failed_has_no_plan_to_carry_out(cluster: Cluster, node: Node) -> None:
    def broken(policy: str, parameters: Mapping[str, Any], snapshot: Snapshot) -> Plan:
        raise PolicyError("no solution")

    _, old = put_off(cluster, node)
    assert a_round(cluster, broken).status == "kept"
    said(old, AssignmentState.PREEMPTED)
    assert answered(cluster, placing()).carried is None


def test_a_launch_that_fails_makes_a_new_decision(cluster: Cluster, node: Node) -> None:
    _, old = put_off(cluster, node)
    said(old, AssignmentState.PREEMPTED)
    answered(cluster, nobody)
    new = Assignment.objects.get(state="offered")
    accepted(new)
    said(new, AssignmentState.FAILED, ReasonClass.NODE, exit_code=None)
    row = answered(cluster, placing(old=(node, devices_of(node)[0])))
    assert (row.reasons, row.carried, changes_of(row)) == (["leftover"], None, {"old": "start"})


def test_a_plan_for_a_node_that_has_fallen_silent_makes_a_new_decision(
    cluster: Cluster, node: Node
) -> None:
    _, old = put_off(cluster, node)
    said(old, AssignmentState.PREEMPTED)
    Node.objects.filter(pk=node.pk).update(session_expires_at=None)
    assert answered(cluster, placing()).carried is None


def test_devices_of_a_job_that_was_held_are_free_for_others(cluster: Cluster, node: Node) -> None:
    old = running(cluster, "old", node, devices_of(node)[0])
    a_job(cluster, name="new")
    job_hold(old.job, a_user(operator=True))
    assert answered(cluster, placing()).carried is None
    said(old, AssignmentState.PREEMPTED)
    assert Job.objects.get(name="old").state == "held"
    row = answered(cluster, placing(new=(node, devices_of(node)[0])))
    assert (row.carried, changes_of(row)) == (None, {"new": "start"})


def test_an_offer_that_was_withdrawn_at_once_needs_no_decision_either(
    cluster: Cluster, node: Node
) -> None:
    one, two = devices_of(node)
    a_job(cluster, name="a")
    a_round(cluster, placing(a=(node, one)))
    first = a_round(cluster, placing(a=(node, two)))
    row = answered(cluster, nobody)
    assert (row.carried, changes_of(row)) == (first.number, {"a": "keep"})
    assert not RescheduleEvent.objects.filter(round=None).exists()


@pytest.mark.parametrize("policy", ["randomized_greedy", "cost_search"])
def test_a_carried_round_is_replayed_to_the_same_plan_and_has_no_figures_of_its_own(
    cluster: Cluster, node: Node, policy: str
) -> None:
    Cluster.objects.filter(pk=cluster.pk).update(policy=policy)
    old = running(cluster, "old", node, *devices_of(node), due_at=None)
    urgent: dict[str, Any] = {
        "due_at": timezone.now() + timedelta(seconds=150),
        "tardiness_weight": 1.0,
    }
    for name in ("new", "other"):
        a_job(cluster, name=name, **urgent)
    first = a_round(cluster)
    assert "deferred" in refused(first).values(), "somebody must wait for what another one gives up"
    said(old, AssignmentState.PREEMPTED)
    row = answered(cluster, solve_here)
    assert row.carried == first.number
    assert row.seed != first.seed
    assert plan_json.digest(replay(row)) == row.plan_sha256
    call_command("replay_round", str(row.pk), stdout=StringIO())
    objective, cost_rate = recompute(row)
    assert objective == Figure("objective", None, None)
    assert cost_rate.difference == pytest.approx(0.0)
    RescheduleEvent.objects.filter(round__number__lt=row.number).delete()
    Round.objects.filter(number__lt=row.number).delete()  # as retention does once they are old
    with pytest.raises(
        CommandError, match=f"carried out the plan of round {first.number}, which has been pruned"
    ):
        call_command("replay_round", str(row.pk), stdout=StringIO())
