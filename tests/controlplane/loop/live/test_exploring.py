"""Rounds of kinds of which little is known: they explore, and what is absurd stops none."""

import pytest
from django.test import Client
from django.urls import reverse

from clusters.models import Cluster
from controlplane.loop.models import Round
from jobs.models import Job
from jobs.pages.job_page import history_line
from profiling.models import Profile
from tests.builders import a_cluster, a_gpu_type, a_job, a_kind, a_node
from tests.builders_live import a_round

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster() -> Cluster:
    """One V100, and one T4 that draws as much and should be a little slower."""
    cluster = a_cluster()
    a_gpu_type("T4", tflops=14.0)
    for gpu_type in ("V100", "T4"):
        a_node(cluster, gpu_type=gpu_type, gpus=1)
    return cluster


def tried(job: Job) -> str:
    told = job.events.filter(event="place").first() or job.events.latest("id")
    return history_line(told).particulars


def test_one_launch_of_a_kind_tries_what_may_be_cheaper_and_says_so(
    cluster: Cluster, client: Client
) -> None:
    kind = a_kind(steps_per_s={("V100", 1): 2.0})
    jobs = [a_job(cluster, kind=kind, total_steps=10**6) for _ in range(5)]
    a_round(cluster)
    launched = {j: j.assignments.get() for j in jobs if j.assignments.exists()}
    explorers = [j for j in launched if "explores 1 x T4: a step may cost up to" in tried(j)]
    assert explorers == [jobs[0]]
    launch = launched[jobs[0]]
    assert (launch.node.type_name, launch.predicted_run_s) == ("T4", None)
    assert launch.predicted_steps_per_s == pytest.approx(2.0 * 14.0 / 15.7)
    Job.objects.filter(pk=jobs[0].pk).update(state="running")
    client.force_login(jobs[0].user)
    assert client.get(reverse("kinds")).content.count(b"explores 1 x T4") == 1


@pytest.mark.parametrize("profiling", ["off", "dedicated"])
def test_clusters_without_first_runs_do_not_explore(cluster: Cluster, profiling: str) -> None:
    Cluster.objects.update(profiling=profiling)
    kind = a_kind(steps_per_s={("V100", 1): 2.0})
    jobs = [a_job(cluster, kind=kind, total_steps=10**6, repeatable=True) for _ in range(5)]
    a_round(cluster)
    assert not any("explores" in tried(j) for j in jobs if j.assignments.exists())


@pytest.mark.parametrize("source", ["measured", "assumed"])
@pytest.mark.parametrize("steps_per_s", [1e-300, 1e-13, 1e-9, 1e300])
def test_a_kind_that_would_run_for_ever_stops_neither_rounds_nor_pages(
    cluster: Cluster, client: Client, steps_per_s: float, source: str
) -> None:
    kind = a_kind(steps_per_s={("V100", 1): steps_per_s}, source=source)
    job = a_job(cluster, kind=kind, total_steps=10**15)
    other = a_job(cluster, total_steps=10)
    assert a_round(cluster).status == Round.Status.APPLIED
    assert other.assignments.exists()
    client.force_login(job.user)
    pages = [("job", [job.pk]), ("kinds", []), ("gantt", []), ("gantt_figure", []), ("queue", [])]
    for name, args in pages:
        assert client.get(reverse(name, args=args)).status_code == 200


def test_figures_of_gpu_types_that_no_node_has_give_estimates_for_those_there_are(
    cluster: Cluster,
) -> None:
    kind = a_kind(steps_per_s={("H100", 8): 9.0})
    job = a_job(cluster, kind=kind)
    assert a_round(cluster).status == Round.Status.APPLIED
    assert job.assignments.get().predicted_steps_per_s
    Profile.objects.update(steps_per_s=0.0)
    later = a_job(cluster, kind=kind)
    assert a_round(cluster).status == Round.Status.APPLIED
    assert not later.assignments.exists()
