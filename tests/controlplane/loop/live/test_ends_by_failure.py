"""Launcher that fail, from the offer to what people read: which retries they use, when and where
they are tried again.
"""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from clusters.models import Cluster, Node
from controlplane.loop.live.observe import observe
from jobs.models import Assignment, Job
from loadmaster.features import features_with
from loadmaster.protocol import AssignmentState, ReasonClass
from policies.contract.labels import APART
from tests.builders import a_cluster, a_job, a_node, a_team, a_user
from tests.builders_agents import CLOCK, reconcile_clusters
from tests.builders_jobs import a_placement, api
from tests.builders_live import a_round, accepted, said, taken

S, R = AssignmentState, ReasonClass
pytestmark = pytest.mark.django_db
NO_IMAGE = "pull access denied for me/train"


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster(**CLOCK)


@pytest.fixture
def user() -> User:
    return a_user("ada", team=a_team("research"))


def a_job_of(user: User, cluster: Cluster, **values: Any) -> Job:
    return a_job(cluster, user=user, team=user.teams.get(), **values)


def nodes(cluster: Cluster, number: int, **values: Any) -> list[Node]:
    return [a_node(cluster, **{"gpus": 1, **values}) for _ in range(number)]


def avoided(job: Job) -> list[str]:
    """Labels of the nodes that the job avoids."""
    views = observe(job.cluster_id, timezone.now().timestamp(), 1).snapshot.jobs
    (view,) = (view for view in views if view.id == str(job.pk))
    return [label for label in view.labels if label.startswith(APART)]


def placed(job: Job, *, in_s: float = 0.0) -> Assignment:
    """The job's launch by a round that many seconds from now, when what rests until then has
    rested.
    """
    now = timezone.now() + timedelta(seconds=in_s)
    reconcile_clusters(now)
    a_round(job.cluster, at_s=now.timestamp())
    return job.assignments.get(ended_at=None)


def fails(
    assignment: Assignment, reason_class: ReasonClass, reason: str, exit_code: int | None = None
) -> Job:
    """The agent reports the launch's failure; the job afterwards."""
    said(assignment, S.FAILED, reason_class, reason=reason, exit_code=exit_code)
    return Job.objects.get(pk=assignment.job_id)


def shown(user: User, job: Job) -> Any:
    return api(user).get(f"/api/v1/jobs/{job.pk}/").data


def page(user: User, job: Job) -> str:
    browser = Client()
    browser.force_login(user)
    return browser.get(f"/jobs/{job.pk}/").content.decode()


def rest_s(job: Job) -> float:
    return (
        0.0 if job.retry_at is None else round((job.retry_at - timezone.now()).total_seconds(), -1)
    )


def test_an_image_that_cannot_be_had_is_tried_on_three_nodes_with_rests_and_then_fails_the_job(
    user: User, cluster: Cluster
) -> None:
    names = {n.pk: n.name for n in nodes(cluster, 4, features=["docker"])}
    job = a_job_of(user, cluster, runtime="docker", image="me/train:1", max_retries=0)
    tried, rests = [], []
    for number in range(3):
        assignment = placed(job, in_s=30.0 * number)
        tried.append(names[assignment.node_id])
        accepted(assignment)
        said(assignment, S.PREPARING)
        job = fails(assignment, R.IMAGE, NO_IMAGE)
        rests.append(rest_s(job))
        assert job.retries_used == 0
    assert len(set(tried)) == 3
    assert (job.state, rests[:2]) == ("failed", [10.0, 20.0])
    reason = shown(user, job)["failure_reason"]
    assert reason.startswith(
        f"its image could not be pulled in 3 tries on {', '.join(tried)}: {NO_IMAGE}"
    )
    assert "requeue" in reason
    assert "could not be pulled" in page(user, job)
    attempts = api(user).get(f"/api/v1/jobs/{job.pk}/attempts/").data["results"]
    assert [(a["outcome"], a["reason_class"]) for a in attempts] == [("failed", "image")]


