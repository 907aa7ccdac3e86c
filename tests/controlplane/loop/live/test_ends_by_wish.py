"""What people wish of jobs and nodes, and nodes that fall silent: nothing is over before it is, all
goes on elsewhere.
"""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from clusters.models import Cluster, Node
from jobs.models import Assignment, AssignmentSlot, Job
from loadmaster.protocol import AssignmentState, ReasonClass
from tests.builders import a_cluster, a_job, a_node, a_team, a_user
from tests.builders_agents import CLOCK, a_running_assignment, reconcile_clusters
from tests.builders_jobs import api
from tests.builders_live import a_round, said, taken

S, R = AssignmentState, ReasonClass
pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster(**CLOCK)


@pytest.fixture
def user() -> User:
    return a_user("ada", team=a_team("research"))


@pytest.fixture
def operator() -> User:
    return a_user("oskar", operator=True)


@pytest.fixture
def job(user: User, cluster: Cluster) -> Job:
    return a_job(cluster, user=user, team=user.teams.get())


def runs(job: Job) -> Assignment:
    """A round has placed the job, and its agent runs it."""
    a_round(job.cluster)
    return taken(job.assignments.get(ended_at=None))


def state(job: Job) -> str:
    return Job.objects.get(pk=job.pk).state


def cancel(user: User, job: Job) -> str:
    answer = api(user).post(f"/api/v1/jobs/{job.pk}/cancel/")
    return str(answer.data["state"])


def test_a_cancelled_job_holds_its_gpu_until_its_agent_says_that_its_process_is_gone(
    user: User, cluster: Cluster, job: Job
) -> None:
    a_node(cluster, gpus=1)
    assignment = runs(job)
    assert cancel(user, job) == "cancelling"
    said(assignment, S.STOPPING)
    waiting = a_job(cluster)
    a_round(cluster)
    assert (state(job), AssignmentSlot.objects.filter(live=True).count()) == ("cancelling", 1)
    assert not waiting.assignments.exists()
    said(assignment, S.CANCELLED, R.OPERATOR, reason="cancelled")
    a_round(cluster)
    assert (state(job), waiting.assignments.count()) == ("cancelled", 1)


@pytest.mark.parametrize("before", ["held", "queued", "profiling"])
def test_a_job_whose_measurement_still_stops_is_not_cancelled_before_that_is_gone(
    user: User, cluster: Cluster, job: Job, before: str
) -> None:
    node = a_node(cluster, gpus=1, role="profiling", epoch=1)
    run = a_running_assignment(node, job, purpose="profiling")
    Job.objects.filter(pk=job.pk).update(state=before)
    assert cancel(user, job) == "cancelling"
    said(run, S.CANCELLED, R.OPERATOR)
    assert state(job) == "cancelled"


@pytest.mark.parametrize("before", ["held", "queued", "profiling"])
def test_a_job_that_holds_nothing_is_cancelled_at_once(
    user: User, cluster: Cluster, job: Job, before: str
) -> None:
    a_node(cluster)
    Job.objects.filter(pk=job.pk).update(state=before)
    assert cancel(user, job) == "cancelled"


def test_a_drain_lets_jobs_run_to_its_deadline_then_moves_them_and_tells_them_why(
    user: User, operator: User, cluster: Cluster, job: Job
) -> None:
    node = a_node(cluster, gpus=1)
    first = runs(job)
    until = timezone.now() + timedelta(minutes=5)
    body = {"until": until.isoformat(), "reason": "new power supply"}
    assert (
        api(operator).post(f"/api/v1/nodes/{node.pk}/drain/", body, format="json").status_code
        == 200
    )
    _alive(first, until)
    reconcile_clusters(until - timedelta(seconds=1))
    a_round(cluster, at_s=until.timestamp() - 1)
    assert state(job) == "running"
    reconcile_clusters(until + timedelta(seconds=1))
    assert state(job) == "stopping"
    other = a_node(cluster, gpus=1)
    said(first, S.PREEMPTED)
    a_round(cluster)
    assert job.assignments.get(ended_at=None).node == other
    events = api(user).get(f"/api/v1/jobs/{job.pk}/events/").data
    told = [e["data"] for e in events["results"] if e["event"] == "preempt"]
    assert told == [{"why": f"node {node.name} is drained: new power supply"}]


