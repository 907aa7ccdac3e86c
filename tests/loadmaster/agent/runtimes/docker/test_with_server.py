"""A training job's whole way through containers: real agents, real Engine, the real server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters.models import Node
from controlplane.execution.services.stops import stop_assignment
from jobs.lifecycle import JobState
from jobs.models import JobArray
from loadmaster.protocol import AssignmentState, ReasonClass, StopReason
from tests.builders import a_job
from tests.builders_agent_site import is_state
from tests.builders_agents import an_offer
from tests.builders_docker import BASE, an_api, python3, sh
from tests.builders_docker_site import LIBRARY, TRAINER, DockerSite, a_docker_job, runs
from tests.builders_jobs import kept_output

pytestmark = [pytest.mark.docker, pytest.mark.django_db, pytest.mark.timeout(240)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[DockerSite]:
    site = DockerSite(tmp_path)
    yield site
    site.close()


def test_a_training_job_is_preempted_and_resumes_in_another_container_on_another_node(
    site: DockerSite,
) -> None:
    job = a_docker_job(site.cluster, command=list(TRAINER), mounts=[LIBRARY], total_steps=60)
    first = site.offer(0, job)
    site.until(lambda: is_state(first, AssignmentState.RUNNING) and first.steps_done > 5)
    stop_assignment(first, StopReason.PREEMPT)
    site.until(lambda: is_state(first, AssignmentState.PREEMPTED))
    job.refresh_from_db()
    assert (first.exit_code, first.reason_class, job.state) == (
        75,
        ReasonClass.PREEMPT,
        JobState.QUEUED,
    )
    with an_api() as api:
        assert job.image_digest == api.images(BASE, quiet=True)[0]
    second = site.offer(1, job)
    site.until(lambda: is_state(second, AssignmentState.RUNNING))
    site.nodes[1].restart()
    site.until(lambda: is_state(second, AssignmentState.SUCCEEDED) and site.nodes[1].agent.is_idle)
    job.refresh_from_db()
    assert (kept_output(second), second.steps_done, job.state) == (
        b"steps 60\n",
        60,
        JobState.COMPLETED,
    )
    assert second.start_steps == first.steps_done > 5
    assert second.container == f"lm-{second.pk}-{second.fence}"


def test_a_cancelled_job_is_over_when_its_container_is(site: DockerSite) -> None:
    assignment = site.offer(0, a_docker_job(site.cluster, command=list(sh("exec sleep 60"))))
    site.until(lambda: is_state(assignment, AssignmentState.RUNNING))
    name = assignment.container
    stop_assignment(assignment, StopReason.CANCEL)
    site.until(lambda: is_state(assignment, AssignmentState.CANCELLED))
    with an_api() as api:
        assert not api.containers(filters={"name": name})


def test_an_image_that_cannot_be_pulled_ends_with_its_reason(
    site: DockerSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadmaster.agent.runtimes.docker.preparing.PULL_PAUSE_S", 0.0)
    assignment = site.offer(0, a_docker_job(site.cluster, image="registry.invalid/no/such:1"))
    site.until(lambda: is_state(assignment, AssignmentState.FAILED))
    assert assignment.reason_class == ReasonClass.IMAGE
    assert "registry.invalid/no/such:1 cannot be pulled" in assignment.reason


def test_a_job_that_runs_out_of_memory_says_so(site: DockerSite) -> None:
    job = a_docker_job(
        site.cluster, memory_gb=0.1, command=list(python3("x = b'x' * 400_000_000; print(len(x))"))
    )
    assignment = site.offer(0, job)
    site.until(lambda: is_state(assignment, AssignmentState.FAILED))
    assert assignment.reason_class == ReasonClass.OOM


def test_a_mount_that_the_operator_does_not_allow_is_rejected(site: DockerSite) -> None:
    assignment = site.offer(0, a_docker_job(site.cluster, mounts=["/etc:/host:ro"]))
    site.until(lambda: is_state(assignment, AssignmentState.REJECTED))
    assert assignment.reason_class == ReasonClass.USER
    assert "mounts[0]" in assignment.reason


def test_a_process_job_is_rejected_by_a_docker_node_which_says_what_it_offers(
    site: DockerSite,
) -> None:
    features = Node.objects.get(pk=site.nodes[0].node.pk).features
    assert "docker" in features
    assert "process" not in features
    assignment = site.offer(0, a_job(site.cluster, command=["true"]))
    site.until(lambda: is_state(assignment, AssignmentState.REJECTED))
    assert "runtime docker, not process" in assignment.reason


def test_a_batch_job_of_two_seats_runs_in_one_container_and_holds_the_other_node(
    site: DockerSite,
) -> None:
    told = "echo $LOADMASTER_HOSTS $LOADMASTER_HOST_UNITS; sleep 8"
    job = a_docker_job(
        site.cluster, command=list(sh(told)), batch=True, units=3, gpus_min=0, gpus_max=0
    )
    first, held = (
        an_offer(site.nodes[node].node, job, rank=node, world_size=2, units=2 - node, gpus=0)
        for node in range(2)
    )
    site.until(lambda: all(is_state(a, AssignmentState.RUNNING) for a in (first, held)))
    site.until(lambda: runs(first.container))
    with an_api() as api:
        assert not api.containers(all=True, filters={"name": f"lm-{held.pk}-{held.fence}"})
    site.nodes[1].restart()
    site.until(lambda: is_state(held, AssignmentState.PREEMPTED))
    site.until(lambda: all(node.agent.is_idle for node in site.nodes))
    job.refresh_from_db()
    assert kept_output(first) == b"n1,n2 2,1\n"
    assert (first.job_id, job.state) == (job.pk, JobState.COMPLETED)


def test_an_element_of_an_array_runs_its_script_in_the_image(site: DockerSite) -> None:
    array = JobArray.objects.create(indices="1-5:2", size=3, lowest=1, highest=5, step=2)
    lines = (
        "#!/bin/bash",
        "scontrol show hostnames",
        "srun -n2 sh -c 'echo $SLURM_JOB_NAME $SLURM_ARRAY_TASK_ID $SLURM_PROCID' | sort",
        "exit 3",
    )
    values = {"script": "\n".join(lines), "command": [], "array": array, "array_index": 3}
    job = a_docker_job(
        site.cluster, name="mine", batch=True, gpus_min=0, gpus_max=0, cores=2.0, **values
    )
    assignment = an_offer(site.nodes[0].node, job, gpus=0)
    site.until(lambda: is_state(assignment, AssignmentState.FAILED))
    assert kept_output(assignment) == b"n1\nmine 3 0\nmine 3 1\n"
    assert (assignment.exit_code, assignment.reason_class) == (3, ReasonClass.USER)