def test_a_job_that_rests_is_left_alone_and_says_why_and_until_when(
    user: User, cluster: Cluster
) -> None:
    nodes(cluster, 2, features=["docker"])
    job = a_job_of(user, cluster, runtime="docker", image="me/train:1")
    first = placed(job)
    accepted(first)
    job = fails(first, R.IMAGE, NO_IMAGE)
    a_round(cluster)
    assert not job.assignments.filter(ended_at=None).exists()
    waiting = shown(user, job)["waiting"]
    assert waiting["code"] == "resting"
    (failure,) = [of["text"] for of in waiting["facts"] if of["heading"] == "Last failure"]
    assert NO_IMAGE in failure
    assert "pauses after a failure" in page(user, job)


def test_one_node_alone_does_not_get_hammered_by_an_image_it_cannot_have(
    user: User, cluster: Cluster
) -> None:
    nodes(cluster, 1, features=["docker"])
    job = a_job_of(user, cluster, runtime="docker", image="me/train:1", max_retries=0)
    rests = []
    for number in range(5):
        assignment = placed(job, in_s=90.0 if number else 0.0)
        accepted(assignment)
        job = fails(assignment, R.IMAGE, NO_IMAGE)
        rests.append(rest_s(job))
    assert (job.state, rests[:4]) == ("failed", [10.0, 20.0, 40.0, 80.0])
    assert "in 5 tries" in job.failure_reason


def test_too_little_memory_uses_a_retry_and_names_what_was_asked_and_the_remedy(
    user: User, cluster: Cluster
) -> None:
    nodes(cluster, 1)
    job = a_job_of(user, cluster, memory_gb=2.0, max_retries=1)
    job = fails(taken(placed(job)), R.OOM, "the kernel killed the job: out of memory", 137)
    assert (job.state, job.retries_used, rest_s(job)) == ("queued", 1, 10.0)
    job = fails(
        taken(placed(job, in_s=30.0)), R.OOM, "the kernel killed the job: out of memory", 137
    )
    assert (job.state, job.retries_used) == ("failed", 1)
    assert "it asked for 2 GB of memory; raise memory_gb" in shown(user, job)["failure_reason"]
    assert "raise memory_gb" in page(user, job)


def test_a_crash_uses_a_retry_after_a_rest_that_doubles(user: User, cluster: Cluster) -> None:
    nodes(cluster, 1)
    job = a_job_of(user, cluster, max_retries=2)
    rests = []
    for number in range(3):
        job = fails(
            taken(placed(job, in_s=30.0 * number)),
            R.USER,
            "the job ended with exit code 1: KeyError",
            1,
        )
        rests.append(rest_s(job))
    assert (job.state, job.retries_used, rests[:2]) == ("failed", 2, [10.0, 20.0])
    assert (
        shown(user, job)["failure_reason"]
        == "failed (user): the job ended with exit code 1: KeyError"
    )


@pytest.mark.parametrize("fault", [R.GPU, R.NODE])
def test_a_broken_machine_uses_no_retry_and_the_job_goes_elsewhere_at_once(
    user: User, cluster: Cluster, fault: ReasonClass
) -> None:
    two = nodes(cluster, 2)
    job = a_job_of(user, cluster, max_retries=0)
    first = taken(placed(job))
    job = fails(first, fault, "xid 79")
    assert (job.state, job.retries_used, job.retry_at) == ("queued", 0, None)
    second = placed(job)
    assert {first.node_id, second.node_id} == {n.pk for n in two}


def test_a_job_goes_back_to_a_node_that_failed_it_where_there_is_no_other(
    user: User, cluster: Cluster
) -> None:
    (node,) = nodes(cluster, 1)
    nodes(cluster, 1, state="cordoned")
    job = a_job_of(user, cluster)
    job = fails(taken(placed(job)), R.GPU, "xid 79")
    assert placed(job).node_id == node.pk


def test_other_jobs_do_not_mind_what_failed_this_one(user: User, cluster: Cluster) -> None:
    nodes(cluster, 2)
    job, other = a_job_of(user, cluster), a_job_of(user, cluster)
    a_round(cluster)
    fails(taken(job.assignments.get()), R.GPU, "xid 79")
    taken(other.assignments.get())
    a_round(cluster)
    assert not job.assignments.filter(ended_at=None).exists(), (
        "the other node is the other job's, and its own failed it"
    )
    assert shown(user, Job.objects.get(pk=job.pk))["waiting"]["code"] != "no_node_fits"


