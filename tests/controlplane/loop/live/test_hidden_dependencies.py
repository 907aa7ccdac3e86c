"""Jobs that wait for a start, or for one of several jobs: no policy sees them while they wait."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from clusters.models import Cluster, RescheduleEvent
from controlplane.loop.live.observe import Observation, observe
from jobs.models import Dependency, Job
from jobs.wording.explanation import reason_for_waiting
from tests.builders import a_cluster, a_job, a_node, a_team, a_user
from tests.builders_agents import reconcile_clusters
from tests.builders_live import a_round

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)
BATCH: dict[str, Any] = {"batch": True, "gpus_min": 0, "gpus_max": 0}


@pytest.fixture
def cluster() -> Cluster:
    cluster = a_cluster(policy="fifo")
    a_node(cluster, gpus=0, cores=8.0)
    return cluster


def seen(cluster: Cluster, later: timedelta = timedelta(0)) -> Observation:
    return observe(cluster.pk, (timezone.now() + later).timestamp(), 1)


def shown(cluster: Cluster, later: timedelta = timedelta(0)) -> set[str]:
    """Names of the jobs that a policy sees."""
    ids = {view.id for view in seen(cluster, later).snapshot.jobs}
    return set(Job.objects.filter(pk__in=ids).values_list("name", flat=True))


def start(job: Job, minutes_ago: float = 0.0) -> None:
    began = timezone.now() - minutes_ago * MINUTE
    Job.objects.filter(pk=job.pk).update(state="running", started_at=began)


def reason_of(job: Job, *others: Job) -> str:
    job.refresh_from_db()
    names = {str(other.pk): other.name for other in others}
    return reason_for_waiting(job.state, job.waiting_code, job.waiting_detail, names)


def events(cluster: Cluster) -> int:
    return RescheduleEvent.objects.filter(cluster=cluster, round=None).count()


def test_a_job_that_waits_for_a_start_is_shown_once_that_has_come(cluster: Cluster) -> None:
    first, follower = a_job(cluster, name="first"), a_job(cluster, name="follower")
    Dependency.objects.create(job=follower, on=first, condition="after")
    assert shown(cluster) == {"first"}
    start(first)
    assert shown(cluster) == {"first", "follower"}
    view = seen(cluster).snapshot.jobs.by_id(str(follower.pk))
    assert view.dependencies == (), "a policy would take the running job for one to wait for"


def test_a_job_is_shown_when_the_minutes_after_a_start_have_passed(cluster: Cluster) -> None:
    first, follower = a_job(cluster, name="first"), a_job(cluster, name="follower")
    Dependency.objects.create(job=follower, on=first, condition="after", delay=10 * MINUTE)
    start(first, minutes_ago=4)
    assert shown(cluster) == {"first"}
    assert shown(cluster, later=7 * MINUTE) == {"first", "follower"}


def test_a_job_with_alternatives_is_shown_once_one_is_satisfied(cluster: Cluster) -> None:
    others = [a_job(cluster, name=name) for name in ("one", "two")]
    either = a_job(cluster, name="either")
    for other in others:
        Dependency.objects.create(job=either, on=other, condition="afterok", alternative=True)
    assert shown(cluster) == {"one", "two"}
    Job.objects.filter(pk=others[1].pk).update(state="completed")
    assert shown(cluster) == {"one", "either"}


def test_a_job_behind_one_that_waits_for_a_start_is_not_shown_either(cluster: Cluster) -> None:
    first, second, third = (a_job(cluster, name=name) for name in ("first", "second", "third"))
    Dependency.objects.create(job=second, on=first, condition="after")
    Dependency.objects.create(job=third, on=second)
    assert shown(cluster) == {"first"}
    start(first)
    assert shown(cluster) == {"first", "second", "third"}


def test_a_running_job_stays_shown_whatever_it_waited_for(cluster: Cluster) -> None:
    first = a_job(cluster, name="first")
    runs = a_job(cluster, name="runs", state="running", started_at=timezone.now())
    Dependency.objects.create(job=runs, on=first, condition="after")
    assert shown(cluster) == {"first", "runs"}


def test_the_reason_says_for_which_start_a_job_waits(cluster: Cluster) -> None:
    team = a_team()
    common: dict[str, Any] = {"team": team, "user": a_user(team=team), **BATCH}
    first = a_job(cluster, name="first", state="held", **common)
    other = a_job(cluster, name="other", state="held", **common)
    at_start, later, either = (a_job(cluster, **common) for _ in range(3))
    Dependency.objects.create(job=at_start, on=first, condition="after")
    Dependency.objects.create(job=later, on=first, condition="after", delay=5 * MINUTE)
    for on in (first, other):
        Dependency.objects.create(job=either, on=on, condition="afterany", alternative=True)
    a_round(cluster)
    assert reason_of(at_start, first) == "It waits for first to start."
    assert reason_of(later, first) == "It waits until 5 minutes after the start of first."
    said = {f"It waits for {one} to end." for one in ("first or other", "other or first")}
    assert reason_of(either, first, other) in said


def test_a_round_is_asked_for_when_a_start_has_come(cluster: Cluster) -> None:
    first = a_job(cluster, name="first", state="held", **BATCH)
    follower = a_job(cluster, **BATCH)
    Dependency.objects.create(job=follower, on=first, condition="after")
    a_round(cluster)
    reconcile_clusters()
    assert events(cluster) == 0
    Job.objects.filter(pk=first.pk).update(started_at=timezone.now())
    reconcile_clusters()
    assert events(cluster) == 1
    reconcile_clusters()
    assert events(cluster) == 1, "one round is enough"
    a_round(cluster)
    follower.refresh_from_db()
    assert follower.state == "starting"


def test_a_round_is_asked_for_when_the_minutes_have_passed(cluster: Cluster) -> None:
    first = a_job(cluster, name="first", state="held", started_at=timezone.now(), **BATCH)
    follower = a_job(cluster, **BATCH)
    Dependency.objects.create(job=follower, on=first, condition="after", delay=5 * MINUTE)
    a_round(cluster)
    reconcile_clusters(timezone.now() + 4 * MINUTE)
    assert events(cluster) == 0
    reconcile_clusters(timezone.now() + 6 * MINUTE)
    assert events(cluster) == 1


def test_a_job_whose_alternatives_are_all_lost_fails(cluster: Cluster) -> None:
    team = a_team()
    others = [a_job(cluster, name=name, team=team, state="failed") for name in ("one", "two")]
    job = a_job(cluster, team=team)
    for other in others:
        Dependency.objects.create(job=job, on=other, condition="afterok", alternative=True)
    Job.objects.filter(pk=others[0].pk).update(state="queued")
    reconcile_clusters()
    job.refresh_from_db()
    assert job.state == "queued"
    Job.objects.filter(pk=others[0].pk).update(state="cancelled")
    reconcile_clusters()
    job.refresh_from_db()
    assert job.state == "failed"
    assert job.failure_reason.startswith("it waited for job ")
