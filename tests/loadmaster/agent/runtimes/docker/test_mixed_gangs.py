"""A gang of containers over two GPU types, placed by `hadar`: trained by gloo, moved and struck."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters.models import Cluster
from clusters.services.nodes import node_drain
from jobs.lifecycle import JobState
from jobs.models import Assignment, Job
from loadmaster.protocol import AssignmentState, ReasonClass
from profiling.models import Measurement
from tests.builders import a_gpu_type, a_kind
from tests.builders_agent import an_emulation
from tests.builders_agent_site import is_state
from tests.builders_docker import ROOT, a_network, an_api, sh
from tests.builders_docker_site import DockerSite, a_docker_job
from tests.builders_gangs import TORCH_JOB, learned_undisturbed
from tests.builders_jobs import kept_output
from tests.builders_live import a_round

pytestmark = [
    pytest.mark.docker,
    pytest.mark.torch,
    pytest.mark.django_db,
    pytest.mark.timeout(480),
]

GPUS = 3
STEPS = 60
STEP_S = {"default": dict.fromkeys(range(1, GPUS + 1), 0.05)}
PACKAGES = Path(pytest.__file__).parents[1]
"""The installed packages, PyTorch among them: the image's Python is of the same version."""

MOUNTS = [
    f"{ROOT}/loadmaster:/code/loadmaster:ro",
    f"{ROOT}/tests:/code/tests:ro",
    f"{PACKAGES}:/packages:ro",
]
TRAIN = sh(
    f"PYTHONPATH=/code:/packages python3 -m {TORCH_JOB} /tmp/result.json"
    ' && if [ "$RANK" = 0 ]; then cat /tmp/result.json; fi'
)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[DockerSite]:
    """A node each of two V100s, of two P100s and of one T4, under `hadar`."""
    emulations = []
    for gpu_type, count in (("V100", 2), ("P100", 2), ("T4", 1)):
        a_gpu_type(gpu_type)
        emulations.append(an_emulation(gpu_type=gpu_type, count=count, step_s=STEP_S))
    with a_network() as network:
        mounts = (ROOT / "tests", PACKAGES)
        site = DockerSite(tmp_path, network=network, emulations=emulations, mounts=mounts)
        Cluster.objects.filter(pk=site.cluster.pk).update(policy="hadar", policy_parameters={})
        yield site
        site.close()


def a_mixed_gang(site: DockerSite) -> Job:
    """A job of three GPUs, of which no node and no type but V100 and P100 has as many."""
    speeds = {}
    for gpu_type, speed in (("V100", 20.0), ("P100", 10.0), ("T4", 8.0)):
        for gpus in range(1, GPUS + 1):
            speeds[gpu_type, gpus] = speed
    return a_docker_job(
        site.cluster, kind=a_kind(steps_per_s=speeds), command=list(TRAIN), mounts=MOUNTS,
        total_steps=STEPS, gpus_min=GPUS, gpus_max=GPUS, may_mix=True, max_retries=1,
    )  # fmt: skip


def launched(site: DockerSite, job: Job) -> tuple[Assignment, Assignment]:
    """Hold a round; the two ranks of the gang that it starts, once both have done some steps."""
    site.until(lambda: all(node.agent.is_idle for node in site.nodes))
    row = a_round(site.cluster)
    assert (row.status, row.rejected) == ("applied", [])
    newest = job.assignments.order_by("-fence", "rank")[:2]
    lead, member = list(newest)
    assert (lead.fence, lead.rank, member.rank) == (member.fence, 0, 1)
    assert lead.gpus + member.gpus == GPUS
    assert lead.node.gpu_type_id != member.node.gpu_type_id

    def both_step() -> bool:
        ranks = (lead, member)
        return all(is_state(rank, AssignmentState.RUNNING) for rank in ranks) and all(
            rank.steps_done > rank.start_steps + 3 for rank in ranks
        )

    site.until(both_step, within_s=180.0)
    return lead, member


def type_of(rank: Assignment) -> str:
    return str(rank.node.gpu_type)


def is_queued(job: Job) -> bool:
    job.refresh_from_db()
    return job.state == JobState.QUEUED


def until_all(site: DockerSite, ranks: tuple[Assignment, ...], state: AssignmentState) -> None:
    site.until(lambda: all(is_state(rank, state) for rank in ranks), within_s=180.0)


def test_a_mixed_gang_of_containers_survives_a_move_and_a_kill(
    site: DockerSite, tmp_path: Path
) -> None:
    # 1. It starts on V100s and P100s; the P100s' node is drained, and it moves to another one.
    job = a_mixed_gang(site)
    first = launched(site, job)
    (left,) = [rank.node for rank in first if type_of(rank) != "V100"]
    node_drain(left)
    a_round(site.cluster)  # its launch is put off: the gang still holds some of its GPUs
    until_all(site, first, AssignmentState.PREEMPTED)

    # 2. A container is killed: the gang falls whole, and is queued again.
    second = launched(site, job)
    assert left not in [rank.node for rank in second]
    assert second[0].start_steps == first[0].steps_done > 0
    with an_api() as api:
        api.kill(second[1].container, signal="SIGKILL")
    until_all(site, second[1:], AssignmentState.FAILED)
    assert second[1].reason_class == ReasonClass.NODE
    site.until(lambda: is_queued(job), within_s=180.0)
    second[0].refresh_from_db()
    assert second[0].state in (AssignmentState.FAILED, AssignmentState.PREEMPTED)

    # 3. It goes on from its checkpoint to its end, and has learned what it learns undisturbed.
    third = launched(site, job)
    assert third[0].start_steps >= second[0].start_steps
    until_all(site, third, AssignmentState.SUCCEEDED)
    job.refresh_from_db()
    assert job.state == JobState.COMPLETED
    learned = json.loads(kept_output(third[0]))
    assert learned == learned_undisturbed(tmp_path / "undisturbed", STEPS)

    # 4. The gang is one in its prediction, its measured speed and its bill.
    lead, member = third
    assert lead.predicted_steps_per_s == member.predicted_steps_per_s is not None
    (slower,) = [type_of(rank) for rank in third if type_of(rank) != "V100"]
    measured = list(Measurement.objects.filter(assignment=lead))
    assert {str(each.gpu_type) for each in measured} == {slower}
    assert {(each.gpus, each.spread) for each in measured} == {(GPUS, True)}
    assert all(rank.energy_cost is not None and rank.energy_cost > 0 for rank in third)
