"""Run times of ended jobs as they are kept, and the jobs whose unknown run time they tell."""

from datetime import timedelta
from random import Random
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest_django import DjangoAssertNumQueries

from clusters.models import Cluster, Node
from controlplane.loop.live.observe import observe
from jobs.forecasts.intervals import Group, UnknownRunTime
from jobs.forecasts.run_times import MOST_KEPT, remember_run_time, unknown_run_times
from jobs.models import Assignment, Job, RunTimeHistory, Team
from jobs.pages.selectors import QueueFilters, queue_page
from jobs.selectors import whole_jobs
from loadmaster.protocol import AssignmentState
from policies.contract import snapshot_json
from profiling.services import launch_ended
from tests.builders import a_cluster, a_job, a_kind, a_node, a_team, a_user
from tests.builders_pages import a_forecast, an_assignment

pytestmark = pytest.mark.django_db

BATCH: dict[str, Any] = {"batch": True, "gpus_min": 0, "gpus_max": 0, "preemptible": False}


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster()


@pytest.fixture
def node(cluster: Cluster) -> Node:
    return a_node(cluster, gpus=2)


@pytest.fixture
def team() -> Team:
    return a_team()


@pytest.fixture
def user(team: Team) -> User:
    return a_user(team=team)


def a_first_job(cluster: Cluster, **values: Any) -> Job:
    """A training job of a kind that never ran."""
    return a_job(cluster, kind=a_kind(), **values)


def end_launch(job: Job, node: Node, run_s: float, **values: Any) -> None:
    """End a launch of a job after this time."""
    now = timezone.now()
    given = {
        "state": AssignmentState.SUCCEEDED, "fence": 1, "gpus": job.gpus_max, "ended_at": now,
        "running_at": now - timedelta(seconds=run_s),
    }  # fmt: skip
    launch_ended(Assignment.objects.create(job=job, node=node, **{**given, **values}))


def remember(job: Job, *run_s: float) -> None:
    """Learn run times as if such jobs had ended."""
    for each_s in run_s:
        remember_run_time(job, each_s, timezone.now())


def run_time_of(job: Job, **values: Any) -> UnknownRunTime | None:
    return unknown_run_times([job], timezone.now(), **values).get(job.pk)


def kept_s(key: str) -> list[float]:
    return [round(each_s) for each_s in RunTimeHistory.objects.get(key=key).newest_s]


@pytest.mark.parametrize("values", [{}, BATCH])
def test_end_of_any_job_adds_its_run_time(
    cluster: Cluster, node: Node, values: dict[str, Any]
) -> None:
    end_launch(a_first_job(cluster, **values), node, 90.0)
    assert kept_s("all") == [90]


def test_failed_launch_adds_no_run_time(cluster: Cluster, node: Node) -> None:
    end_launch(a_first_job(cluster), node, 90.0, state=AssignmentState.FAILED)
    assert not RunTimeHistory.objects.exists()


def test_launches_before_a_preemption_count_towards_the_run_time(
    cluster: Cluster, node: Node
) -> None:
    job = a_first_job(cluster)
    end_launch(job, node, 60.0, state=AssignmentState.PREEMPTED)
    end_launch(job, node, 30.0, fence=2)
    assert kept_s("all") == [90]


def test_batch_job_that_began_anew_counts_its_last_launch(cluster: Cluster, node: Node) -> None:
    job = a_first_job(cluster, **BATCH)
    end_launch(job, node, 60.0, state=AssignmentState.FAILED)
    end_launch(job, node, 30.0, fence=2)
    assert kept_s("all") == [30]


def test_oldest_run_times_of_a_group_are_dropped(cluster: Cluster) -> None:
    remember(a_first_job(cluster), *range(MOST_KEPT + 5))
    kept = kept_s("all")
    assert (len(kept), kept[0], kept[-1]) == (MOST_KEPT, MOST_KEPT + 4, 5)


