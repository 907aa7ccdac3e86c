"""Live rounds keep to the limits of GPUs of teams, and waiting jobs say so."""

from typing import Any

import pytest

from clusters.models import Cluster, Node, RescheduleEvent
from jobs.models import Assignment, Job, Team
from jobs.people import save_team
from jobs.services import job_cancel
from jobs.wording.explanation import explain
from loadmaster.protocol import AssignmentState
from tests.builders import a_cluster, a_job, a_kind, a_node, a_team, a_user
from tests.builders_live import a_round, a_round_of_waiting_events, said, taken

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster(policy="fifo")


@pytest.fixture
def node(cluster: Cluster) -> Node:
    return a_node(cluster, gpu_type="V100", gpus=8, cores=64, memory_gb=256)


@pytest.fixture
def team() -> Team:
    return a_team("vision", max_gpus=2)


def some_jobs(cluster: Cluster, team: Team, names: str, **values: Any) -> None:
    kind, user = a_kind(steps_per_s={("V100", 1): 1.0}), a_user(team=team)
    for name in names:
        a_job(cluster, team=team, user=user, kind=kind, name=name, **values)


def states() -> dict[str, str]:
    return dict(Job.objects.order_by("name").values_list("name", "state"))


def test_a_round_starts_no_more_than_a_team_may_run_and_says_why(
    cluster: Cluster, node: Node, team: Team
) -> None:
    some_jobs(cluster, team, "abc")
    some_jobs(cluster, a_team("speech"), "xyz")
    a_round(cluster)
    waits = {name for name, state in states().items() if state == "queued"}
    assert waits == {"c"}
    job = Job.objects.get(name="c")
    told = explain(job.state, job.waiting_code, job.waiting_detail, {})
    assert told.sentence == "Team vision may use 2 GPUs at a time."
    assert told.remedy == "Wait, or ask an operator to raise the team's max_gpus."


def test_a_raised_limit_asks_for_a_round_that_starts_more(
    cluster: Cluster, node: Node, team: Team
) -> None:
    some_jobs(cluster, team, "abc")
    a_round(cluster)
    assert not RescheduleEvent.objects.filter(round=None).exists()
    save_team("vision", {"max_gpus": 3})
    assert a_round_of_waiting_events(cluster) is not None
    assert set(states().values()) == {"starting"}


def test_a_lowered_limit_stops_nothing_that_runs(cluster: Cluster, node: Node, team: Team) -> None:
    some_jobs(cluster, team, "ab")
    a_round(cluster)
    save_team("vision", {"max_gpus": 0})
    some_jobs(cluster, team, "c")
    row = a_round(cluster)
    assert states() == {"a": "starting", "b": "starting", "c": "queued"}
    assert [change["change"] for change in row.changes] == ["keep", "keep"]
    assert Job.objects.get(name="c").waiting_code == "team_limit"


def test_a_limit_holds_on_each_cluster(cluster: Cluster, node: Node, team: Team) -> None:
    other = a_cluster(policy="fifo")
    a_node(other, gpu_type=node.type_name, gpus=8, cores=64, memory_gb=256)
    some_jobs(cluster, team, "abc")
    some_jobs(other, team, "def")
    for one in (cluster, other):
        a_round(one)
        assert Job.objects.filter(cluster=one, state="starting").count() == 2


def test_gpus_of_a_cancelled_job_count_until_it_has_stopped(
    cluster: Cluster, node: Node, team: Team
) -> None:
    some_jobs(cluster, team, "ab")
    a_round(cluster)
    for assignment in Assignment.objects.all():
        taken(assignment)
    job_cancel(Job.objects.get(name="a"), a_user(operator=True))
    some_jobs(cluster, team, "c")
    row = a_round(cluster)
    assert states() == {"a": "cancelling", "b": "running", "c": "queued"}
    assert [(one["code"], one["detail"]) for one in row.rejected] == [
        ("deferred", "team vision has reached its limit of GPUs")
    ]
    said(Assignment.objects.get(job__name="a"), AssignmentState.CANCELLED)
    a_round(cluster)
    assert states()["c"] == "starting"
