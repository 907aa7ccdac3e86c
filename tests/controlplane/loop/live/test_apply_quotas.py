"""Cores of a running job change without a stop, a new fence or a new offer."""

from typing import Any

import pytest
from django.test import Client

from clusters.models import Cluster, Node
from controlplane.execution.directives import directive
from controlplane.loop.models import Round
from jobs.models import Assignment
from loadmaster.features import CORES_LIMIT
from loadmaster.protocol import DirectiveAction
from policies.contract.plan import Placement, Plan, PlanStatus
from policies.contract.snapshot import RankPlacement
from tests.builders_live import a_round, changes_of, devices_of, running

pytestmark = pytest.mark.django_db

CORES = 4.0


@pytest.fixture
def able(node: Node) -> Node:
    """A node whose agent changes the cores of launches."""
    Node.objects.filter(pk=node.pk).update(features=["process", CORES_LIMIT])
    node.refresh_from_db()
    return node


def a_job_that_runs(cluster: Cluster, node: Node) -> Assignment:
    return running(cluster, "a", node, devices_of(node)[0], cores=CORES)


def placed(assignment: Assignment, quota: float | None, **values: Any) -> Plan:
    """A plan that leaves the job where it is, with this quota."""
    device = devices_of(assignment.node)[0]
    seat = RankPlacement(str(assignment.node_id), (device.uuid,), cpu_quota=quota)
    stays = Placement(str(assignment.job_id), (seat,), **values)
    return Plan("told", PlanStatus.HEURISTIC, (stays,))


def after_round(assignment: Assignment, plan: Plan) -> Round:
    row = a_round(assignment.node.cluster, lambda *_: plan)
    assignment.refresh_from_db()
    return row


def test_a_running_job_gets_other_cores_under_its_fence(cluster: Cluster, able: Node) -> None:
    assignment = a_job_that_runs(cluster, able)
    fence = assignment.fence
    row = after_round(assignment, placed(assignment, 1.5))
    assert (row.status, changes_of(row)) == ("applied", {"a": "quotas"})
    assert (assignment.cpu_quota, assignment.fence, assignment.state) == (1.5, fence, "running")
    event = assignment.events.get(move="quota")
    assert event.data == {"by": "round", "from": None, "to": 1.5}


def test_its_agent_is_told_the_cores(cluster: Cluster, able: Node) -> None:
    assignment = a_job_that_runs(cluster, able)
    assert directive(assignment, grace_s=10.0) is None
    after_round(assignment, placed(assignment, 1.5))
    told = directive(assignment, grace_s=10.0)
    assert told is not None
    assert (told.action, told.cpu_quota) == (DirectiveAction.UPDATE, 1.5)


def test_a_job_that_has_its_cores_back_is_told_so(cluster: Cluster, able: Node) -> None:
    assignment = a_job_that_runs(cluster, able)
    after_round(assignment, placed(assignment, 1.5))
    row = after_round(assignment, placed(assignment, None))
    assert changes_of(row) == {"a": "quotas"}
    told = directive(assignment, grace_s=10.0)
    assert told is not None
    assert told.cpu_quota == CORES


def test_a_quota_that_is_in_force_already_changes_nothing(cluster: Cluster, able: Node) -> None:
    assignment = a_job_that_runs(cluster, able)
    after_round(assignment, placed(assignment, 1.5))
    changed_at = assignment.quota_at
    row = after_round(assignment, placed(assignment, 1.5))
    assert changes_of(row) == {"a": "keep"}
    assert assignment.quota_at == changed_at


def test_a_quota_and_a_term_may_change_together(cluster: Cluster, able: Node) -> None:
    assignment = a_job_that_runs(cluster, able)
    after_round(assignment, placed(assignment, 1.5, until_s=2e9))
    assert assignment.cpu_quota == 1.5
    assert assignment.term_until is not None


def test_an_older_agent_keeps_its_cores(cluster: Cluster, node: Node) -> None:
    assignment = a_job_that_runs(cluster, node)
    row = after_round(assignment, placed(assignment, 1.5))
    assert row.status != "applied"
    assert (assignment.cpu_quota, assignment.quota_at) == (None, None)
    assert directive(assignment, grace_s=10.0) is None


def test_a_job_that_asked_for_no_cores_gets_no_quota(cluster: Cluster, able: Node) -> None:
    assignment = running(cluster, "a", able, devices_of(able)[0], cores=0.0)
    after_round(assignment, placed(assignment, 1.5))
    assert assignment.cpu_quota is None


def test_a_slowed_job_is_expected_to_be_slower(cluster: Cluster, able: Node) -> None:
    assignment = a_job_that_runs(cluster, able)
    alone = assignment.predicted_steps_per_s
    assert alone is not None
    after_round(assignment, placed(assignment, CORES / 2))
    assert assignment.predicted_steps_per_s == pytest.approx(alone / 2)


def test_pages_show_the_cores_that_a_job_may_use_now(cluster: Cluster, able: Node) -> None:
    assignment = a_job_that_runs(cluster, able)
    after_round(assignment, placed(assignment, 1.5))
    client = Client()
    client.force_login(assignment.job.user)
    for page in (f"/jobs/{assignment.job_id}/", "/"):
        assert "now with 1.5 of 4 cores" in client.get(page).content.decode()
