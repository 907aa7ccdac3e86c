"""Profile runs from a job's submission until it goes on."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from clusters.models import Cluster, Reason, RescheduleEvent
from jobs.lifecycle import JobMove
from jobs.models import Job, JobEvent, Kind
from jobs.moves import move_job
from loadmaster.protocol import AssignmentState
from profiling.models import Measurement, Profile, ProfileRun
from profiling.services import RETRIES, forget, profile_run_ended, request_profiles
from tests.builders import a_cluster, a_gpu_type, a_kind, a_node
from tests.builders_profiling import (
    a_new_job,
    a_profiled_job,
    a_profiling_node,
    crash,
    end,
    measure,
    place,
    run_of,
    state_of,
    tell_progress,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster(profiling_steps=20)


def configurations(job: Job) -> set[tuple[str, int]]:
    return set(ProfileRun.objects.filter(job=job).values_list("gpu_type__name", "gpus"))


def test_an_unknown_kind_is_measured_on_every_configuration_that_profiling_nodes_offer(
    cluster: Cluster,
) -> None:
    a_profiling_node(cluster, "V100", 2)
    a_profiling_node(cluster, "T4", 1, role="both")
    a_node(cluster, gpu_type="A100", gpus=4)
    job = a_profiled_job(cluster, gpus=4)
    assert state_of(job) == "profiling"
    assert configurations(job) == {("V100", 1), ("V100", 2), ("T4", 1)}
    assert sorted(ProfileRun.objects.values_list("copy", flat=True)) == [1, 2, 3]
    assert set(ProfileRun.objects.values_list("steps", flat=True)) == {20}
    assert RescheduleEvent.objects.filter(cluster=cluster, reason=Reason.PROFILE).exists()


def test_only_configurations_that_the_job_can_use_are_measured(cluster: Cluster) -> None:
    a_profiling_node(cluster, "V100", 8)
    a_profiling_node(cluster, "T4", 2)
    a_profiling_node(cluster, "A100", 2, cores=1.0)
    a_profiling_node(cluster, "P100", 2, state="cordoned")
    a_profiling_node(cluster, "K80", 2, labels=[])
    job = a_profiled_job(
        cluster, gpus=3, gpus_min=2, allowed_types=["V100", "A100", "P100"], cores=4.0
    )
    assert configurations(job) == {("V100", 2), ("V100", 3)}


def test_unhealthy_devices_are_not_counted_on(cluster: Cluster) -> None:
    node = a_profiling_node(cluster, "V100", 2)
    node.devices.filter(pk=node.devices.all()[0].pk).update(healthy=False)
    assert configurations(a_profiled_job(cluster, gpus=2)) == {("V100", 1)}


def test_a_profile_run_is_no_longer_than_the_job(cluster: Cluster) -> None:
    a_profiling_node(cluster)
    assert run_of(a_profiled_job(cluster, total_steps=7)).steps == 7


def test_without_a_profiling_node_the_job_queues_on_its_declared_walltime(cluster: Cluster) -> None:
    a_node(cluster, gpu_type="V100")
    a_node(cluster, gpu_type=a_gpu_type("T4", tflops=8.1))
    job = a_profiled_job(cluster, total_steps=100, walltime_s=50.0)
    profile = Profile.objects.get(kind=job.kind)
    assert state_of(job) == "queued"
    assert (profile.gpu_type.name, profile.steps_per_s, profile.source) == ("T4", 2.0, "declared")
    assert JobEvent.objects.filter(job=job, event="warning").exists()


def test_without_anything_to_go_by_an_hour_is_assumed_and_called_so(
    cluster: Cluster,
) -> None:
    a_node(cluster, gpu_type="V100")
    job = a_profiled_job(cluster, total_steps=7200)
    profile = Profile.objects.get(kind=job.kind)
    assert (profile.steps_per_s, profile.source) == (2.0, "assumed")


def test_a_held_job_is_asked_for_but_stays_held(cluster: Cluster) -> None:
    a_profiling_node(cluster)
    job = a_new_job(cluster, state="held")
    request_profiles([job])
    assert (state_of(job), run_of(job).state) == ("held", "wanted")


def test_a_known_kind_is_not_profiled_again(cluster: Cluster) -> None:
    node = a_profiling_node(cluster, gpus=1)
    first = a_profiled_job(cluster)
    measure(run_of(first), node)
    second = a_new_job(cluster, first.kind)
    request_profiles([second])
    assert state_of(second) == "queued"
    assert ProfileRun.objects.count() == 1


def test_nodes_are_not_read_for_a_known_kind_whose_command_may_not_run_again(
    cluster: Cluster,
) -> None:
    node = a_profiling_node(cluster, gpus=1)
    first = a_profiled_job(cluster)
    measure(run_of(first), node)
    for repeatable in (False, True):
        job = a_new_job(cluster, first.kind, repeatable=repeatable)
        with CaptureQueriesContext(connection) as asked:
            request_profiles([job])
        assert any("clusters_node" in q["sql"] for q in asked.captured_queries) is repeatable


def test_two_jobs_of_one_kind_are_measured_once_and_go_on_together(cluster: Cluster) -> None:
    node = a_profiling_node(cluster, gpus=2)
    first = a_profiled_job(cluster, gpus=2)
    second = a_profiled_job(cluster, first.kind, gpus=2)
    assert ProfileRun.objects.filter(kind=first.kind).count() == 2
    measure(run_of(first, gpus=1), node, 2.0)
    assert (state_of(first), state_of(second)) == ("profiling", "profiling")
    measure(run_of(first, gpus=2), node, 3.0)
    assert (state_of(first), state_of(second)) == ("queued", "queued")


def test_a_job_waits_only_for_configurations_that_it_can_use(cluster: Cluster) -> None:
    node = a_profiling_node(cluster, gpus=2)
    wide = a_profiled_job(cluster, gpus=2)
    narrow = a_profiled_job(cluster, wide.kind, gpus=1)
    measure(run_of(wide, gpus=1), node)
    assert (state_of(narrow), state_of(wide)) == ("queued", "profiling")


def test_a_measurement_takes_the_pace_after_the_warm_up(cluster: Cluster) -> None:
    node = a_profiling_node(cluster, gpus=1)
    job = a_profiled_job(cluster)
    launch = place(run_of(job), node, steps=0)
    tell_progress(launch, [9.0 + 0.25 * i for i in range(20)])
    profile_run_ended(end(launch))
    profile = Profile.objects.get(kind=job.kind)
    assert profile.steps_per_s == pytest.approx(4.0)
    assert (profile.source, profile.samples) == ("measured", 1)
    assert Measurement.objects.get().assignment == launch
    assert Kind.objects.get(pk=job.kind_id).setup_s == pytest.approx(1.0)
    assert run_of(job).state == ProfileRun.State.DONE


def test_taking_in_the_same_end_twice_changes_nothing(cluster: Cluster) -> None:
    node = a_profiling_node(cluster, gpus=1)
    job = a_profiled_job(cluster)
    failed = end(place(run_of(job), node, steps=0), AssignmentState.FAILED, reason_class="user")
    profile_run_ended(failed)
    profile_run_ended(failed)
    assert run_of(job).failures == 1
    launch = end(place(run_of(job), node))
    profile_run_ended(launch)
    profile_run_ended(launch)
    assert Measurement.objects.count() == 1


def test_a_run_under_way_is_running_and_its_end_is_not_taken_in_before(cluster: Cluster) -> None:
    node = a_profiling_node(cluster, gpus=1)
    job = a_profiled_job(cluster)
    profile_run_ended(place(run_of(job), node))
    assert run_of(job).state == ProfileRun.State.RUNNING
    assert state_of(job) == "profiling"


def test_a_failed_run_is_tried_again_twice_and_then_the_job_fails_with_exit_code_and_text(
    cluster: Cluster,
) -> None:
    node = a_profiling_node(cluster, gpus=1)
    job = a_profiled_job(cluster)
    for _ in range(RETRIES):
        crash(run_of(job), node)
        assert run_of(job).state == ProfileRun.State.WANTED
    crash(run_of(job), node)
    job.refresh_from_db()
    assert run_of(job).state == ProfileRun.State.GIVEN_UP
    assert job.state == "failed"
    assert "exit code 2: no such file" in job.failure_reason
    assert job.completed_at is not None


def test_a_command_that_crashes_on_one_configuration_is_not_tried_on_all_others(
    cluster: Cluster,
) -> None:
    node = a_profiling_node(cluster, gpus=4)
    job = a_profiled_job(cluster, gpus=4)
    for _ in range(RETRIES + 1):
        crash(run_of(job), node)
    assert set(ProfileRun.objects.values_list("state", flat=True)) == {ProfileRun.State.GIVEN_UP}
    assert state_of(job) == "failed"


def test_a_configuration_that_lacks_memory_does_not_keep_the_others_from_being_measured(
    cluster: Cluster,
) -> None:
    node = a_profiling_node(cluster, gpus=2)
    job = a_profiled_job(cluster, gpus=2)
    for _ in range(RETRIES + 1):
        crash(run_of(job), node, reason_class="oom", code=137)
    assert state_of(job) == "profiling"
    measure(run_of(job, gpus=2), node)
    assert state_of(job) == "queued"


def test_a_job_whose_command_crashes_does_not_take_the_others_of_its_kind_with_it(
    cluster: Cluster,
) -> None:
    node = a_profiling_node(cluster, gpus=1)
    broken = a_profiled_job(cluster)
    sound = a_profiled_job(cluster, broken.kind)
    for _ in range(RETRIES + 1):
        crash(run_of(broken), node)
    assert (state_of(broken), state_of(sound)) == ("failed", "profiling")
    measure(run_of(sound), node)
    assert state_of(sound) == "queued"


def test_a_node_that_refuses_every_run_does_not_fail_the_job(cluster: Cluster) -> None:
    node = a_profiling_node(cluster, gpus=1)
    job = a_profiled_job(cluster)
    for _ in range(RETRIES + 1):
        profile_run_ended(
            end(
                place(run_of(job), node, steps=0),
                AssignmentState.REJECTED,
                reason="unknown feature",
            )
        )
    assert run_of(job).state == ProfileRun.State.GIVEN_UP
    assert state_of(job) == "queued"
    warnings = [e.data["message"] for e in JobEvent.objects.filter(job=job, event="warning")]
    assert any("unknown feature" in message for message in warnings)


@pytest.mark.parametrize(
    "state", [AssignmentState.LOST, AssignmentState.PREEMPTED, AssignmentState.CANCELLED]
)
def test_a_run_that_ended_by_nobodys_fault_is_wanted_again_and_costs_no_retry(
    cluster: Cluster, state: AssignmentState
) -> None:
    node = a_profiling_node(cluster, gpus=1)
    job = a_profiled_job(cluster)
    for _ in range(RETRIES + 2):
        profile_run_ended(end(place(run_of(job), node, steps=1), state, reason_class="node"))
    assert (run_of(job).state, run_of(job).failures) == (ProfileRun.State.WANTED, 0)
    assert state_of(job) == "profiling"


def test_a_run_that_was_pre_empted_after_its_better_half_counts(cluster: Cluster) -> None:
    node = a_profiling_node(cluster, gpus=1)
    job = a_profiled_job(cluster)
    profile_run_ended(
        end(place(run_of(job), node, steps=15), AssignmentState.PREEMPTED, reason_class="preempt")
    )
    assert state_of(job) == "queued"


def test_a_command_that_reports_no_progress_goes_on_unmeasured_and_is_told_what_to_do(
    cluster: Cluster,
) -> None:
    node = a_profiling_node(cluster, gpus=1)
    job = a_profiled_job(cluster)
    profile_run_ended(end(place(run_of(job), node, steps=0), exit_code=0))
    assert state_of(job) == "queued"
    assert "loadmaster.training.steps" in run_of(job).reason


def test_a_run_whose_samples_are_lost_goes_by_its_steps_and_its_time(cluster: Cluster) -> None:
    node = a_profiling_node(cluster, gpus=1)
    job = a_profiled_job(cluster)
    launch = place(run_of(job), node, steps=0, setup_s=0.0)
    launch.steps_done = 20
    profile_run_ended(end(launch))
    assert Profile.objects.get(kind=job.kind).steps_per_s == pytest.approx(20.0, rel=0.2)


def test_a_cancelled_jobs_runs_pass_to_the_next_job_that_waits(cluster: Cluster) -> None:
    node = a_profiling_node(cluster, gpus=1)
    first = a_profiled_job(cluster)
    second = a_profiled_job(cluster, first.kind)
    launch = place(run_of(first), node, steps=1)
    move_job(first, JobMove.CANCEL)
    profile_run_ended(end(launch, AssignmentState.CANCELLED))
    assert not ProfileRun.objects.filter(job=first).exists()
    assert run_of(second).state == ProfileRun.State.WANTED


def test_a_job_that_asks_again_gets_copies_that_no_earlier_launch_had(cluster: Cluster) -> None:
    node = a_profiling_node(cluster, gpus=1)
    job = a_profiled_job(cluster)
    place(run_of(job), node)
    ProfileRun.objects.all().delete()
    request_profiles([job])
    assert run_of(job).copy == 2


def test_clusters_measure_for_themselves_but_share_what_is_known(cluster: Cluster) -> None:
    node = a_profiling_node(cluster, gpus=1)
    elsewhere = a_cluster()
    a_profiling_node(elsewhere, gpus=1)
    kind = a_kind()
    here, there = a_profiled_job(cluster, kind), a_profiled_job(elsewhere, kind)
    assert configurations(here) == configurations(there) == {("V100", 1)}
    measure(run_of(here), node)
    known = a_new_job(elsewhere, kind)
    request_profiles([known])
    assert state_of(known) == "queued"


def test_a_forgotten_kind_keeps_its_numbers_as_estimates_and_is_measured_again(
    cluster: Cluster,
) -> None:
    node = a_profiling_node(cluster, gpus=1)
    job = a_profiled_job(cluster)
    measure(run_of(job), node, 2.0)
    forget(job.kind)
    profile = Profile.objects.get(kind=job.kind)
    assert (profile.source, profile.samples) == ("estimated", 0)
    assert profile.steps_per_s == pytest.approx(2.0)
    again = a_profiled_job(cluster, job.kind)
    assert state_of(again) == "profiling"
    measure(run_of(again), node, 4.0)
    profile.refresh_from_db()
    assert (profile.source, profile.samples) == ("measured", 1)
    assert profile.steps_per_s == pytest.approx(4.0)


@pytest.mark.parametrize(
    "asked",
    [{"profiling": ""}, {"profiling": "off"}, {"repeatable": False}, {"profiling": "first_run"}],
)
def test_only_repeatable_jobs_that_ask_for_it_wait_to_be_measured(
    cluster: Cluster, asked: dict[str, Any]
) -> None:
    a_profiling_node(cluster, role="both")
    job = a_profiled_job(cluster, **asked)
    assert (state_of(job), ProfileRun.objects.count()) == ("queued", 0)
    assert Profile.objects.get(kind=job.kind).source == "assumed"


def test_a_clusters_mode_counts_for_jobs_that_name_none(cluster: Cluster) -> None:
    Cluster.objects.update(profiling="dedicated")
    a_profiling_node(cluster, role="both")
    assert state_of(a_profiled_job(Cluster.objects.get(pk=cluster.pk), profiling="")) == "profiling"


def test_nodes_for_profiling_alone_measure_repeatable_jobs_that_wait_without_holding_them(
    cluster: Cluster,
) -> None:
    a_profiling_node(cluster, gpus=1)
    job = a_profiled_job(cluster, profiling="")
    assert (state_of(job), run_of(job).state) == ("queued", "wanted")
    assert Profile.objects.get(kind=job.kind).source == "assumed"
    assert configurations(a_profiled_job(cluster, profiling="", repeatable=False)) == set()
    assert configurations(a_profiled_job(cluster, profiling="off")) == set()


def test_a_kind_whose_command_reports_no_steps_is_not_run_again_to_measure_it(
    cluster: Cluster,
) -> None:
    node = a_profiling_node(cluster, gpus=2)
    job = a_profiled_job(cluster, gpus=2)
    profile_run_ended(end(place(run_of(job), node, steps=0), exit_code=0))
    assert configurations(job) == {("V100", 1)}
    assert state_of(a_profiled_job(cluster, job.kind)) == "queued"