@pytest.mark.parametrize(("others", "avoids"), [(2, False), (3, True)])
def test_a_job_of_three_nodes_avoids_one_only_where_three_others_are(
    user: User, cluster: Cluster, others: int, avoids: bool
) -> None:
    features = list(features_with("process"))
    bad, *_ = nodes(cluster, 1 + others, cores=2.0, features=features)
    seats: dict[str, Any] = {"batch": True, "gpus_min": 0, "gpus_max": 0, "cores": 1.0}
    job = a_job_of(user, cluster, **seats, units=3, nodes=3, exclusive=True)
    a_placement(job, bad, S.FAILED, ended_ago_s=1.0, gpus=0, reason_class=R.NODE, reason="away")
    a_round(cluster)
    seated = {launch.node_id for launch in job.assignments.filter(ended_at=None)}
    assert len(seated) == 3
    assert (bad.pk not in seated) is avoids


def failed_on(job: Job, *failed: Node, fence: int = 1, **values: Any) -> None:
    """A launch of the job over these nodes that has failed by their fault."""
    for rank, node in enumerate(failed):
        job.fence = fence - 1  # a_placement adds one: they are of one launch
        fault = {"reason_class": R.NODE, "reason": "no room", "rank": rank, **values}
        a_placement(job, node, S.FAILED, **{"ended_ago_s": 1.0, **fault})


@pytest.mark.parametrize(("others", "wanted"), [(1, 0), (2, 2)])
def test_a_gang_avoids_nodes_only_where_as_many_others_are_as_it_was_spread_over(
    user: User, cluster: Cluster, others: int, wanted: int
) -> None:
    failed, _ = nodes(cluster, 2, gpus=2), nodes(cluster, others, gpus=2)
    job = a_job_of(user, cluster, gpus_min=2, gpus_max=2)
    failed_on(job, *failed)
    assert len(avoided(job)) == wanted


def test_an_elastic_job_on_all_nodes_avoids_the_one_that_failed_it(
    user: User, cluster: Cluster
) -> None:
    four = nodes(cluster, 4)
    job = a_job_of(user, cluster, gpus_min=1, gpus_max=4)
    failed_on(job, *four)
    job.assignments.exclude(node=four[0]).update(state=S.PREEMPTED, reason_class=R.GANG)
    assert len(avoided(job)) == 1


def test_a_gang_avoids_a_node_alone_though_it_was_spread_over_many_long_ago(
    user: User, cluster: Cluster
) -> None:
    bad, *others = nodes(cluster, 3, gpus=4)
    job = a_job_of(user, cluster, gpus_min=4, gpus_max=4)
    failed_on(job, bad, *others, *nodes(cluster, 1, gpus=4, state="cordoned"), ended_ago_s=3600.0)
    failed_on(job, bad, fence=2, gpus=4)
    failed_on(a_job_of(user, cluster), bad, fence=1)  # as the old launch's, of another job
    assert len(avoided(job)) == 1


def test_gpus_that_do_not_divide_among_the_nodes_count_whole(user: User, cluster: Cluster) -> None:
    three, two = nodes(cluster, 2, gpus=5)
    nodes(cluster, 2, gpus=5)
    job = a_job_of(user, cluster, gpus_min=5, gpus_max=5)
    failed_on(job, three, gpus=3)
    failed_on(job, two, gpus=2, rank=1)
    assert len(avoided(job)) == 2


def test_a_node_is_not_avoided_for_what_ended_while_the_clock_was_ahead(
    user: User, cluster: Cluster
) -> None:
    bad, *_ = nodes(cluster, 2)
    job = a_job_of(user, cluster)
    a_placement(job, bad, S.FAILED, ended_ago_s=1.0, reason_class=R.NODE, reason="away")
    assert len(avoided(job)) == 1
    Assignment.objects.update(ended_at=timezone.now() + timedelta(hours=1))
    assert not avoided(job)
