"""Roles change, nodes come and go, and calls are missed: no job waits for a measurement that never
comes.
"""

from datetime import timedelta

import pytest
from django.utils import timezone

from clusters.models import Cluster, Node, RescheduleEvent
from jobs.lifecycle import JobMove
from jobs.models import Assignment, Job, JobEvent
from jobs.moves import move_job
from loadmaster.protocol import AssignmentState
from profiling.models import Profile, ProfileRun
from profiling.offers import RETURN_PATIENCE
from profiling.runs import PATIENCE
from profiling.selectors import profile_requests
from profiling.services import profile_run_ended
from tests.builders import a_cluster, a_job, a_kind, a_node
from tests.builders_profiling import (
    a_launch,
    a_new_job,
    a_profiled_job,
    a_profiling_node,
    crash,
    end,
    measure,
    place,
    reconcile_profiles,
    run_of,
    state_of,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster()


def change(node: Node, **values: object) -> None:
    Node.objects.filter(pk=node.pk).update(**values)


def test_nothing_changes_while_runs_are_wanted_and_offered(cluster: Cluster) -> None:
    a_profiling_node(cluster)
    job = a_profiled_job(cluster, gpus=2)
    before = list(ProfileRun.objects.values())
    reconcile_profiles(timezone.now())
    assert list(ProfileRun.objects.values()) == before
    assert state_of(job) == "profiling"


def test_a_batch_job_without_gpus_gets_no_assumed_speed(cluster: Cluster) -> None:
    a_profiling_node(cluster)
    job = a_job(cluster, kind=a_kind(), batch=True, gpus_min=0, gpus_max=0, total_steps=1)
    reconcile_profiles(timezone.now())
    assert not Profile.objects.filter(kind=job.kind).exists()
    assert not job.events.filter(event="warning").exists()


def test_a_role_that_changes_in_mid_profiling_releases_the_job_with_estimates(
    cluster: Cluster,
) -> None:
    v100, t4 = a_profiling_node(cluster, "V100", 1), a_profiling_node(cluster, "T4", 1)
    job = a_profiled_job(cluster)
    measure(run_of(job, "V100"), v100)
    change(t4, role="production")
    reconcile_profiles(timezone.now())
    assert state_of(job) == "queued"
    assert not ProfileRun.objects.filter(gpu_type__name="T4").exists()


def test_a_role_that_changes_before_anything_is_measured_releases_the_job_on_an_assumption(
    cluster: Cluster,
) -> None:
    node = a_profiling_node(cluster, "V100", 1)
    job = a_profiled_job(cluster, total_steps=100, walltime_s=100.0)
    change(node, role="production")
    reconcile_profiles(timezone.now())
    assert state_of(job) == "queued"
    assert Profile.objects.get(kind=job.kind).source == "declared"


def test_a_run_under_way_is_let_end_though_its_node_changed_role(cluster: Cluster) -> None:
    node = a_profiling_node(cluster, "V100", 1)
    job = a_profiled_job(cluster)
    launch = place(run_of(job), node)
    change(node, role="production")
    reconcile_profiles(timezone.now())
    assert state_of(job) == "profiling"
    profile_run_ended(end(launch))
    assert state_of(job) == "queued"
    assert Profile.objects.get(kind=job.kind).source == "measured"


def test_a_node_lost_in_mid_profiling_is_waited_for_a_while_if_nothing_else_is_known(
    cluster: Cluster,
) -> None:
    node = a_profiling_node(cluster, "V100", 1)
    job = a_profiled_job(cluster)
    launch = place(run_of(job), node, steps=1)
    change(node, state="lost")
    profile_run_ended(end(launch, AssignmentState.LOST))
    reconcile_profiles(timezone.now())
    assert state_of(job) == "profiling"
    reconcile_profiles(timezone.now() + RETURN_PATIENCE + timedelta(seconds=1))
    assert state_of(job) == "queued"


def test_a_lost_node_that_comes_back_measures_on(cluster: Cluster) -> None:
    node = a_profiling_node(cluster, "V100", 1)
    job = a_profiled_job(cluster)
    change(node, state="lost")
    reconcile_profiles(timezone.now())
    change(node, state="ready")
    measure(run_of(job), node)
    assert state_of(job) == "queued"


def test_another_nodes_loss_is_not_waited_for_once_something_is_measured(cluster: Cluster) -> None:
    v100, t4 = a_profiling_node(cluster, "V100", 1), a_profiling_node(cluster, "T4", 1)
    job = a_profiled_job(cluster)
    measure(run_of(job, "V100"), v100)
    change(t4, state="lost")
    reconcile_profiles(timezone.now())
    assert state_of(job) == "queued"


def test_a_job_does_not_wait_for_ever_for_a_device_once_something_is_measured(
    cluster: Cluster,
) -> None:
    v100 = a_profiling_node(cluster, "V100", 1)
    a_profiling_node(cluster, "T4", 1)
    job = a_profiled_job(cluster)
    measure(run_of(job, "V100"), v100)
    reconcile_profiles(timezone.now())
    assert state_of(job) == "profiling"
    reconcile_profiles(timezone.now() + PATIENCE + timedelta(seconds=1))
    assert state_of(job) == "queued"
    assert run_of(job, "T4").state == ProfileRun.State.WANTED


def test_a_new_profiling_node_measures_for_queued_jobs_without_holding_them_up(
    cluster: Cluster,
) -> None:
    v100 = a_profiling_node(cluster, "V100", 1)
    first = a_profiled_job(cluster)
    measure(run_of(first), v100)
    second = a_new_job(cluster, first.kind)
    t4 = a_profiling_node(cluster, "T4", 1)
    reconcile_profiles(timezone.now())
    reconcile_profiles(timezone.now())
    assert ProfileRun.objects.filter(kind=first.kind, gpu_type__name="T4").count() == 1
    assert (state_of(first), state_of(second)) == ("queued", "queued")
    measure(ProfileRun.objects.get(gpu_type__name="T4"), t4)
    assert Profile.objects.get(kind=first.kind, gpu_type__name="T4").source == "measured"
    assert (state_of(first), state_of(second)) == ("queued", "queued")


def test_a_run_lent_by_a_job_that_now_runs_passes_to_another_that_queues(cluster: Cluster) -> None:
    kind = a_kind(steps_per_s={("V100", 1): 2.0})
    first = a_new_job(cluster, kind)
    a_profiling_node(cluster, "T4", 1)
    reconcile_profiles(timezone.now())
    assert run_of(first, "T4").state == ProfileRun.State.WANTED
    move_job(first, JobMove.PLACE)
    second = a_new_job(cluster, kind)
    reconcile_profiles(timezone.now())
    assert not ProfileRun.objects.filter(job=first).exists()
    assert run_of(second, "T4").state == ProfileRun.State.WANTED


def test_a_queued_job_of_which_nothing_is_known_is_profiled_when_a_node_can(
    cluster: Cluster,
) -> None:
    job = a_new_job(cluster)
    a_profiling_node(cluster, "V100", 1)
    reconcile_profiles(timezone.now())
    assert state_of(job) == "profiling"


def test_a_queued_job_of_which_nothing_is_known_runs_on_an_assumption_where_no_node_can_measure(
    cluster: Cluster,
) -> None:
    a_node(cluster)
    job = a_new_job(cluster)
    reconcile_profiles(timezone.now())
    assert state_of(job) == "queued"
    assert Profile.objects.filter(kind=job.kind).exists()


def test_a_job_that_waits_without_any_run_is_helped(cluster: Cluster) -> None:
    a_node(cluster)
    job = a_job(cluster, state="profiling", kind=a_kind(steps_per_s={("V100", 1): 1.0}))
    reconcile_profiles(timezone.now())
    assert state_of(job) == "queued"


def test_a_run_whose_end_was_missed_is_wanted_again(cluster: Cluster) -> None:
    node = a_profiling_node(cluster, "V100", 1)
    job = a_profiled_job(cluster)
    end(place(run_of(job), node, steps=1), AssignmentState.LOST)
    assert run_of(job).state == ProfileRun.State.RUNNING
    reconcile_profiles(timezone.now())
    assert run_of(job).state == ProfileRun.State.WANTED


def test_a_job_whose_profile_runs_fail_rests_longer_and_longer_before_it_is_measured_again(
    cluster: Cluster,
) -> None:
    node = a_profiling_node(cluster, gpus=2)
    job = a_profiled_job(cluster, gpus=2)
    other = a_profiled_job(cluster)
    wanted_by_others = [r for r in profile_requests(cluster) if r.job == str(other.pk)]
    for rest_s in (cluster.heartbeat_s, 2 * cluster.heartbeat_s, 4 * cluster.heartbeat_s):
        run = run_of(job) if rest_s < 4 * cluster.heartbeat_s else run_of(job, gpus=2)
        crash(run, node, reason="no route to host", reason_class="node")
        failed = timezone.now()
        assert profile_requests(cluster) == tuple(wanted_by_others), (
            "the job's other configurations rest too"
        )
        RescheduleEvent.objects.all().delete()
        reconcile_profiles(failed + timedelta(seconds=0.8 * rest_s))
        assert profile_requests(cluster) == tuple(wanted_by_others)
        reconcile_profiles(failed + timedelta(seconds=rest_s))
        assert {r.gpus for r in profile_requests(cluster) if r.job == str(job.pk)} == {1, 2}
        assert list(RescheduleEvent.objects.values_list("reason", "job")) == [("profile", job.pk)]


def test_the_runs_of_a_held_job_are_dropped(cluster: Cluster) -> None:
    a_profiling_node(cluster, "V100", 1)
    job = a_profiled_job(cluster)
    move_job(job, JobMove.HOLD)
    reconcile_profiles(timezone.now())
    assert not ProfileRun.objects.exists()


def test_a_job_that_runs_on_an_assumption_is_measured_while_it_runs(cluster: Cluster) -> None:
    node = a_node(cluster)
    kind = a_kind(steps_per_s={("V100", 1): 100.0}, source="estimated")
    job = a_job(cluster, kind=kind, state="running")
    a_launch(job, node, steps_per_s=2.0, steps=20)
    reconcile_profiles(timezone.now())
    profile = Profile.objects.get(kind=kind)
    assert profile.source == "measured"
    assert profile.steps_per_s == pytest.approx(2.0)


def test_a_running_gang_is_measured_though_each_of_its_parts_was(cluster: Cluster) -> None:
    nodes = a_node(cluster), a_node(cluster)
    job = a_job(cluster, kind=a_kind(steps_per_s={("V100", 1): 100.0}), state="running")
    first = a_launch(job, nodes[0], steps_per_s=2.0, world_size=2)
    Assignment.objects.create(job=job, node=nodes[1], fence=first.fence, rank=1, world_size=2)
    reconcile_profiles(timezone.now())
    spread = Profile.objects.get(kind=job.kind, spread=True)
    assert (spread.gpus, spread.source) == (2, "measured")
    assert spread.steps_per_s == pytest.approx(2.0)
    another = a_job(cluster, kind=job.kind, state="running")
    launch = a_launch(another, nodes[0], steps_per_s=4.0, world_size=2)
    Assignment.objects.create(job=another, node=nodes[1], fence=launch.fence, rank=1, world_size=2)
    reconcile_profiles(timezone.now())
    assert not launch.measurements.exists()


def test_a_measured_kinds_running_jobs_are_left_alone(cluster: Cluster) -> None:
    node = a_node(cluster)
    job = a_job(cluster, kind=a_kind(steps_per_s={("V100", 1): 100.0}), state="running")
    a_launch(job, node, steps_per_s=2.0)
    reconcile_profiles(timezone.now())
    assert Profile.objects.get(kind=job.kind).steps_per_s == 100.0


def test_reconciling_twice_is_reconciling_once(cluster: Cluster) -> None:
    a_profiling_node(cluster, "V100", 2)
    a_new_job(cluster, gpus=2)
    reconcile_profiles(timezone.now())
    before = (list(ProfileRun.objects.values()), list(Job.objects.values("pk", "state")))
    reconcile_profiles(timezone.now())
    assert (list(ProfileRun.objects.values()), list(Job.objects.values("pk", "state"))) == before


@pytest.mark.parametrize("mode", ["first_run", "off"])
def test_jobs_that_are_being_measured_go_on_when_their_clusters_mode_changes(
    cluster: Cluster, mode: str
) -> None:
    Cluster.objects.update(profiling="dedicated")
    node = a_profiling_node(cluster, "V100", 1, role="both")
    job = a_profiled_job(Cluster.objects.get(pk=cluster.pk), profiling="")
    launch = place(run_of(job), node, steps=1)
    Cluster.objects.update(profiling=mode)
    reconcile_profiles(timezone.now())
    assert (state_of(job), Profile.objects.get(kind=job.kind).source) == ("queued", "assumed")
    profile_run_ended(end(launch, AssignmentState.PREEMPTED, reason_class="preempt"))
    reconcile_profiles(timezone.now())
    assert not ProfileRun.objects.exists()


def test_a_run_without_a_step_ends_is_given_up_and_says_why(cluster: Cluster) -> None:
    node = a_profiling_node(cluster, gpus=1)
    job = a_profiled_job(cluster)
    launch = place(run_of(job), node, steps=0, running_at=timezone.now())
    reconcile_profiles(timezone.now() + timedelta(seconds=cluster.profile_silence_s - 1))
    assert run_of(job).state == ProfileRun.State.RUNNING
    reconcile_profiles(timezone.now() + timedelta(seconds=cluster.profile_silence_s + 1))
    launch.refresh_from_db()
    assert (launch.desired, run_of(job).state) == ("preempt", ProfileRun.State.GIVEN_UP)
    (note,) = (e.data["message"] for e in JobEvent.objects.filter(job=job, event="warning"))
    assert "no step within 60 s" in note
    assert "loadmaster.training.steps" in note
    profile_run_ended(end(launch, AssignmentState.PREEMPTED, reason_class="preempt"))
    assert state_of(job) == "queued"
    reconcile_profiles(timezone.now() + timedelta(seconds=300))
    assert [run.state for run in ProfileRun.objects.all()] == [ProfileRun.State.GIVEN_UP]


def test_a_run_that_hangs_after_its_first_steps_ends_by_its_own_clock(cluster: Cluster) -> None:
    node = a_profiling_node(cluster, gpus=1)
    job, now = a_profiled_job(cluster), timezone.now()
    launch = place(run_of(job), node, steps=0, steps_done=4, running_at=now, setup_s=10.0)
    years_ago = now - timedelta(days=3650)
    for steps, elapsed_s in ((1, 1.0), (4, 30.0)):
        launch.progress.create(
            at=years_ago, event="progress", step=steps, launch_steps=steps, elapsed_s=elapsed_s
        )
    reconcile_profiles(now + timedelta(seconds=40 + cluster.profile_silence_s - 1))
    assert run_of(job).state == ProfileRun.State.RUNNING
    reconcile_profiles(now + timedelta(seconds=40 + cluster.profile_silence_s + 1))
    launch.refresh_from_db()
    assert (launch.desired, run_of(job).state) == ("preempt", ProfileRun.State.GIVEN_UP)
    assert run_of(job).reason.startswith("no step within 60 s after its step 4;")


def test_a_run_that_has_done_its_steps_may_take_its_time_to_leave(cluster: Cluster) -> None:
    node = a_profiling_node(cluster, gpus=1)
    job, now = a_profiled_job(cluster), timezone.now()
    place(run_of(job), node, steps=run_of(job).steps, running_at=now)
    reconcile_profiles(now + timedelta(seconds=600))
    assert run_of(job).state == ProfileRun.State.RUNNING
