"""Run times of ended batch jobs: what is learnt, in which transaction's rows, and at what cost."""

from datetime import timedelta
from math import inf
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from clusters.models import Cluster, Node
from controlplane.loop.live.observe import observe
from jobs.models import Assignment, Job, Kind
from loadmaster.protocol import AssignmentState, ReasonClass
from profiling.models import PredictedRun, Profile, RunTimeGroup
from profiling.run_times.history import expected
from profiling.services import launch_ended
from tests.builders import a_cluster, a_job, a_kind, a_node, a_team, a_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster()


@pytest.fixture
def node(cluster: Cluster) -> Node:
    return a_node(cluster, gpus=0, cores=8.0)


@pytest.fixture
def user() -> User:
    return a_user()


@pytest.fixture
def kind() -> Kind:
    return a_kind()


def a_batch_job(cluster: Cluster, user: User, kind: Kind, **values: Any) -> Job:
    given = {
        "batch": True, "gpus_min": 0, "gpus_max": 0, "preemptible": False, "total_steps": 1,
        "name": "fit", "walltime_s": 3600.0,
    }  # fmt: skip
    return a_job(cluster, user=user, kind=kind, **{**given, **values})


def ended(job: Job, node: Node, run_s: float, **values: Any) -> Assignment:
    """A launch of a job that has just ended."""
    now = timezone.now()
    given = {
        "state": AssignmentState.SUCCEEDED, "fence": 1, "gpus": 0, "ended_at": now,
        "running_at": now - timedelta(seconds=run_s), "accepted_at": now - timedelta(days=1),
    }  # fmt: skip
    launch = Assignment.objects.create(job=job, node=node, **{**given, **values})
    launch_ended(launch)
    return launch


def predicted(cluster: Cluster, job: Job, predictor: str = "data_driven") -> tuple[float, str]:
    cluster.predictor = predictor
    return rounded(expected(cluster, [job])[job.pk])


def rounded(found: tuple[float, str]) -> tuple[float, str]:
    """Whole seconds, as virtual launches end a moment late."""
    return (found[0] if found[0] == inf else float(round(found[0])), found[1])


def test_the_next_job_alike_is_expected_to_run_as_long(
    cluster: Cluster, node: Node, user: User, kind: Kind
) -> None:
    for run_s in (100.0, 300.0):
        ended(a_batch_job(cluster, user, kind), node, run_s)
    job = a_batch_job(cluster, user, kind)
    assert predicted(cluster, job) == (200.0, "user+name+kind+request")
    assert predicted(cluster, job, "last_two") == (200.0, "last_two")
    assert predicted(cluster, job, "walltime") == (3600.0, "walltime")
    elsewhere = a_batch_job(a_cluster(), user, kind)
    assert predicted(elsewhere.cluster, elsewhere) == (3600.0, "walltime"), "of this cluster alone"
    stranger = a_batch_job(cluster, a_user(), a_kind(), walltime_s=None)
    assert predicted(cluster, stranger) == (inf, "")


@pytest.mark.parametrize(
    ("run_s", "values", "learnt"),
    [
        (100.0, {}, True),
        (100.0, {"state": AssignmentState.FAILED, "reason_class": ReasonClass.USER}, False),
        (3600.0, {"state": AssignmentState.FAILED, "reason_class": ReasonClass.LIMIT}, True),
        (100.0, {"state": AssignmentState.FAILED, "reason_class": ReasonClass.LIMIT}, False),
        (100.0, {"state": AssignmentState.PREEMPTED}, False),
        (100.0, {"desired": "cancel"}, False),
        (100.0, {"rank": 1, "world_size": 2}, False),
    ],
)
def test_jobs_that_ended_by_themselves_or_at_their_walltime_teach_something(
    cluster: Cluster, node: Node, user: User, kind: Kind,
    run_s: float, values: dict[str, Any], learnt: bool,
) -> None:  # fmt: skip
    ended(a_batch_job(cluster, user, kind), node, run_s, **values)
    assert RunTimeGroup.objects.exists() == learnt
    assert not Profile.objects.filter(kind=kind, source="measured").exists()


