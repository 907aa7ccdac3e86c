"""Scripts for Slurm: GPUs of exclusive and uneven nodes, and their launches."""

from typing import Any

import pytest
from django.contrib.auth.models import User

from clusters.models import Cluster, Device, Node
from jobs.models import Job
from jobs.services import job_submit
from loadmaster.features import features_with
from tests.builders import a_gpu_type, a_node
from tests.builders_live import a_round
from tests.builders_sbatch import sbatch, taken


def test_nodes_with_older_agents_get_no_scripts(user: User, cluster: Cluster) -> None:
    job = job_submit(user, sbatch()).job
    assert Job.objects.get(pk=job.pk).needs_batch
    assert not any("batch" in node.features for node in Node.objects.all())


@pytest.mark.parametrize(
    ("lines", "fields"),
    [
        (["--exclusive"], {"gpus_min": 4, "units": 1}),
        (["--exclusive --gres=gpu:1"], {"gpus_min": 4, "units": 1}),
        (["--exclusive -G1 -N1"], {"gpus_min": 4, "nodes": 1}),
        (["--exclusive -N2"], {"gpus_min": 8, "units": 2, "nodes": 2}),
        (["--exclusive -N2 -n4 --gpus-per-node=1"], {"gpus_min": 8, "units": 4, "nodes": 2}),
        (["--exclusive -N1 -n3"], {"gpus_min": 4, "units": 1, "cores": 3.0}),
        (["--exclusive --ntasks-per-node=2"], {"gpus_min": 4, "units": 2}),
        (["--exclusive=user -G1"], {"gpus_min": 1}),
        (["--exclusive -n4"], {"gpus_min": 0, "units": 4}),
    ],
)
def test_exclusive_script_has_all_gpus_of_its_nodes(
    user: User, cluster: Cluster, lines: list[str], fields: dict[str, Any]
) -> None:
    job = taken(user, *lines).job
    assert job.exclusive
    assert {name: getattr(job, name) for name in fields} == fields


def test_exclusive_script_has_gpus_of_suitable_nodes(user: User, cluster: Cluster) -> None:
    big = a_gpu_type("A100")
    a_node(cluster, gpu_type=big, gpus=8, cores=16, memory_gb=64, labels=["big"])
    a_node(cluster, gpus=0, cores=16, memory_gb=64, labels=["plain"])
    assert taken(user, "--exclusive --gres=gpu:A100:1").job.gpus_min == 8
    assert taken(user, "--exclusive --gres=gpu:v100:1").job.gpus_min == 4
    assert taken(user, "--exclusive -C big").job.gpus_min == 8
    assert taken(user, "--exclusive -C plain").job.gpus_min == 0
    assert taken(user, "--exclusive -G1 -C a100").job.gpus_min == 8


def test_exclusive_script_keeps_its_gpus_on_unequal_nodes(user: User, cluster: Cluster) -> None:
    a_node(cluster, gpus=8, cores=16, memory_gb=64)
    request = taken(user, "--exclusive -G1")
    assert request.job.gpus_min == 1
    assert request.warnings == (
        "line 2: --exclusive: gets the GPUs asked for; nodes have different numbers of them",
    )
    assert taken(user, "--exclusive").job.gpus_min == 0


def test_unhealthy_gpus_of_a_node_are_not_asked_for(user: User, cluster: Cluster) -> None:
    for node in Node.objects.all():
        Device.objects.filter(pk=node.devices.all()[0].pk).update(healthy=False)
    assert taken(user, "--exclusive").job.gpus_min == 3


def test_tasks_are_spread_evenly_over_uneven_gpus(user: User, cluster: Cluster) -> None:
    job = taken(user, "-G3 -N2").job
    assert job.environment["SLURM_TASKS_PER_NODE"] == "1(x2)"
    assert "SLURM_NTASKS" not in job.environment
    assert taken(user, "-G3 -N2 -n5").job.environment["SLURM_TASKS_PER_NODE"] == "3,2"


@pytest.fixture
def able_agents(cluster: Cluster) -> None:
    """Let the agents of all nodes know scripts and limits."""
    Node.objects.update(features=list(features_with("process")))


@pytest.mark.usefixtures("able_agents")
def test_uneven_gpus_start_on_two_nodes(user: User, cluster: Cluster) -> None:
    job = job_submit(user, sbatch("-G5 -N2 -t5")).job
    a_round(cluster)
    seats = job.assignments.order_by("rank").values_list("gpus", "units")
    assert sorted(seats) in ([(1, 1), (4, 4)], [(2, 2), (3, 3)])
    job.refresh_from_db()
    assert job.state == "starting"


@pytest.mark.usefixtures("able_agents")
def test_exclusive_script_starts_with_all_gpus_of_its_node(user: User, cluster: Cluster) -> None:
    jobs = [job_submit(user, sbatch("--exclusive -G1 -t5")).job for _ in range(3)]
    a_round(cluster)
    held = [list(job.assignments.values_list("gpus", flat=True)) for job in jobs]
    assert sorted(held) == [[], [4], [4]]
