"""What time brings about, on a virtual clock: silence, ignored offers, drains that are due, jobs
nobody moved on.
"""

from datetime import datetime, timedelta

import pytest

from clusters.models import Cluster, Node, RescheduleEvent
from clusters.models.nodes import State
from clusters.services.nodes import (
    NodeStateError,
    node_cordon,
    node_drain,
    node_set_role,
    node_uncordon,
)
from controlplane.execution.services.assignments import accept
from jobs.models import Assignment, AssignmentSlot, Dependency, Job, JobArray
from jobs.wording.reasons import RESTING
from loadmaster.protocol import Accept, AssignmentState
from tests.builders import a_cluster, a_job, a_team
from tests.builders_agents import (
    CLOCK,
    LONG_AGO,
    a_heartbeat,
    a_node_with_agent,
    a_running_assignment,
    an_offer,
    heartbeat,
    reconcile_clusters,
)

S = AssignmentState
pytestmark = pytest.mark.django_db


def _at(seconds: float) -> datetime:
    return LONG_AGO + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("silent_s", "state"), [(59, S.RUNNING), (61, S.UNKNOWN), (99, S.UNKNOWN), (101, S.LOST)]
)
def test_an_assignment_is_lost_after_lease_grace_and_margin_and_never_earlier(
    silent_s: float, state: AssignmentState
) -> None:
    node = a_node_with_agent(now=_at(0))
    a_running_assignment(node, now=_at(0))
    reconcile_clusters(_at(silent_s))
    assert Assignment.objects.get().state == state
    assert AssignmentSlot.objects.get().live is (state != S.LOST)


@pytest.mark.parametrize(("silent_s", "state"), [(76, S.UNKNOWN), (99, S.UNKNOWN), (101, S.LOST)])
def test_a_launch_keeps_the_grace_it_was_promised_when_the_clusters_shrinks(
    silent_s: float, state: AssignmentState
) -> None:
    node = a_node_with_agent(now=_at(0))
    offer = an_offer(node, now=_at(0))
    assert accept(node.pk, offer.pk, Accept(1, offer.fence), _at(0)).grace_s == 30.0
    Cluster.objects.update(grace_s=5.0)
    assert accept(node.pk, offer.pk, Accept(1, offer.fence), _at(0)).grace_s == 30.0
    reconcile_clusters(_at(silent_s))
    assert Assignment.objects.get().state == state


def test_a_longer_grace_given_later_is_waited_for_too() -> None:
    node = a_node_with_agent(now=_at(0))
    offer = an_offer(node, now=_at(0))
    accept(node.pk, offer.pk, Accept(1, offer.fence), _at(0))
    Cluster.objects.update(grace_s=60.0)
    reconcile_clusters(_at(129))
    assert Assignment.objects.get().state == S.UNKNOWN
    reconcile_clusters(_at(131))
    assert Assignment.objects.get().state == S.LOST


def test_a_lost_assignments_job_waits_again_without_using_a_retry() -> None:
    node = a_node_with_agent(now=_at(0))
    a_running_assignment(node, now=_at(0))
    reconcile_clusters(_at(101))
    job = Job.objects.get()
    assert (job.state, job.retries_used) == ("queued", 0)
    assert Node.objects.get().state == State.LOST
    assert "node_lost" in set(RescheduleEvent.objects.values_list("reason", flat=True))


def test_a_second_pass_finds_nothing_left_to_do() -> None:
    node = a_node_with_agent(now=_at(0), gpus=2)
    a_running_assignment(node, now=_at(0))
    an_offer(node, now=_at(0))
    assert reconcile_clusters(_at(101)) > 0
    events = RescheduleEvent.objects.count()
    assert reconcile_clusters(_at(101)) == 0
    assert RescheduleEvent.objects.count() == events


def test_an_offer_nobody_takes_is_withdrawn_and_noted_of_the_node() -> None:
    node = a_node_with_agent(now=_at(0))
    an_offer(node, now=_at(0))
    reconcile_clusters(_at(69))
    assert Assignment.objects.get().state == S.OFFERED
    reconcile_clusters(_at(71))
    assignment = Assignment.objects.get()
    assert (assignment.state, assignment.reason_class) == (S.PREEMPTED, "node")
    assert Job.objects.get().state == "queued"
    assert node.events.filter(event="offer_ignored").get().data == {
        "assignment": str(assignment.pk)
    }


