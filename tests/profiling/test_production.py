"""Production's measurements refine what is known of a kind."""

from typing import Any

import pytest

from clusters.models import Cluster, Node, Reason, RescheduleEvent
from jobs.models import Assignment, Job, Kind
from loadmaster.protocol import AssignmentState
from policies.contract.snapshot import Source
from profiling.measurements import MIN_STEPS
from profiling.models import Measurement, Profile
from profiling.selectors import kind_views
from profiling.services import production_measured, progress_reported
from profiling.speeds import ALPHA
from tests.builders import a_cluster, a_gpu_type, a_job, a_kind, a_node
from tests.builders_profiling import a_launch, tell_progress, tell_usage

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster()


@pytest.fixture
def node(cluster: Cluster) -> Node:
    return a_node(cluster)


@pytest.fixture
def job(cluster: Cluster) -> Job:
    kind = a_kind(steps_per_s={("V100", 1): 2.0})
    Profile.objects.filter(kind=kind).update(samples=9)
    return a_job(cluster, kind=kind, state="running")


def ended(job: Job, node: Node, **values: Any) -> Assignment:
    return a_launch(job, node, **{"state": AssignmentState.SUCCEEDED, **values})


def speed(job: Job) -> float:
    return Profile.objects.get(kind=job.kind).steps_per_s


def events() -> int:
    return RescheduleEvent.objects.filter(reason=Reason.PROFILE).count()


def test_a_measured_speed_moves_towards_what_production_shows(job: Job, node: Node) -> None:
    production_measured(ended(job, node, steps_per_s=2.2))
    assert speed(job) == pytest.approx(2.0 + ALPHA * 0.2)
    assert Profile.objects.get(kind=job.kind).samples == 10
    assert events() == 0


def test_the_first_few_measurements_are_averaged(job: Job, node: Node) -> None:
    Profile.objects.update(samples=1)
    production_measured(ended(job, node, steps_per_s=3.0))
    assert speed(job) == pytest.approx(2.5)


@pytest.mark.parametrize("source", ["estimated", "declared"])
def test_production_replaces_what_was_not_measured(job: Job, node: Node, source: str) -> None:
    Profile.objects.update(source=source)
    production_measured(ended(job, node, steps_per_s=3.0))
    assert Profile.objects.get().source == "measured"
    assert speed(job) == pytest.approx(3.0)


def test_a_large_deviation_raises_an_event(job: Job, node: Node) -> None:
    production_measured(ended(job, node, steps_per_s=1.0))
    assert events() == 1


def test_a_measurement_of_a_configuration_nobody_knew_raises_an_event(job: Job, node: Node) -> None:
    production_measured(ended(job, node, gpus=2, steps_per_s=3.0))
    assert Profile.objects.get(gpus=2).source == "measured"
    assert events() == 1


def test_setup_time_cores_memory_and_measured_watts_are_learnt(job: Job, node: Node) -> None:
    launch = ended(job, node, setup_s=3.0)
    tell_usage(launch, cores=2.0, memory_gb=4.0, watts=100.0)
    tell_usage(launch, cores=4.0, memory_gb=6.0, watts=120.0)
    production_measured(launch)
    profile = Profile.objects.get()
    assert (profile.cores, profile.memory_gb, profile.gpu_fraction, profile.gpu_w) == (
        3.0,
        6.0,
        0.5,
        110.0,
    )
    assert Kind.objects.get().setup_s == 3.0


def test_modelled_watts_are_not_learnt_back(job: Job, node: Node) -> None:
    launch = ended(job, node)
    tell_usage(launch, cores=2.0, memory_gb=4.0, watts=100.0, source="modelled")
    production_measured(launch)
    assert Profile.objects.get().gpu_w is None


@pytest.mark.parametrize(
    "values",
    [
        {"steps": MIN_STEPS},
        {"share": 0.5},
        {"cpu_quota": 0.5},
        {"overrun_fraction": 0.9},
        {"purpose": "profiling"},
        {"rank": 1, "world_size": 2},
    ],
)
def test_short_shared_throttled_or_overrun_launches_say_nothing(
    job: Job, node: Node, values: dict[str, Any]
) -> None:
    production_measured(ended(job, node, steps_per_s=20.0, **values))
    assert speed(job) == 2.0
    assert not Measurement.objects.exists()


def test_a_launch_that_never_made_a_step_says_nothing(job: Job, node: Node) -> None:
    production_measured(ended(job, node, steps=0, state=AssignmentState.FAILED))
    assert not Measurement.objects.exists()


def test_a_noisy_launch_says_nothing(job: Job, node: Node) -> None:
    launch = ended(job, node, steps=0)
    tell_progress(launch, [sum(0.1 if i % 2 else 1.0 for i in range(n)) for n in range(1, 21)])
    production_measured(launch)
    assert speed(job) == 2.0


def test_a_launch_is_measured_again_only_after_twice_the_steps(job: Job, node: Node) -> None:
    launch = ended(job, node, steps=20)
    production_measured(launch)
    production_measured(launch)
    assert Measurement.objects.count() == 1
    launch.progress.all().delete()
    tell_progress(launch, [i / 2.0 for i in range(1, 60)])
    production_measured(launch)
    assert Measurement.objects.count() == 2


def test_a_gang_over_several_nodes_is_one_spread_measurement_of_all_its_gpus(
    cluster: Cluster, job: Job, node: Node
) -> None:
    first = ended(job, node, gpus=2, world_size=2)
    other = a_node(cluster)
    Assignment.objects.create(
        job=job,
        node=other,
        gpus=2,
        rank=1,
        world_size=2,
        fence=first.fence,
        state=AssignmentState.SUCCEEDED,
    )
    production_measured(first)
    assert Measurement.objects.values_list("gpus", "spread").get() == (4, True)


