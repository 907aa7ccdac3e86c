"""Sessions, heartbeats and assignments over HTTP: what an agent is told
to stop, start and take back.
"""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from clusters.models import Node
from controlplane.execution.services.stops import stop_assignment
from jobs.lifecycle import JobMove
from jobs.models import Assignment, Job
from jobs.moves import move_job
from loadmaster.protocol import AssignmentState, KnownAssignment, ReasonClass, StopReason
from tests.builders_agents import (
    SECRET,
    a_heartbeat,
    a_node_with_agent,
    a_running_assignment,
    a_session_request,
    accepts,
    an_offer,
    reports,
)

pytestmark = pytest.mark.django_db


S = AssignmentState


def test_a_superseded_agent_is_told_to_open_a_session(call: Any) -> None:
    node = a_node_with_agent()
    assignment = a_running_assignment(node)
    known = a_heartbeat(assignment).assignments
    session = call(
        "post", f"nodes/{node.pk}/session", a_session_request(node, assignments=known)
    ).json()
    assert (session["epoch"], session["adopt"], session["stop"]) == (2, [str(assignment.pk)], [])
    assert reports(call, assignment, S.SUCCEEDED).json()["error"]["code"] == "stale_epoch"
    assert reports(call, assignment, S.SUCCEEDED, epoch=2).status_code == 200


def test_a_session_is_told_to_stop_what_is_over_or_of_another_fence(call: Any) -> None:
    node = a_node_with_agent(gpus=2)
    over, other = a_running_assignment(node), a_running_assignment(node)
    reports(call, over, S.PREEMPTED)
    other.fence += 1
    known = a_heartbeat(over, other).assignments
    session = call(
        "post", f"nodes/{node.pk}/session", a_session_request(node, assignments=known)
    ).json()
    assert set(session["stop"]) == {str(over.pk), str(other.pk)}
    assert session["adopt"] == []


def test_a_wish_to_stop_reaches_the_agent_by_its_heartbeat_until_it_is_done(call: Any) -> None:
    node = a_node_with_agent()
    assignment = a_running_assignment(node)
    stop_assignment(assignment, StopReason.PREEMPT, "operator")
    for seq in (1, 2):
        (directive,) = call(
            "post", f"nodes/{node.pk}/heartbeat", a_heartbeat(assignment, seq=seq)
        ).json()["directives"]
        assert (directive["action"], directive["stop_reason"], directive["grace_s"]) == (
            "stop",
            "preempt",
            30.0,
        )
    reports(call, assignment, S.PREEMPTED)
    assert call("post", f"nodes/{node.pk}/heartbeat", a_heartbeat(seq=3)).json()["directives"] == []


def test_a_wish_to_cancel_is_never_weakened(call: Any) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    stop_assignment(assignment, StopReason.CANCEL)
    stop_assignment(assignment, StopReason.PREEMPT)
    assert assignment.desired == "cancel"


def test_a_job_that_succeeds_while_it_is_being_stopped_has_succeeded(call: Any) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    stop_assignment(assignment, StopReason.PREEMPT)
    reports(call, assignment, S.SUCCEEDED, steps=100)
    stop_assignment(assignment, StopReason.PREEMPT)
    assert Job.objects.get().state == "completed"
    assert assignment.state == S.SUCCEEDED


def test_a_heartbeat_tells_the_agent_to_start_what_is_offered_and_to_stop_strays(call: Any) -> None:
    node = a_node_with_agent(gpus=2)
    offer, stray = an_offer(node), a_running_assignment(node)
    heartbeat = a_heartbeat(stray)
    reports(call, stray, S.FAILED)
    answer = call("post", f"nodes/{node.pk}/heartbeat", heartbeat).json()
    assert {(d["id"], d["action"]) for d in answer["directives"]} == {
        (str(offer.pk), "start"),
        (str(stray.pk), "stop"),
    }
    assert answer["leases"] == []