@pytest.mark.parametrize(
    ("values", "is_unknown"),
    [
        ({}, True),
        ({"state": "held"}, True),
        ({"state": "profiling"}, True),
        ({"state": "completed"}, False),
        ({"state": "cancelling"}, False),
        ({"walltime_s": 60.0}, False),
        (BATCH, True),
        ({**BATCH, "walltime_s": 60.0}, False),
    ],
)
def test_run_time_without_walltime_and_first_run_is_unknown(
    cluster: Cluster, values: dict[str, Any], is_unknown: bool
) -> None:
    assert (run_time_of(a_first_job(cluster, **values)) is not None) == is_unknown


def test_run_time_of_a_kind_that_ran_is_known(cluster: Cluster) -> None:
    assert run_time_of(a_job(cluster)) is None


def test_run_time_with_an_expected_end_is_known(cluster: Cluster) -> None:
    job = a_first_job(cluster, **BATCH)
    assert run_time_of(job, known={job.pk}) is None


@pytest.mark.parametrize(
    ("known", "is_unknown"),
    [({}, True), ({"predicted_run_s": 60.0}, False), ({"steps_per_s": 2.0}, False)],
)
def test_running_job_is_unknown_without_speed_and_prediction(
    cluster: Cluster, node: Node, user: User, known: dict[str, Any], is_unknown: bool
) -> None:
    job = a_first_job(cluster, user=user, team=user.teams.get(), state="running")
    an_assignment(job, node, **{"predicted_run_s": None, "steps_per_s": None, **known})
    loaded = whole_jobs(user).get(pk=job.pk)
    assert (run_time_of(loaded) is not None) == is_unknown


def test_running_job_is_compared_with_longer_runs(cluster: Cluster, node: Node, user: User) -> None:
    job = a_first_job(cluster, user=user, team=user.teams.get(), state="running")
    an_assignment(job, node, predicted_run_s=None, steps_per_s=None)  # runs for a minute
    remember(job, *[5.0] * 30, *[600.0] * 25)
    run_time = run_time_of(whole_jobs(user).get(pk=job.pk))
    assert run_time is not None
    assert (run_time.low_s, run_time.jobs) == (600.0, 25)


@pytest.mark.parametrize(
    ("values", "group"),
    [
        ({}, Group.USER),
        ({"gpus_max": 2}, Group.CLUSTER),
        ({"gpus_min": 2, "gpus_max": 2}, Group.CLUSTER),
        ({"batch": True}, Group.CLUSTER),
    ],
)
def test_comparable_jobs_have_as_many_gpus_and_the_same_form(
    cluster: Cluster, user: User, team: Team, values: dict[str, Any], group: Group
) -> None:
    remember(a_first_job(cluster, user=user, team=team), *[60.0] * 20)
    run_time = run_time_of(a_first_job(cluster, user=user, team=team, **values))
    assert run_time is not None
    assert (run_time.group, run_time.jobs) == (group, 20)


def test_colleagues_jobs_count_before_those_of_others(
    cluster: Cluster, user: User, team: Team
) -> None:
    remember(a_first_job(cluster), *[5.0] * 40)
    remember(a_first_job(cluster, user=a_user(team=team), team=team), *[60.0] * 20)
    run_time = run_time_of(a_first_job(cluster, user=user, team=team))
    assert run_time is not None
    assert (run_time.group, run_time.low_s) == (Group.TEAM, 60.0)


def test_jobs_of_other_clusters_do_not_count(cluster: Cluster, user: User, team: Team) -> None:
    remember(a_first_job(a_cluster(), user=user, team=team), *[60.0] * 40)
    run_time = run_time_of(a_first_job(cluster, user=user, team=team))
    assert run_time is not None
    assert run_time.words == "unknown until a first run"