def test_the_last_launch_of_a_job_that_was_preempted_says_nothing_of_the_whole(
    cluster: Cluster, node: Node, user: User, kind: Kind
) -> None:
    ended(a_batch_job(cluster, user, kind, preemptible=True), node, 50.0, fence=2)
    assert not RunTimeGroup.objects.exists()
    ended(a_batch_job(cluster, user, kind), node, 50.0, fence=2)
    assert RunTimeGroup.objects.exists(), "this one began anew"


def test_an_end_stores_how_far_off_its_prediction_was(
    cluster: Cluster, node: Node, user: User, kind: Kind
) -> None:
    job = a_batch_job(cluster, user, kind)
    ended(job, node, 90.0, predicted_run_s=60.0, predicted_source="last_two")
    ended(a_batch_job(cluster, user, kind), node, 90.0)
    (row,) = PredictedRun.objects.all()
    assert (row.job, row.user, row.team) == (job, user, job.team)
    assert (row.source, row.predicted_s, round(row.run_s)) == ("last_two", 60.0, 90)


def test_predictions_take_as_many_queries_for_many_jobs_as_for_one(
    cluster: Cluster, node: Node, user: User, kind: Kind,
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:  # fmt: skip
    jobs = [a_batch_job(cluster, user, kind, name=f"{chr(97 + i)}-x") for i in range(8)]
    for job in jobs:
        ended(job, node, 10.0)
    for some in (jobs[:1], jobs):
        with django_assert_num_queries(1):
            found = expected(cluster, some)
        assert len(found) == len(some)
    with django_assert_num_queries(0):
        cluster.predictor = "walltime"
        expected(cluster, jobs)


def test_only_the_newest_run_times_of_a_group_are_kept(
    cluster: Cluster, node: Node, user: User, kind: Kind
) -> None:
    for run_s in range(1, 9):
        ended(a_batch_job(cluster, user, kind), node, float(run_s))
    kept = RunTimeGroup.objects.values_list("newest_s", flat=True)
    assert {tuple(round(s) for s in times) for times in kept} == {(8, 7, 6, 5, 4)}
    assert RunTimeGroup.objects.count() == 7


def test_a_snapshot_has_the_expected_run_time_and_a_launch_keeps_its_own(
    cluster: Cluster, node: Node, user: User, kind: Kind
) -> None:
    ended(a_batch_job(cluster, user, kind), node, 100.0)
    waits, training = a_batch_job(cluster, user, kind), a_job(cluster)
    now = timezone.now()
    since = {"state": "running", "running_at": now, "fence": 1, "gpus": 0}
    told = {"predicted_run_s": 40.0, "predicted_source": "last_two"}
    runs = a_batch_job(cluster, user, kind, state="running", fence=1)
    Assignment.objects.create(job=runs, node=node, **since, **told)

    def seen(later_s: float) -> dict[str, tuple[float, str]]:
        snapshot = observe(cluster.pk, now.timestamp() + later_s, 1).snapshot
        return {j.id: rounded((j.expected_run_s, j.expected_source)) for j in snapshot.jobs}

    found = seen(10.0)
    assert found[str(waits.pk)] == (100.0, "user+name+kind+request")
    assert found[str(runs.pk)] == (40.0, "last_two")
    assert found[str(training.pk)] == (inf, "")
    assert seen(50.0)[str(runs.pk)] == (80.0, "last_two"), "it has outlived its prediction"


def test_teams_of_a_user_share_what_is_known_of_the_user(
    cluster: Cluster, node: Node, user: User, kind: Kind
) -> None:
    for run_s in (10.0, 30.0):
        ended(a_batch_job(cluster, user, kind, team=a_team()), node, run_s)
    job = a_batch_job(cluster, user, a_kind(), team=a_team())
    assert predicted(cluster, job, "last_two") == (20.0, "last_two")
