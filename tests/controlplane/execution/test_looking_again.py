"""A correction looks again with the rows locked, as others may have been faster."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from clusters.models import Node
from clusters.models.nodes import State
from controlplane.execution.services.assignments import accept
from controlplane.execution.services.heartbeats import (
    Answered,
    Call,
    renew_all,
    restore_unknown,
)
from controlplane.execution.services.sessions import open_session
from jobs.models import Assignment, Dependency, Job
from loadmaster.protocol import Accept, AssignmentState, KnownAssignment, Session
from tests.builders import a_job
from tests.builders_agents import (
    LONG_AGO,
    a_heartbeat,
    a_node_with_agent,
    a_running_assignment,
    a_session_request,
    an_offer,
    heartbeat,
    reconcile_clusters,
)
from tests.interleaving import just_before

pytestmark = pytest.mark.django_db
S = AssignmentState
LOCKS_AN_ASSIGNMENT = r'FROM "jobs_job" INNER JOIN "jobs_assignment"'
LOCKS_A_JOB = r'FROM "jobs_job" WHERE "jobs_job"."id" ='
WRITES_A_NODE = r'UPDATE "clusters_node" SET "state"'


def _at(seconds: float) -> datetime:
    return LONG_AGO + timedelta(seconds=seconds)


def test_a_lease_that_is_renewed_in_the_last_moment_stands() -> None:
    node = a_node_with_agent(now=_at(0))
    assignment = a_running_assignment(node, now=_at(0))
    with just_before(
        LOCKS_AN_ASSIGNMENT, lambda: heartbeat(node.pk, a_heartbeat(assignment), _at(60.9))
    ):
        reconcile_clusters(_at(61))
    assert Assignment.objects.get().state == S.RUNNING
    assert not assignment.events.exists()


def test_an_offer_that_is_taken_in_the_last_moment_stands() -> None:
    node = a_node_with_agent(now=_at(0))
    offer = an_offer(node, now=_at(0))
    with just_before(
        LOCKS_AN_ASSIGNMENT,
        lambda: accept(node.pk, offer.pk, Accept(1, offer.fence), _at(70)),
    ):
        reconcile_clusters(_at(71))
    assert Assignment.objects.get().state == S.ACCEPTED
    assert not node.events.filter(event="offer_ignored").exists()


def test_a_node_that_is_heard_in_the_last_moment_is_not_lost() -> None:
    node = a_node_with_agent(now=_at(0))
    with just_before(WRITES_A_NODE, lambda: heartbeat(node.pk, a_heartbeat(), _at(100.9))):
        reconcile_clusters(_at(101))
    assert Node.objects.get().state == State.READY
    assert not node.events.filter(event="lost").exists()


def test_a_node_that_is_drained_in_the_last_moment_comes_back_draining() -> None:
    node = a_node_with_agent(now=_at(0))
    with just_before(WRITES_A_NODE, lambda: Node.objects.update(state=State.DRAINING)):
        reconcile_clusters(_at(101))
    reconcile_clusters(_at(101))
    heartbeat(node.pk, a_heartbeat(), _at(110))
    assert Node.objects.get().state == State.DRAINING


def is_placed(waits: Job, other: Job) -> None:
    an_offer(Node.objects.get(), waits, now=_at(50))


def other_is_queued_again(waits: Job, other: Job) -> None:
    Job.objects.filter(pk=other.pk).update(state="queued")


@pytest.mark.parametrize(
    ("values", "meanwhile", "state"),
    [
        ({"deadline_at": _at(50)}, is_placed, "starting"),
        ({}, is_placed, "starting"),
        ({}, other_is_queued_again, "queued"),
    ],
)
def test_a_waiting_job_does_not_fail_for_what_has_changed_in_the_last_moment(
    values: dict[str, Any], meanwhile: Callable[[Job, Job], None], state: str
) -> None:
    node = a_node_with_agent(now=_at(0))
    waits, other = a_job(node.cluster, **values), a_job(node.cluster, state="failed")
    if not values:
        Dependency.objects.create(job=waits, on=other, condition="afterok")
    with just_before(LOCKS_A_JOB, lambda: meanwhile(waits, other)):
        reconcile_clusters(_at(51))
    waits.refresh_from_db()
    assert waits.state == state


def a_session(node: Node, *known: Assignment) -> Session:
    listed = tuple(KnownAssignment(str(a.pk), a.fence, S.ACCEPTED) for a in known)
    return open_session(node.pk, a_session_request(node, assignments=listed), _at(20))


@pytest.fixture
def accepted() -> Assignment:
    """An offer that the agent's first session has accepted."""
    node = a_node_with_agent(now=_at(0))
    offer = an_offer(node, now=_at(0))
    accept(node.pk, offer.pk, Accept(1, offer.fence), _at(10))
    return Assignment.objects.select_related("node").get()


def test_a_launch_that_a_newer_session_knows_is_not_taken_back(accepted: Assignment) -> None:
    with just_before(LOCKS_AN_ASSIGNMENT, lambda: a_session(accepted.node, accepted)):
        assert a_session(accepted.node).epoch == 2
    accepted.refresh_from_db()
    assert (accepted.state, accepted.epoch) == (S.ACCEPTED, 3)


def test_a_launch_that_two_sessions_do_not_know_is_taken_back_once(accepted: Assignment) -> None:
    with just_before(LOCKS_AN_ASSIGNMENT, lambda: a_session(accepted.node)):
        a_session(accepted.node)
    accepted.refresh_from_db()
    assert accepted.state == S.PREEMPTED
    assert list(accepted.events.values_list("move", flat=True)) == ["accept", "preempt"]


def a_newer_session(assignment: Assignment) -> None:
    a_session(assignment.node, assignment)


def lost(assignment: Assignment) -> None:
    reconcile_clusters(_at(200))


@pytest.mark.parametrize(("meanwhile", "state"), [(a_newer_session, S.UNKNOWN), (lost, S.LOST)])
def test_a_heartbeat_brings_back_only_what_is_still_unknown_to_its_own_session(
    meanwhile: Callable[[Assignment], None], state: AssignmentState
) -> None:
    node = a_node_with_agent(now=_at(0))
    assignment = a_running_assignment(node, now=_at(0))
    reconcile_clusters(_at(61))
    (renewed,) = renew_all([Call(node.pk, a_heartbeat(assignment))], _at(70))
    assert isinstance(renewed, Answered)
    assert [pk for pk, _ in renewed.unknown] == [assignment.pk]
    meanwhile(assignment)
    restore_unknown(renewed, _at(70))
    assert Assignment.objects.get().state == state


def test_a_heartbeat_renews_what_its_own_session_runs_of_this_very_launch() -> None:
    node = a_node_with_agent(now=_at(0), gpus=2)
    theirs, relaunched = (a_running_assignment(node, now=_at(0)) for _ in range(2))
    Assignment.objects.filter(pk=theirs.pk).update(epoch=7)
    Assignment.objects.filter(pk=relaunched.pk).update(fence=7)
    assert heartbeat(node.pk, a_heartbeat(theirs, relaunched), _at(20)).leases == ()
    assert set(Assignment.objects.values_list("lease_expires_at", flat=True)) == {_at(60)}
