"""What a snapshot learns of kinds."""

from datetime import timedelta

import pytest
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from clusters.models import Cluster
from jobs.lifecycle import JobMove
from jobs.models import Kind
from jobs.moves import move_job
from policies.contract.snapshot import Source
from profiling.models import Profile, ProfileRun
from profiling.selectors import LONGEST_USUAL_S, kind_views, profile_requests
from profiling.services import RETRIES
from tests.builders import a_cluster, a_gpu_type, a_kind, a_node, a_team
from tests.builders_profiling import (
    a_new_job,
    a_profiled_job,
    a_profiling_node,
    crash,
    measure,
    place,
    reconcile_profiles,
    run_of,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster() -> Cluster:
    cluster = a_cluster()
    a_gpu_type("V100", tflops=16.0)
    a_gpu_type("T4", tflops=8.0)
    a_node(cluster, gpu_type="V100", gpus=2)
    a_node(cluster, gpu_type="T4", gpus=1)
    return cluster


def numbers(cluster: Cluster, kind: Kind) -> dict[tuple[str, int], tuple[float, Source]]:
    (view,) = kind_views(cluster, [kind.pk])
    return {
        (t.gpu_type, t.gpus): (t.steps_per_s, t.source) for t in view.throughputs if not t.spread
    }


def test_a_type_without_a_profiling_node_is_estimated_and_marked_so(cluster: Cluster) -> None:
    kind = a_kind(steps_per_s={("V100", 1): 2.0, ("V100", 2): 3.0})
    found = numbers(cluster, kind)
    assert found["V100", 1] == (2.0, Source.MEASURED)
    assert found["V100", 2] == (3.0, Source.MEASURED)
    assert found["T4", 1][1] is Source.ESTIMATED
    assert found["T4", 1][0] == pytest.approx(1.0)


def test_every_count_of_every_type_of_the_cluster_has_a_number(cluster: Cluster) -> None:
    kind = a_kind(steps_per_s={("T4", 1): 1.0, ("A100", 1): 9.0})
    assert set(numbers(cluster, kind)) == {("V100", 1), ("V100", 2), ("T4", 1)}


def test_a_kind_of_which_nothing_is_known_has_no_numbers(cluster: Cluster) -> None:
    assert numbers(cluster, a_kind()) == {}


def test_estimates_from_measurements_go_before_declared_numbers(cluster: Cluster) -> None:
    kind = a_kind(steps_per_s={("V100", 1): 2.0})
    Profile.objects.create(
        kind=kind, gpu_type=a_gpu_type("T4"), gpus=1, steps_per_s=77.0, source="declared"
    )
    speed, source = numbers(cluster, kind)["T4", 1]
    assert speed == pytest.approx(1.0)
    assert source is Source.ESTIMATED


def test_declared_numbers_stand_where_nothing_is_measured(cluster: Cluster) -> None:
    kind = a_kind(steps_per_s={("V100", 1): 2.0}, source="declared")
    assert numbers(cluster, kind)["V100", 1] == (2.0, Source.DECLARED)


def test_a_configuration_on_which_the_command_fails_has_no_number(cluster: Cluster) -> None:
    v100, t4 = a_profiling_node(cluster, "V100", 1), a_profiling_node(cluster, "T4", 1)
    job = a_profiled_job(cluster)
    for _ in range(RETRIES + 1):
        crash(run_of(job, "T4"), t4, reason_class="oom")
    measure(run_of(job, "V100"), v100)
    assert set(numbers(cluster, job.kind)) == {("V100", 1), ("V100", 2)}


def test_a_number_says_how_old_it_is_and_an_estimate_is_as_old_as_what_it_is_made_of(
    cluster: Cluster,
) -> None:
    kind = a_kind(steps_per_s={("V100", 1): 2.0})
    Profile.objects.update(updated_at=timezone.now() - timedelta(hours=1))
    (view,) = kind_views(cluster, [kind.pk])
    assert {t.gpu_type: t.age_s for t in view.throughputs} == pytest.approx(
        {"V100": 3600.0, "T4": 3600.0}, abs=60
    )


def test_spread_profiles_are_told_apart(cluster: Cluster) -> None:
    kind = a_kind(steps_per_s={("V100", 1): 2.0})
    Profile.objects.create(
        kind=kind,
        gpu_type=a_gpu_type("V100"),
        gpus=4,
        steps_per_s=5.0,
        source="measured",
        spread=True,
    )
    (view,) = kind_views(cluster, [kind.pk])
    assert [(t.gpus, t.steps_per_s) for t in view.throughputs if t.spread] == [(4, 5.0)]


def test_resource_use_comes_from_the_fewest_measured_gpus(cluster: Cluster) -> None:
    kind = a_kind(steps_per_s={("V100", 1): 2.0, ("V100", 2): 3.0, ("T4", 1): 1.0})
    Profile.objects.filter(gpus=1, gpu_type__name="V100").update(
        cores=2.0, memory_gb=4.0, gpu_w=150.0
    )
    Profile.objects.filter(gpus=2).update(cores=4.0, memory_gb=8.0)
    (view,) = kind_views(cluster, [kind.pk])
    (use,) = view.usage
    assert (use.gpu_type, use.cores, use.memory_gb, use.gpu_fraction, use.gpu_w) == (
        "V100",
        2.0,
        4.0,
        1.0,
        150.0,
    )


def test_an_unknown_setup_time_is_taken_from_the_other_kinds(cluster: Cluster) -> None:
    kind = a_kind()
    Kind.objects.filter(pk=a_kind().pk).update(setup_s=4.0)
    assert kind_views(cluster, [kind.pk])[0].setup_s == 4.0


def expected_setup_s(cluster: Cluster, *of_teams: list[float]) -> float:
    """Time to the first step that is expected of a new kind, where teams' kinds showed these."""
    for times in of_teams:
        team = a_team()
        for setup_s in times:
            a_kind(team=team, setup_s=setup_s)
    (view,) = kind_views(cluster, [a_kind().pk])
    return view.setup_s


def test_one_teams_times_move_what_others_expect_as_one_team_among_them(cluster: Cluster) -> None:
    assert expected_setup_s(cluster, [4.0, 8.0], [7.0], [86400.0] * 9) == 7.0


def test_of_two_teams_the_longer_time_is_not_expected(cluster: Cluster) -> None:
    assert expected_setup_s(cluster, [5.0], [86400.0]) == 5.0


def test_a_lone_teams_times_are_expected_up_to_a_bound(cluster: Cluster) -> None:
    assert expected_setup_s(cluster, [86400.0]) == LONGEST_USUAL_S


def test_the_number_of_queries_does_not_grow_with_the_kinds(
    cluster: Cluster, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    def look(count: int) -> int:
        kinds = [a_kind(steps_per_s={("V100", 1): 1.0 + i}).pk for i in range(count)]
        with django_assert_num_queries(7) as seen:
            assert len(kind_views(cluster, kinds)) == count
        return len(seen)

    assert look(1) == look(20)


def test_wanted_and_running_measurements_are_requested_under_their_jobs_copies(
    cluster: Cluster,
) -> None:
    node = a_profiling_node(cluster, "V100", 2)
    job = a_profiled_job(cluster, gpus=2, total_steps=10)
    place(run_of(job, gpus=1), node)
    first, second = profile_requests(cluster)
    assert (first.job, first.kind, first.gpu_type, first.gpus, first.steps, first.copy) == (
        str(job.pk), str(job.kind_id), "V100", 1, 10, 1,
    )  # fmt: skip
    assert (second.gpus, second.copy) == (2, 2)
    assert first.since_s == run_of(job, gpus=1).created_at.timestamp()


def test_measurements_that_are_over_and_those_of_jobs_that_no_longer_wait_are_not_requested(
    cluster: Cluster,
) -> None:
    node = a_profiling_node(cluster, "V100", 2)
    job = a_profiled_job(cluster, gpus=2)
    measure(run_of(job, gpus=1), node)
    assert [r.gpus for r in profile_requests(cluster)] == [2]
    move_job(job.__class__.objects.get(pk=job.pk), JobMove.HOLD)
    assert profile_requests(cluster) == ()
    assert profile_requests(a_new_job(a_cluster()).cluster) == ()


def test_a_run_that_no_job_waits_for_never_grows_old_enough_to_displace_production(
    cluster: Cluster,
) -> None:
    a_profiling_node(cluster, "A100", 1, role="both")
    job = a_new_job(cluster, a_kind(steps_per_s={("V100", 1): 1.0}))
    reconcile_profiles(timezone.now())
    ProfileRun.objects.filter(job=job).update(created_at=timezone.now() - timedelta(hours=1))
    (request,) = profile_requests(cluster)
    assert timezone.now().timestamp() - request.since_s < 60