def test_many_unknown_jobs_take_one_query(
    cluster: Cluster, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    jobs = [a_first_job(cluster) for _ in range(5)]
    jobs += [a_first_job(a_cluster(), **BATCH) for _ in range(5)]
    with django_assert_num_queries(1):
        assert len(unknown_run_times(jobs, timezone.now())) == 10


def test_known_run_times_take_no_query(
    cluster: Cluster, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    jobs = [a_job(cluster) for _ in range(3)]
    with django_assert_num_queries(0):
        assert unknown_run_times(jobs, timezone.now()) == {}


def test_queue_page_takes_as_many_queries_for_many_jobs_as_for_one(
    cluster: Cluster, user: User, team: Team, django_assert_max_num_queries: Any
) -> None:
    remember(a_first_job(cluster, user=user, team=team), *[60.0] * 20)
    with django_assert_max_num_queries(99) as for_one:
        queue_page(user, [team], QueueFilters(), 1)
    for _ in range(20):
        a_first_job(cluster, user=user, team=team)
    with django_assert_max_num_queries(len(for_one)):
        _, rows = queue_page(user, [team], QueueFilters(), 1)
    spans = [row.run_time.span for row in rows if row.run_time is not None]
    assert spans == ["about 1 min"] * 21


@given(
    st.lists(st.tuples(st.floats(0.0, 12.0), st.floats(0.2, 2.0)), min_size=1, max_size=3),
    st.integers(20, 60),
    st.integers(0, 2**32),
)
@settings(max_examples=6)
def test_interval_of_a_drawn_history_covers_later_jobs(
    programs: list[tuple[float, float]], count: int, seed: int
) -> None:
    # Users run programs with log-normal run times; all draw from the same programs.
    random = Random(seed)
    cluster = a_cluster()
    team = a_team()
    people = [a_user(team=team) for _ in range(2)]
    hits = []
    for _ in range(4):
        RunTimeHistory.objects.all().delete()
        for _ in range(count):
            job = Job(cluster=cluster, team=team, user=random.choice(people))
            remember_run_time(job, random.lognormvariate(*random.choice(programs)), timezone.now())
        run_time = run_time_of(a_first_job(cluster, team=team, user=random.choice(people)))
        assert run_time is not None
        assert run_time.low_s is not None
        assert run_time.high_s is not None
        for _ in range(200):
            later_s = random.lognormvariate(*random.choice(programs))
            hits.append(run_time.low_s <= later_s <= run_time.high_s)
    assert sum(hits) / len(hits) >= 0.8 - 0.15


def test_policies_see_nothing_of_the_interval(cluster: Cluster, node: Node) -> None:
    job = a_first_job(cluster)
    a_first_job(cluster, **BATCH)
    before = snapshot_json.to_json(observe(cluster.pk, 1e9, 1).snapshot)
    remember(job, *[60.0] * 30)
    assert snapshot_json.to_json(observe(cluster.pk, 1e9, 1).snapshot) == before


def test_rest_and_page_show_the_interval(
    cluster: Cluster, user: User, team: Team, client: Client
) -> None:
    job = a_first_job(cluster, user=user, team=team)
    a_forecast(job, end_at=None)
    remember(job, *[240.0] * 10, *[7200.0] * 47)
    client.force_login(user)
    words = "between 4 min and 2 h, as 80% of 57 similar jobs of its user"
    shown = client.get(f"/api/v1/jobs/{job.pk}/").json()["run_time"]
    assert shown == {
        "low_s": 240.0, "high_s": 7200.0, "jobs": 57, "group": "user", "words": words
    }  # fmt: skip
    (listed,) = client.get("/api/v1/jobs/").json()["results"]
    assert listed["run_time"] == shown
    page = client.get(f"/jobs/{job.pk}/").content.decode()
    assert "between 4 min and 2 h<small>as 80% of 57 similar jobs of its user</small>" in page
    assert "Runs between 4 min and 2 h" in client.get("/").content.decode()


def test_page_says_unknown_without_enough_jobs(
    cluster: Cluster, user: User, team: Team, client: Client
) -> None:
    job = a_first_job(cluster, user=user, team=team)
    client.force_login(user)
    page = client.get(f"/jobs/{job.pk}/").content.decode()
    assert "<dt>Run time</dt><dd>unknown<small>until a first run</small></dd>" in page
    shown = client.get(f"/api/v1/jobs/{job.pk}/").json()["run_time"]
    assert (shown["low_s"], shown["group"]) == (None, None)


def test_job_with_an_expected_end_shows_no_interval(
    cluster: Cluster, user: User, team: Team, client: Client
) -> None:
    job = a_first_job(cluster, user=user, team=team, **BATCH)
    a_forecast(job)
    client.force_login(user)
    assert client.get(f"/api/v1/jobs/{job.pk}/").json()["run_time"] is None
    assert "<dt>Run time</dt>" not in client.get(f"/jobs/{job.pk}/").content.decode()