def test_the_page_takes_a_drains_deadline_and_reason_and_refuses_what_is_none(
    operator: User, cluster: Cluster
) -> None:
    node = a_node(cluster)
    browser = Client()
    browser.force_login(operator)
    browser.post(f"/nodes/{node.pk}/drain/", {"minutes": "soon"})
    assert Node.objects.get(pk=node.pk).state == "ready"
    browser.post(f"/nodes/{node.pk}/drain/", {"minutes": "30", "reason": "dust"})
    drained = Node.objects.get(pk=node.pk)
    assert (drained.state, drained.reason) == ("draining", "dust")
    assert drained.drain_until is not None
    assert 29 <= (drained.drain_until - timezone.now()).total_seconds() / 60 <= 30


def test_a_cordoned_node_keeps_what_runs_and_gets_nothing_new(
    operator: User, cluster: Cluster, job: Job
) -> None:
    node = a_node(cluster, gpus=2)
    assignment = runs(job)
    api(operator).post(f"/api/v1/nodes/{node.pk}/cordon/", {"reason": "noisy fan"}, format="json")
    waiting = a_job(cluster)
    a_round(cluster)
    assignment.refresh_from_db()
    assert (assignment.state, assignment.desired, state(job)) == ("running", "run", "running")
    assert not waiting.assignments.exists()


def test_a_lost_nodes_job_goes_elsewhere_after_lease_grace_and_margin_and_never_before(
    user: User, cluster: Cluster, job: Job
) -> None:
    node = a_node(cluster, gpus=1)
    first = runs(job)
    other = a_node(cluster, gpus=1)
    assert first.renewed_at is not None
    Node.objects.filter(pk=node.pk).update(
        last_seen_at=first.renewed_at, session_expires_at=first.lease_expires_at
    )
    assert first.lease_expires_at is not None
    for silent_s in (1, 20, 39):
        now = first.lease_expires_at + timedelta(seconds=silent_s)
        _heard(other, now)
        reconcile_clusters(now)
        a_round(cluster, at_s=now.timestamp())
        assert job.assignments.count() == 1, f"{silent_s} s after its lease something may still run"
    now = first.lease_expires_at + timedelta(seconds=41)
    _heard(other, now)
    reconcile_clusters(now)
    a_round(cluster, at_s=now.timestamp())
    assert Node.objects.get(pk=node.pk).state == "lost"
    assert job.assignments.get(ended_at=None).node == other
    assert Job.objects.get(pk=job.pk).retries_used == 0
    ends: Any = api(user).get(f"/api/v1/jobs/{job.pk}/assignments/").data
    assert {(r["state"], r["reason_class"]) for r in ends["results"]} == {
        ("lost", "lease"),
        ("offered", ""),
    }


def test_a_completed_job_that_told_no_steps_is_done_all_the_same(
    user: User, cluster: Cluster, job: Job
) -> None:
    a_node(cluster, gpus=1)
    said(runs(job), S.SUCCEEDED)
    progress = api(user).get(f"/api/v1/jobs/{job.pk}/").data["progress"]
    assert (progress["steps_done"], progress["fraction"]) == (0, 1.0)
    browser = Client()
    browser.force_login(user)
    assert "its script reported no steps" in browser.get(f"/jobs/{job.pk}/").content.decode()


def _heard(node: Node, now: Any) -> None:
    Node.objects.filter(pk=node.pk).update(last_seen_at=now)


def _alive(assignment: Assignment, until: Any) -> None:
    """The node's agent is heard all the while."""
    late = until + timedelta(hours=1)
    Assignment.objects.filter(pk=assignment.pk).update(renewed_at=late, lease_expires_at=late)
    Node.objects.update(session_expires_at=late, last_seen_at=late)