def test_a_gang_over_different_types_measures_the_slowest(
    cluster: Cluster, job: Job, node: Node
) -> None:
    first = ended(job, node, world_size=2)
    slow = a_gpu_type("T4", tflops=1.0)
    other = a_node(cluster, gpu_type=slow)
    Assignment.objects.create(
        job=job,
        node=other,
        rank=1,
        world_size=2,
        fence=first.fence,
        state=AssignmentState.SUCCEEDED,
    )
    production_measured(first)
    found = Measurement.objects.values_list("gpu_type", "gpus", "spread").get()
    assert found == (slow.pk, 2, True)


def test_a_mixed_gang_measures_the_type_on_which_its_kind_is_slowest(
    cluster: Cluster, job: Job, node: Node
) -> None:
    fewest_tflops = a_gpu_type("T4", tflops=1.0)
    other = a_node(cluster, gpu_type=fewest_tflops)
    Profile.objects.create(kind=job.kind, gpu_type=fewest_tflops, gpus=1, steps_per_s=5.0)
    first = ended(job, node, world_size=2)
    Assignment.objects.create(
        job=job, node=other, rank=1, world_size=2, fence=first.fence,
        state=AssignmentState.SUCCEEDED,
    )  # fmt: skip
    production_measured(first)
    assert Measurement.objects.values_list("gpu_type").get() == (node.gpu_type_id,)


def test_profiles_of_one_of_the_types_do_not_tell_the_slowest(
    cluster: Cluster, job: Job, node: Node
) -> None:
    fewest_tflops = a_gpu_type("T4", tflops=1.0)
    other = a_node(cluster, gpu_type=fewest_tflops)
    Profile.objects.create(kind=job.kind, gpu_type=fewest_tflops, gpus=2, steps_per_s=5.0)
    first = ended(job, node, world_size=2)
    Assignment.objects.create(
        job=job, node=other, rank=1, world_size=2, fence=first.fence,
        state=AssignmentState.SUCCEEDED,
    )  # fmt: skip
    production_measured(first)
    assert Measurement.objects.values_list("gpu_type").get() == (fewest_tflops.pk,)


def test_the_first_steps_of_a_new_kind_are_its_first_measurement(
    cluster: Cluster, node: Node
) -> None:
    job = a_job(cluster, kind=a_kind(), state="running")
    launch = a_launch(job, node, steps=3, steps_per_s=4.0)
    progress_reported(launch, 1, 2)
    assert not Measurement.objects.exists()
    progress_reported(launch, 2, 3)
    assert speed(job) == pytest.approx(4.0)
    assert Kind.objects.get(pk=job.kind_id).reports_steps is True
    assert events() == 1


def test_one_measurement_gives_a_number_on_every_type_and_count(
    cluster: Cluster, node: Node
) -> None:
    a_node(cluster, gpu_type="T4", gpus=4)
    job = a_job(cluster, kind=a_kind(), state="running")
    progress_reported(a_launch(job, node, steps=3, steps_per_s=4.0), 0, 3)
    (view,) = kind_views(cluster, [job.kind_id])
    sources = {(t.gpu_type, t.gpus): t.source for t in view.throughputs}
    assert sources[node.type_name, 1] is Source.MEASURED
    assert {sources["T4", gpus] for gpus in (1, 2, 3, 4)} == {Source.ESTIMATED}
    assert not view.is_assumed


def test_a_measurement_replaces_an_assumed_speed_and_asks_for_a_round(job: Job, node: Node) -> None:
    Profile.objects.update(source="assumed", steps_per_s=4.0)
    progress_reported(a_launch(job, node, steps=3, steps_per_s=4.0), 0, 3)
    assert Profile.objects.get().source == "measured"
    assert events() == 1


def test_what_follows_from_an_assumed_speed_is_assumed(cluster: Cluster, node: Node) -> None:
    a_node(cluster, gpu_type="T4")
    kind = a_kind(steps_per_s={("V100", 1): 2.0}, source="assumed")
    (view,) = kind_views(cluster, [kind.pk])
    assert {t.source for t in view.throughputs} == {Source.ASSUMED}
    assert view.is_assumed


def test_a_speed_that_changes_in_mid_run_is_followed(cluster: Cluster, node: Node) -> None:
    job = a_job(cluster, kind=a_kind(), state="running")
    launch = a_launch(job, node, steps=64, steps_per_s=4.0)
    progress_reported(launch, 0, 64)
    launch.progress.all().delete()
    slow = [n / 4.0 if n <= 64 else 16.0 + (n - 64) / 1.0 for n in range(1, 1025)]
    for steps in (128, 256, 512, 1024):
        launch.progress.all().delete()
        tell_progress(launch, slow[:steps])
        progress_reported(launch, steps // 2, steps)
    assert speed(job) == pytest.approx(1.6, abs=0.05)
    assert Measurement.objects.count() == 5


def test_what_cannot_be_learnt_does_not_refuse_the_report(
    job: Job, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(assignment: Assignment) -> None:
        raise ValueError("broken")

    monkeypatch.setattr("profiling.services.production_measured", broken)
    progress_reported(a_launch(job, node), 0, 20)


def test_ranks_of_an_earlier_launch_are_not_of_a_gang(
    cluster: Cluster, job: Job, node: Node
) -> None:
    for lead_node in (a_node(cluster), node):
        lead = ended(job, lead_node, world_size=2)
        Assignment.objects.create(
            job=job,
            node=lead_node,
            gpus=1,
            rank=1,
            world_size=2,
            fence=lead.fence,
            state=AssignmentState.SUCCEEDED,
        )
    production_measured(lead)
    assert Measurement.objects.values_list("gpus", "spread").get() == (2, False)
