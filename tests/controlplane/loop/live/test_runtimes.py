"""Nodes of different runtimes in one cluster: every job goes where its runtime is, and says so
where it is not.
"""

from typing import Any

import pytest

import profiling.selectors
from clusters.models import Cluster, Node
from controlplane.loop.live.observe import observe
from jobs.models import Job
from policies.contract.snapshot import NodeRole
from profiling.offers import offers, reachable
from tests.builders import a_cluster, a_job, a_kind, a_node, a_user, at
from tests.builders_jobs import api
from tests.builders_live import a_round

pytestmark = pytest.mark.django_db

IMAGE: dict[str, Any] = {"runtime": "docker", "image": "me/train:1"}


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster()


def where(job: Job) -> list[Node]:
    return [a.node for a in job.assignments.filter(ended_at=None)]


def test_each_job_goes_to_a_node_of_its_runtime(cluster: Cluster) -> None:
    processes = a_node(cluster, gpus=2, features=["process", "shared"])
    containers = a_node(cluster, gpus=2, features=["docker", "checkpoint"])
    jobs = [a_job(cluster), a_job(cluster, **IMAGE), a_job(cluster), a_job(cluster, **IMAGE)]
    a_round(cluster)
    assert [where(j) for j in jobs] == [[processes], [containers], [processes], [containers]]


def test_a_node_of_both_runtimes_takes_both(cluster: Cluster) -> None:
    node = a_node(cluster, gpus=2, features=["docker", "process", "shared"])
    jobs = [a_job(cluster), a_job(cluster, **IMAGE)]
    a_round(cluster)
    assert [where(j) for j in jobs] == [[node], [node]]


def test_a_node_that_has_told_nothing_yet_runs_processes(cluster: Cluster) -> None:
    node = a_node(cluster, gpus=2)
    jobs = [a_job(cluster), a_job(cluster, **IMAGE)]
    a_round(cluster)
    assert [where(j) for j in jobs] == [[node], []]


def test_a_job_whose_runtime_no_ready_node_has_says_which_node_would_do(cluster: Cluster) -> None:
    a_node(cluster, features=["process"])
    away = a_node(cluster, features=["docker"], state="cordoned", name="crane")
    job = a_job(cluster, **IMAGE)
    a_round(cluster)
    operator = a_user(operator=True)
    waiting = api(operator).get(f"/api/v1/jobs/{job.pk}/").data["waiting"]
    assert waiting["code"] == "nodes_unavailable"
    assert waiting["reason"] == "Only crane could run it, but takes no new jobs now."
    Node.objects.filter(pk=away.pk).delete()
    a_round(cluster)
    assert (
        api(operator).get(f"/api/v1/jobs/{job.pk}/").data["waiting"]["reason"]
        == "No node that suits it offers the runtime docker."
    )


def test_a_label_of_people_cannot_pretend_a_runtime(cluster: Cluster) -> None:
    a_node(cluster, features=["process"], labels=["runtime:docker", "imagenet"])
    (view,) = observe(cluster.pk, at(0).timestamp(), 1, profiling.selectors).snapshot.nodes
    assert view.labels == ("imagenet", "runtime:process")


def test_a_kind_is_measured_only_where_its_jobs_runtime_is(cluster: Cluster) -> None:
    a_node(cluster, gpu_type="T4", gpus=1, role=NodeRole.PROFILING, features=["process"])
    docker = a_node(cluster, gpu_type="V100", gpus=1, role=NodeRole.PROFILING, features=["docker"])
    job = a_job(cluster, kind=a_kind(), repeatable=True, **IMAGE)
    assert reachable(job, offers(cluster, at(0)).now) == {(docker.gpu_type_id, 1)}
