"""Scripts for Slurm that ask for labels and GPU types by --constraint."""

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from clusters.models import Cluster, Node
from controlplane.loop.live.observe import observe
from jobs.services import job_submit
from tests.builders import a_gpu_type, a_node
from tests.builders_sbatch import sbatch, taken


def test_nodes_get_the_alternatives_that_they_satisfy(user: User, cluster: Cluster) -> None:
    second = Node.objects.order_by("pk")[1]
    Node.objects.filter(pk=second.pk).update(labels=["slow", "a100"])
    job = job_submit(user, sbatch("-C 'v100|a100'")).job
    snapshot = observe(cluster.pk, timezone.now().timestamp(), 1).snapshot
    assert "a100|v100" in snapshot.jobs.columns.others["labels"][0]
    assert [node.id for node in snapshot.nodes if "a100|v100" in node.labels] == [str(second.pk)]
    assert job.labels == ["a100|v100"]


def test_alternatives_that_no_node_satisfies_are_warned_of(user: User, cluster: Cluster) -> None:
    said = taken(user, "-C 'x|y'").warnings
    assert said == ("labels: no node that fits has x or y yet; the job waits until one does",)
    Node.objects.update(labels=["y"])
    assert taken(user, "-C 'x|y'").warnings == ()


@pytest.mark.parametrize(
    ("lines", "labels", "types"),
    [
        (["-G1 -C v100"], [], ["V100"]),
        (["-G1 -C 'V100|2080ti'"], [], ["V100", "2080ti"]),
        (["-G1 -C 'v100&fast'"], ["fast"], ["V100"]),
        (["-C v100"], ["v100"], []),
        (["--gpus=2080ti:1 -C v100"], ["v100"], ["2080ti"]),
        (["-G1 -C 'v100|fast'"], ["fast|v100"], []),
    ],
)
def test_constraint_that_names_a_gpu_type_asks_for_it(
    user: User, cluster: Cluster, lines: list[str], labels: list[str], types: list[str]
) -> None:
    a_node(cluster, gpu_type=a_gpu_type(name="2080ti"), gpus=2, cores=16)
    job = taken(user, *lines).job
    assert (job.labels, sorted(job.allowed_types)) == (labels, sorted(types))


def test_label_named_as_a_gpu_type_stays_a_label(user: User, cluster: Cluster) -> None:
    a_node(cluster, gpus=4, cores=16, labels=["v100"])
    job = taken(user, "-G1 -C v100").job
    assert (job.labels, job.allowed_types) == (["v100"], [])