def test_a_heartbeat_passes_on_a_prolonged_term(call: Any) -> None:
    node = a_node_with_agent()
    until = timezone.now() + timedelta(minutes=5)
    assignment = a_running_assignment(node, term_until=until)
    (directive,) = call("post", f"nodes/{node.pk}/heartbeat", a_heartbeat(assignment)).json()[
        "directives"
    ]
    assert directive["action"] == "update"
    assert directive["term_until_s"] == pytest.approx(until.timestamp(), abs=0.001)


def _restart(call: Any, node: Node, *known: Assignment, secret: str = SECRET) -> Any:
    listed = tuple(KnownAssignment(str(a.pk), a.fence, S.ACCEPTED) for a in known)
    return call(
        "post", f"nodes/{node.pk}/session", a_session_request(node, secret, assignments=listed)
    )


def test_an_acceptance_the_agent_died_with_is_taken_back_by_a_session_without_it(
    call: Any,
) -> None:
    node = a_node_with_agent(gpus=2)
    written, unwritten = an_offer(node), an_offer(node)
    for assignment in (written, unwritten):
        accepts(call, assignment)
    assert _restart(call, node, written).status_code == 200
    written.refresh_from_db()
    unwritten.refresh_from_db()
    assert (written.state, written.epoch) == (S.ACCEPTED, 2)
    assert (unwritten.state, unwritten.reason_class, unwritten.job.state) == (
        S.PREEMPTED,
        ReasonClass.NODE,
        "queued",
    )
    assert not unwritten.slots.filter(live=True).exists()
    assert (unwritten.job.retries_used, unwritten.job.waiting_code) == (0, "")


def test_a_cancelled_job_is_over_when_the_acceptance_its_agent_died_with_is_taken_back(
    call: Any,
) -> None:
    node = a_node_with_agent()
    assignment = an_offer(node)
    accepts(call, assignment)
    move_job(assignment.job, JobMove.CANCEL)
    stop_assignment(assignment, StopReason.CANCEL)
    _restart(call, node)
    assignment.refresh_from_db()
    assert (assignment.state, assignment.job.state) == (S.CANCELLED, "cancelled")


def test_what_another_journal_does_not_know_may_still_run(call: Any) -> None:
    node = a_node_with_agent()
    assignment = an_offer(node)
    accepts(call, assignment)
    Node.objects.update(session_expires_at=None)
    assert _restart(call, node, secret="the secret of a new journal").status_code == 200
    for answer in (
        accepts(call, assignment, epoch=2),
        reports(call, assignment, S.FAILED, epoch=2),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "stale_assignment")
    assignment.refresh_from_db()
    assert (assignment.state, assignment.epoch) == (S.ACCEPTED, 1)


def test_what_was_reported_beyond_its_acceptance_waits_for_its_lease(call: Any) -> None:
    node = a_node_with_agent()
    assignment = an_offer(node)
    accepts(call, assignment)
    reports(call, assignment, S.PREPARING)
    _restart(call, node)
    assignment.refresh_from_db()
    assert assignment.state == S.PREPARING


def test_an_offer_that_the_agent_lists_is_not_adopted(call: Any) -> None:
    offer = an_offer(a_node_with_agent())
    session = _restart(call, offer.node, offer).json()
    offer.refresh_from_db()
    assert (session["adopt"], session["stop"], offer.epoch) == ([], [], 0)


def test_a_session_takes_back_nothing_of_other_nodes(call: Any) -> None:
    theirs = an_offer(a_node_with_agent())
    accepts(call, theirs)
    node = a_node_with_agent(theirs.node.cluster, token="of another node")
    request = a_session_request(node)
    assert call("post", f"nodes/{node.pk}/session", request, token="of another node").json()
    theirs.refresh_from_db()
    assert theirs.state == S.ACCEPTED


def test_a_launch_of_another_node_is_stopped_and_not_adopted(call: Any) -> None:
    theirs = a_running_assignment(a_node_with_agent())
    node = a_node_with_agent(theirs.node.cluster, token="of another node")
    request = a_session_request(node, assignments=a_heartbeat(theirs).assignments)
    path = f"nodes/{node.pk}/session"
    session = call("post", path, request, token="of another node").json()
    assert (session["adopt"], session["stop"]) == ([], [str(theirs.pk)])
