"""A speed far from what is known waits for a second run."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.models import Cluster, Node
from jobs.models import Job, JobEvent
from loadmaster.protocol import AssignmentState
from policies.contract.snapshot import Source
from profiling.measurements import steps_measured
from profiling.models import Measurement, Profile, ProfileRun
from profiling.outliers import OUTLIER, is_outlier
from profiling.services import production_measured, profile_run_ended
from tests.builders import a_cluster, a_job, a_kind, a_node, a_user
from tests.builders_profiling import (
    a_launch,
    a_profiled_job,
    a_profiling_node,
    end,
    measure,
    place,
    run_of,
    state_of,
    tell_progress,
    the_table,
)

pytestmark = pytest.mark.django_db

KNOWN, FAR = 2.0, 2.0 * OUTLIER * 2


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster()


@pytest.fixture
def node(cluster: Cluster) -> Node:
    return a_node(cluster)


@pytest.fixture
def job(cluster: Cluster) -> Job:
    kind = a_kind(steps_per_s={("V100", 1): KNOWN})
    Profile.objects.filter(kind=kind).update(samples=9)
    return a_job(cluster, kind=kind, state="running")


def show(job: Job, node: Node, steps_per_s: float, **values: Any) -> None:
    """A launch of the job at that speed, to its end."""
    ended = {"state": AssignmentState.SUCCEEDED, **values}
    production_measured(a_launch(job, node, steps_per_s=steps_per_s, **ended))


def number() -> tuple[float, int]:
    """(speed to nine decimals, samples) of the only profile."""
    speed, samples = Profile.objects.values_list("steps_per_s", "samples").get()
    return round(speed, 9), samples


def notes(job: Job) -> list[str]:
    told = JobEvent.objects.filter(job=job, event="warning").order_by("pk")
    return [event.data["message"] for event in told]


@given(known=st.floats(1e-6, 1e6), factor=st.floats(1e-3, 1e3))
def test_a_speed_is_an_outlier_by_its_factor_alone_either_way(known: float, factor: float) -> None:
    far = not 1 / (OUTLIER * 0.999) <= factor <= OUTLIER * 0.999
    near = 1 / (OUTLIER * 1.001) <= factor <= OUTLIER * 1.001
    assert is_outlier(known * factor, known) <= far
    assert is_outlier(known * factor, known) >= (not near)


@pytest.mark.parametrize("speed", [FAR, KNOWN / OUTLIER / 2])
def test_an_outlier_is_kept_and_changes_nothing(job: Job, node: Node, speed: float) -> None:
    show(job, node, speed)
    assert number() == (KNOWN, 9)
    row = Measurement.objects.get()
    assert row.held
    assert row.steps_per_s == pytest.approx(speed)


def test_a_second_launch_that_shows_the_like_replaces_what_was_known(job: Job, node: Node) -> None:
    show(job, node, FAR)
    show(job, node, FAR * 1.1)
    assert number() == (round(FAR * 1.1, 9), 1)
    assert list(Measurement.objects.values_list("held", flat=True)) == [True, False]
    show(job, node, FAR)
    assert number() == (round(FAR * 1.05, 9), 2)


def test_the_same_launch_does_not_confirm_itself(job: Job, node: Node) -> None:
    launch = a_launch(job, node, steps_per_s=FAR, steps=20)
    production_measured(launch)
    tell_progress(launch, [i / FAR for i in range(1, 80)])
    production_measured(launch)
    assert Measurement.objects.filter(held=True).count() == 2
    assert number() == (KNOWN, 9)
    assert steps_measured(launch) > 20
    assert len(notes(job)) == 1


def test_a_launch_corrects_what_it_alone_has_shown(job: Job, node: Node) -> None:
    Profile.objects.all().delete()
    launch = a_launch(job, node, steps_per_s=KNOWN, steps=20)  # its first steps are slow
    production_measured(launch)
    launch.progress.all().delete()
    tell_progress(launch, [10 + i / FAR for i in range(1, 80)])
    production_measured(launch)
    assert number() == (round((KNOWN + FAR) / 2, 9), 2)
    assert not Measurement.objects.filter(held=True).exists()


def test_a_second_launch_that_shows_neither_waits_too(job: Job, node: Node) -> None:
    show(job, node, FAR)
    show(job, node, FAR * OUTLIER * 2)
    assert number() == (KNOWN, 9)
    show(job, node, FAR)
    assert number() == (FAR, 1)


def test_a_launch_near_what_is_known_counts_and_ends_the_wait(job: Job, node: Node) -> None:
    show(job, node, FAR)
    show(job, node, KNOWN)
    assert number() == (KNOWN, 10)
    show(job, node, FAR)
    assert number() == (KNOWN, 10)


def test_another_configurations_outlier_confirms_nothing(job: Job, node: Node) -> None:
    show(job, node, KNOWN * 1.8, gpus=2)
    show(job, node, FAR * 10, gpus=2)
    show(job, node, FAR * 10)
    assert dict(Profile.objects.values_list("gpus", "steps_per_s")) == {
        1: KNOWN,
        2: pytest.approx(KNOWN * 1.8),
    }


@pytest.mark.parametrize("source", [Source.ESTIMATED, Source.DECLARED, Source.ASSUMED])
def test_what_nobody_has_measured_holds_nothing_back(job: Job, node: Node, source: Source) -> None:
    Profile.objects.update(source=source)
    show(job, node, FAR)
    assert number() == (FAR, 1)


def test_a_published_speed_holds_outliers_back_too(job: Job, node: Node) -> None:
    Profile.objects.update(published=True)
    show(job, node, FAR)
    assert Profile.objects.get().published
    show(job, node, FAR)
    assert (number(), Profile.objects.get().published) == ((FAR, 1), False)


def test_the_job_and_the_page_of_kinds_say_that_a_measurement_waits(job: Job, node: Node) -> None:
    show(job, node, FAR)
    assert notes(job) == [
        "12 steps/s on 1 x V100, 2 is known: not taken until a second run shows the like"
    ]
    (row,) = the_table(a_user(operator=True)).kinds[0].held
    assert (row.gpu_type, row.gpus, row.spread) == ("V100", 1, False)
    assert row.known_steps_per_s == KNOWN
    assert row.seen_steps_per_s == pytest.approx(FAR)
    show(job, node, KNOWN)
    assert the_table(a_user(operator=True)).kinds[0].held == ()


def test_a_profile_run_that_is_an_outlier_is_repeated_once(cluster: Cluster) -> None:
    prober = a_profiling_node(cluster, "V100", 1)
    job = a_profiled_job(cluster)
    launch = place(run_of(job), prober, steps_per_s=FAR)
    kind = {"kind": job.kind, "gpu_type": prober.gpu_type, "gpus": 1}
    Profile.objects.create(**kind, steps_per_s=KNOWN, source="measured", samples=9)  # meanwhile
    profile_run_ended(end(launch))
    assert (run_of(job).state, state_of(job)) == ("wanted", "profiling")
    measure(run_of(job), prober, FAR * OUTLIER * 2)
    assert not ProfileRun.objects.exclude(state="done").exists()
    assert (number(), state_of(job)) == ((KNOWN, 9), "queued")


def test_a_profile_run_repeated_with_the_like_is_taken(cluster: Cluster) -> None:
    prober = a_profiling_node(cluster, "V100", 1)
    job = a_profiled_job(cluster)
    launch = place(run_of(job), prober, steps_per_s=FAR)
    kind = {"kind": job.kind, "gpu_type": prober.gpu_type, "gpus": 1}
    Profile.objects.create(**kind, steps_per_s=KNOWN, source="measured", samples=9)
    profile_run_ended(end(launch))
    measure(run_of(job), prober, FAR)
    assert (run_of(job).state, number()) == ("done", (FAR, 1))
