"""Cost of a restart and work lost by a stop, by kind."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from clusters.models import Cluster, Node
from controlplane.loop.live.observe import observe
from jobs.models import Assignment, Job, Kind
from loadmaster.protocol import AssignmentState
from policies.contract.snapshot import JobView
from profiling.services import launch_ended
from profiling.speeds import ALPHA
from tests.builders import a_cluster, a_job, a_node
from tests.builders_profiling import a_launch

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster(restart_cost_s=7.0, min_run_factor=10.0)


@pytest.fixture
def node(cluster: Cluster) -> Node:
    return a_node(cluster)


@pytest.fixture
def job(cluster: Cluster) -> Job:
    return a_job(cluster, state="running")


def stopped(job: Job, node: Node, stop_s: float = 3.0, **values: Any) -> Kind:
    """The job's kind after a launch of 20 steps at 2 steps/s that was stopped."""
    ended = timezone.now()
    given = {
        "state": AssignmentState.PREEMPTED, "desired": "preempt", "ended_at": ended,
        "desired_at": ended - timedelta(seconds=stop_s),
        "running_at": ended - timedelta(seconds=10), **values,
    }  # fmt: skip
    launch_ended(a_launch(job, node, **given))
    return Kind.objects.get(pk=job.kind_id)


def seen(job: Job) -> JobView:
    now_s = timezone.now().timestamp()
    (view,) = observe(job.cluster_id, now_s, 1).snapshot.jobs
    return view


def test_the_clusters_figure_holds_until_a_stop_is_measured(job: Job) -> None:
    view = seen(job)
    assert (view.restart_cost_s, view.min_run_s) == (7.0, 70.0)


def test_stop_and_setup_are_the_restart_cost_of_the_kind(job: Job, node: Node) -> None:
    kind = stopped(job, node, checkpoint_steps=20)
    assert kind.stop_s == pytest.approx(3.0)
    assert kind.setup_s == 1.0
    assert seen(job).restart_cost_s == pytest.approx(4.0)
    assert seen(job).min_run_s == pytest.approx(40.0)
    assert stopped(job, node, 8.0).stop_s == pytest.approx(3.0 + ALPHA * 5.0)


def test_a_job_that_waits_after_a_stop_pays_its_next_launch_alone(job: Job, node: Node) -> None:
    stopped(job, node, checkpoint_steps=20)
    Job.objects.update(state="queued", checkpoint_steps=20)
    assert seen(job).restart_cost_s == pytest.approx(1.0)
    assert seen(job).min_run_s == pytest.approx(40.0)


def test_a_kind_that_saves_when_it_is_stopped_loses_nothing(job: Job, node: Node) -> None:
    kind = stopped(job, node, checkpoint_steps=20)
    assert (kind.saves_at_stop, kind.lost_s) == (True, 0.0)
    a_launch(job, node)
    assert seen(job).restart_cost_s == pytest.approx(4.0)


def test_work_since_the_last_checkpoint_is_lost(job: Job, node: Node) -> None:
    kind = stopped(job, node, checkpoint_steps=5)
    assert kind.saves_at_stop is False
    assert kind.lost_s == pytest.approx(7.5)
    a_launch(job, node, checkpoint_steps=10, running_at=timezone.now() - timedelta(seconds=30))
    assert seen(job).restart_cost_s == pytest.approx(4.0 + 15.0, abs=0.5)


def test_a_launch_without_a_checkpoint_would_lose_its_whole_run(job: Job, node: Node) -> None:
    a_launch(job, node, running_at=timezone.now() - timedelta(seconds=30))
    assert seen(job).restart_cost_s == pytest.approx(37.0, abs=0.5)
    assert seen(job).min_run_s == 70.0


@pytest.mark.parametrize(
    "values",
    [
        {"desired": "run"},
        {"desired": "cancel"},
        {"state": AssignmentState.LOST},
        {"running_at": None},
        {"rank": 1, "world_size": 2},
        {"purpose": "profiling"},
    ],
)
def test_other_ends_say_nothing_of_stops(job: Job, node: Node, values: dict[str, Any]) -> None:
    assert stopped(job, node, **values).stop_s is None


def test_a_clock_that_was_set_back_says_nothing_of_stops(job: Job, node: Node) -> None:
    assert stopped(job, node, -60.0).stop_s is None


def test_a_stop_before_the_first_step_says_nothing_of_checkpoints(job: Job, node: Node) -> None:
    kind = stopped(job, node, steps=0)
    assert kind.stop_s is not None
    assert kind.saves_at_stop is None


def test_a_job_without_reports_is_shown_with_the_steps_of_its_time(job: Job, node: Node) -> None:
    Kind.objects.update(reports_steps=False)
    began = timezone.now() - timedelta(seconds=25)
    launch = a_launch(job, node, steps=0, running_at=began, predicted_steps_per_s=2.0)
    assert seen(job).remaining_steps == pytest.approx(50, abs=2)
    Assignment.objects.filter(pk=launch.pk).update(running_at=began - timedelta(hours=1))
    assert seen(job).remaining_steps == 10