def test_others_may_write_after_each_correction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else heartbeats on SQLite wait for the end of hundreds in a row."""
    node = a_node_with_agent(now=_at(0))
    for _ in range(3):
        an_offer(node, now=_at(0))
    offered_at_pauses = list[int]()

    def pause(seconds: float) -> None:
        assert seconds > 0.0
        offered_at_pauses.append(Assignment.objects.filter(state=S.OFFERED).count())

    monkeypatch.setattr("controlplane.execution.reconciler.time.sleep", pause)
    heartbeat(node.pk, a_heartbeat(seq=1), _at(80))
    reconcile_clusters(_at(80))
    assert offered_at_pauses == [2, 1, 0]


def test_a_node_that_beats_is_not_lost() -> None:
    node = a_node_with_agent(now=_at(0))
    for seconds in range(0, 300, 30):
        heartbeat(node.pk, a_heartbeat(seq=seconds), _at(seconds))
        reconcile_clusters(_at(seconds))
    assert Node.objects.get().state == State.READY


def test_a_drain_that_is_due_sends_what_runs_back_to_the_queue() -> None:
    node = a_node_with_agent(now=_at(0))
    assignment = a_running_assignment(node, now=_at(0))
    node_drain(node, _at(30), "operator", "a new fan")
    reconcile_clusters(_at(29))
    assert Assignment.objects.get().desired == "run"
    reconcile_clusters(_at(31))
    assignment.refresh_from_db()
    assert (assignment.state, assignment.desired) == (S.RUNNING, "preempt")
    assert Job.objects.get().state == "stopping"


def test_a_drain_takes_back_offers_at_once_when_it_is_due() -> None:
    node = a_node_with_agent(now=_at(0))
    an_offer(node, now=_at(0))
    node_drain(node, _at(0))
    reconcile_clusters(_at(1))
    assert (Assignment.objects.get().state, Job.objects.get().state) == (S.PREEMPTED, "queued")


def test_a_gang_leaves_a_drained_node_whole() -> None:
    first = a_node_with_agent(now=_at(0))
    second = a_node_with_agent(first.cluster, token="another's", now=_at(0))
    rank = a_running_assignment(first, now=_at(0), world_size=2)
    a_running_assignment(second, rank.job, now=_at(0), rank=1, world_size=2)
    node_drain(first, _at(1))
    reconcile_clusters(_at(2))
    assert set(Assignment.objects.values_list("desired", flat=True)) == {"preempt"}


def test_a_job_that_claims_to_run_but_holds_nothing_is_queued_again() -> None:
    node = a_node_with_agent(now=_at(0))
    job = a_job(node.cluster, state="running")
    reconcile_clusters(_at(1))
    job.refresh_from_db()
    assert job.state == "queued"


@pytest.mark.parametrize("state", ["queued", "profiling"])
def test_a_job_whose_deadline_comes_while_it_waits_fails_and_says_so(state: str) -> None:
    node = a_node_with_agent(now=_at(0))
    job = a_job(node.cluster, state=state, deadline_at=_at(10))
    reconcile_clusters(_at(9))
    job.refresh_from_db()
    assert job.state == state
    reconcile_clusters(_at(10))
    job.refresh_from_db()
    assert (job.state, job.completed_at) == ("failed", _at(10))
    assert job.failure_reason == "its deadline passed before it could run to its end"


@pytest.mark.parametrize(
    ("ended", "condition", "state"),
    [
        ("failed", "afterok", "failed"),
        ("cancelled", "afterok", "failed"),
        ("completed", "afternotok", "failed"),
        ("completed", "afterok", "queued"),
        ("failed", "afternotok", "queued"),
        ("failed", "afterany", "queued"),
        ("running", "afterok", "queued"),
    ],
)
def test_a_job_that_waits_for_an_end_that_cannot_come_fails_and_says_so(
    ended: str, condition: str, state: str
) -> None:
    node = a_node_with_agent(now=_at(0))
    waits = a_job(node.cluster)
    first = a_running_assignment(node).job if ended == "running" else a_job(node.cluster)
    first.name = "first"
    first.state = ended
    first.team = waits.team
    first.save()
    Dependency.objects.create(job=waits, on=first, condition=condition)
    reconcile_clusters(_at(1))
    waits.refresh_from_db()
    assert waits.state == state
    if state == "failed":
        assert waits.failure_reason == f"it waited for job first ({condition}), which {ended}"


def test_the_reason_of_a_failed_job_does_not_name_what_its_team_may_not_see() -> None:
    cluster, others = a_cluster(), a_team("others")
    array = JobArray.objects.create(indices="0", size=1, lowest=0, highest=0)
    single = a_job(cluster, name="secret", team=others, state="failed")
    a_job(cluster, name="secret", team=others, state="failed", array=array, array_index=0)
    waits, of_array = a_job(cluster), a_job(cluster)
    Dependency.objects.create(job=waits, on=single)
    Dependency.objects.create(job=of_array, on_array=array)
    reconcile_clusters(_at(1))
    for job in (waits, of_array):
        job.refresh_from_db()
        assert job.state == "failed"
        assert "secret" not in job.failure_reason
        assert "another team's" in job.failure_reason


def test_a_cancelled_job_that_holds_nothing_is_over() -> None:
    node = a_node_with_agent(now=_at(0))
    job = a_job(node.cluster, state="cancelling")
    reconcile_clusters(_at(1))
    job.refresh_from_db()
    assert (job.state, job.completed_at) == ("cancelled", _at(1))


def test_operators_cordon_drain_and_bring_back_nodes_and_it_is_written_down() -> None:
    node = a_node_with_agent()
    node_cordon(node, "ada", "a new fan")
    node_drain(node, _at(0), "ada")
    node_uncordon(node, "ada")
    node_set_role(node, "both", "ada")
    fresh = Node.objects.get()
    assert (fresh.state, fresh.role, fresh.drain_until, fresh.reason) == (
        State.READY,
        "both",
        None,
        "",
    )
    written = [(e.event, e.actor) for e in node.events.all()][1:]
    assert written == [
        ("cordoned", "ada"),
        ("draining", "ada"),
        ("uncordoned", "ada"),
        ("role", "ada"),
    ]
    assert set(RescheduleEvent.objects.values_list("reason", flat=True)) >= {
        "operator",
        "node_drained",
        "node_joined",
    }


def test_what_a_nodes_state_does_not_allow_is_refused_in_words() -> None:
    node = a_node_with_agent()
    with pytest.raises(
        NodeStateError, match="is ready; only a node that is cordoned or draining can become ready"
    ):
        node_uncordon(node)


def test_an_operator_who_looked_too_long_ago_is_told_so() -> None:
    node = a_node_with_agent()
    node_cordon(Node.objects.get())
    with pytest.raises(NodeStateError, match="no longer ready"):
        node_drain(node)
    node_set_role(Node.objects.get(), "both")
    with pytest.raises(NodeStateError, match="role changed meanwhile"):
        node_set_role(node, "profiling")


@pytest.mark.parametrize("state", [State.READY, State.CORDONED, State.DRAINING])
def test_a_lost_node_returns_in_the_state_it_had(state: State) -> None:
    node = a_node_with_agent(now=_at(0))
    Node.objects.filter(pk=node.pk).update(state=state)
    reconcile_clusters(_at(101))
    assert Node.objects.get().state == State.LOST
    heartbeat(node.pk, a_heartbeat(seq=2), _at(110))
    assert Node.objects.get().state == state


def test_a_drain_leaves_other_profile_runs_of_the_job_alone() -> None:
    first = a_node_with_agent(now=_at(0))
    second = a_node_with_agent(first.cluster, token="another's", now=_at(0))
    job = a_job(first.cluster, state="profiling")
    here = a_running_assignment(first, job, now=_at(0), purpose="profiling", copy=1)
    there = a_running_assignment(second, job, now=_at(0), purpose="profiling", copy=2)
    node_drain(first, _at(0))
    reconcile_clusters(_at(1))
    here.refresh_from_db()
    there.refresh_from_db()
    assert (here.desired, there.desired) == ("preempt", "run")


def test_a_rest_ends_when_it_is_over() -> None:
    job = a_job(a_cluster(**CLOCK), retry_at=_at(100), waiting_code=RESTING)
    for now_s, retry_at in ((99, _at(100)), (101, None)):
        reconcile_clusters(_at(now_s))
        job.refresh_from_db()
        assert job.retry_at == retry_at
