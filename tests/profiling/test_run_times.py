"""Jobs that report no steps: their run time is the speed of their kind."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from clusters.models import Cluster, Node
from jobs.models import Assignment, Job, Kind
from loadmaster.protocol import AssignmentState
from profiling.measurements import SHORTEST_RUN_S
from profiling.models import Measurement, Profile
from profiling.selectors import kind_views, load_pool
from profiling.services import launch_ended
from tests.builders import a_cluster, a_job, a_kind, a_node
from tests.builders_profiling import a_launch

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster()


@pytest.fixture
def node(cluster: Cluster) -> Node:
    return a_node(cluster)


def silent_run(job: Job, node: Node, run_s: float, **values: Any) -> Assignment:
    ended = timezone.now()
    began = ended - timedelta(seconds=run_s)
    given = {"state": AssignmentState.SUCCEEDED, "running_at": began, "ended_at": ended, **values}
    launch = a_launch(job, node, steps=0, setup_s=None, **given)
    launch_ended(launch)
    return launch


def a_silent_job(cluster: Cluster, kind: Kind | None = None, steps: int = 10) -> Job:
    return a_job(cluster, kind=kind or a_kind(), state="running", total_steps=steps)


def test_the_run_time_of_a_job_without_steps_predicts_the_next_of_its_kind(
    cluster: Cluster, node: Node
) -> None:
    job = a_silent_job(cluster)
    silent_run(job, node, 20.0)
    profile = Profile.objects.get()
    assert profile.steps_per_s == pytest.approx(0.5)
    assert profile.source == "measured"
    assert Kind.objects.get(pk=job.kind_id).reports_steps is False
    silent_run(a_silent_job(cluster, job.kind), node, 40.0)
    assert Profile.objects.get().steps_per_s == pytest.approx(0.375)


def test_a_run_time_far_from_the_last_counts_at_once_as_no_job_tells_it(
    cluster: Cluster, node: Node
) -> None:
    job = a_silent_job(cluster)
    silent_run(job, node, 20.0)
    silent_run(a_silent_job(cluster, job.kind), node, 400.0)
    assert Profile.objects.get().steps_per_s == pytest.approx((0.5 + 0.025) / 2)
    assert not Measurement.objects.filter(held=True).exists()


def test_runs_of_milliseconds_break_nothing(cluster: Cluster, node: Node) -> None:
    kind = a_kind()
    for run_s in (0.0, 0.001, -5.0, 0.002):
        silent_run(a_silent_job(cluster, kind, steps=1), node, run_s)
    assert Profile.objects.get().steps_per_s == pytest.approx(1 / SHORTEST_RUN_S)
    (view,) = kind_views(cluster, [kind.pk])
    assert all(t.is_known for t in view.throughputs)


@pytest.mark.parametrize(
    "values",
    [
        {"state": AssignmentState.FAILED},
        {"state": AssignmentState.PREEMPTED},
        {"desired": "preempt"},
        {"steps_quota": 5},
        {"share": 0.5},
        {"cpu_quota": 0.5},
        {"purpose": "profiling"},
        {"rank": 1, "world_size": 2},
    ],
)
def test_only_whole_runs_that_succeeded_count(
    cluster: Cluster, node: Node, values: dict[str, Any]
) -> None:
    silent_run(a_silent_job(cluster), node, 20.0, **values)
    assert not Measurement.objects.exists()


def test_a_kind_that_reports_steps_learns_nothing_from_a_silent_run(
    cluster: Cluster, node: Node
) -> None:
    job = a_silent_job(cluster)
    launch_ended(a_launch(job, node, steps_per_s=2.0, state=AssignmentState.SUCCEEDED))
    silent_run(a_silent_job(cluster, job.kind), node, 20.0)
    assert Profile.objects.get().steps_per_s == pytest.approx(2.0)


def test_reported_steps_replace_run_times(cluster: Cluster, node: Node) -> None:
    job = a_silent_job(cluster)
    silent_run(job, node, 20.0)
    launch_ended(a_launch(job, node, steps_per_s=2.0, state=AssignmentState.SUCCEEDED))
    profile = Profile.objects.get()
    assert profile.steps_per_s == pytest.approx(2.0)
    assert profile.samples == 1


def test_run_times_say_nothing_of_gpu_types_to_other_kinds(cluster: Cluster, node: Node) -> None:
    kind = a_kind()
    silent_run(a_silent_job(cluster, kind), node, 20.0)
    silent_run(a_silent_job(cluster, kind), a_node(cluster, gpu_type="T4"), 20.0)
    assert not load_pool().ratios
