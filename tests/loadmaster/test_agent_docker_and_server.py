"""A training job's whole way through containers: real agents, real Engine, the real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusters.models import Assignment, LogChunk, Node
from clusters.services import request_stop
from jobs.lifecycle import JobState
from jobs.models import Job
from loadmaster.agent.runtimes.docker import DockerEngine, DockerOptions, DockerRuntime
from loadmaster.agent.runtimes.docker.options import AllowedMount
from loadmaster.protocol import AssignmentState, ReasonClass, StopReason
from tests.builders import a_job
from tests.builders_agent import until
from tests.builders_agent_site import NodeSite, a_site_cluster, is_state
from tests.builders_agents import an_offer
from tests.builders_docker import BASE, ROOT, an_api, clear_containers, python3, sh

pytestmark = [pytest.mark.docker, pytest.mark.django_db, pytest.mark.timeout(240)]

TRAINER = python3(
    "import sys; sys.path.insert(0, '/library')\n"
    "import loadmaster.training as training\n"
    "done = [0]\n"
    "def save(path): path.write_text(str(done[0]))\n"
    "def load(path): done[0] = int(path.read_text())\n"
    "for batch in training.steps(range(10), save=save, load=load):\n"
    "    done[0] += 1\n"
    "    training.report(loss=1.0 / done[0])\n"
    "print('steps', done[0])\n"
)
LIBRARY = f"{ROOT}/loadmaster:/library/loadmaster:ro"


class DockerSite:
    """Two nodes of one cluster whose agents run containers and share a folder of checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.cluster = a_site_cluster()
        self.folder = folder
        self.owners: list[str] = []
        self.nodes = [self._node(name) for name in ("n1", "n2")]

    def _node(self, name: str) -> NodeSite:
        owner = f"test-{self.folder.name}-{name}-{id(self)}"
        self.owners.append(owner)
        options = DockerOptions(network="none", pull="missing", mounts=(AllowedMount(ROOT / "loadmaster"),))

        def runtime(state_dir: Path) -> DockerRuntime:
            return DockerRuntime(state_dir / "runs", DockerEngine(), owner, options)

        return NodeSite(self.cluster, self.folder / name, name, runtime, self.folder / "checkpoints")

    def offer(self, node: int, job: Job) -> Assignment:
        return an_offer(self.nodes[node].node, job)

    def until(self, holds: Callable[[], object], within_s: float = 90.0) -> None:
        """Wait until something holds, ticking all agents."""

        def tick() -> object:
            for node in self.nodes:
                node.agent.tick()
            return holds()

        until(tick, within_s=within_s)

    def close(self) -> None:
        for node in self.nodes:
            node.leave()
        for owner in self.owners:
            clear_containers(owner)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[DockerSite]:
    site = DockerSite(tmp_path)
    yield site
    site.close()


def a_docker_job(site: DockerSite, **values: Any) -> Job:
    defaults: dict[str, Any] = {"runtime": "docker", "image": BASE, "command": list(sh("echo hello"))}
    return a_job(site.cluster, **{**defaults, **values})


def test_a_training_job_is_preempted_and_resumes_in_another_container_on_another_node(site: DockerSite) -> None:
    job = a_docker_job(site, command=list(TRAINER), mounts=[LIBRARY], total_steps=60)
    first = site.offer(0, job)
    site.until(lambda: is_state(first, AssignmentState.RUNNING) and first.steps_done > 5)
    request_stop(first, StopReason.PREEMPT)
    site.until(lambda: is_state(first, AssignmentState.PREEMPTED))
    job.refresh_from_db()
    assert (first.exit_code, first.reason_class, job.state) == (75, ReasonClass.PREEMPT, JobState.QUEUED)
    with an_api() as api:
        assert job.image_digest == api.images(BASE, quiet=True)[0]
    second = site.offer(1, job)
    site.until(lambda: is_state(second, AssignmentState.RUNNING))
    site.nodes[1].restart()
    site.until(lambda: is_state(second, AssignmentState.SUCCEEDED) and site.nodes[1].agent.is_idle)
    job.refresh_from_db()
    output = b"".join(LogChunk.objects.filter(assignment=second, stream="stdout").values_list("data", flat=True))
    assert (output, second.steps_done, job.state) == (b"steps 60\n", 60, JobState.COMPLETED)
    assert second.start_steps == first.steps_done > 5
    assert second.container == f"lm-{second.pk}-{second.fence}"


def test_a_cancelled_job_is_over_when_its_container_is(site: DockerSite) -> None:
    assignment = site.offer(0, a_docker_job(site, command=list(sh("exec sleep 60"))))
    site.until(lambda: is_state(assignment, AssignmentState.RUNNING))
    name = assignment.container
    request_stop(assignment, StopReason.CANCEL)
    site.until(lambda: is_state(assignment, AssignmentState.CANCELLED))
    with an_api() as api:
        assert not api.containers(filters={"name": name})


def test_an_image_that_cannot_be_pulled_ends_with_its_reason(site: DockerSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmaster.agent.runtimes.docker.preparing.PULL_PAUSE_S", 0.0)
    assignment = site.offer(0, a_docker_job(site, image="registry.invalid/no/such:1"))
    site.until(lambda: is_state(assignment, AssignmentState.FAILED))
    assert assignment.reason_class == ReasonClass.IMAGE
    assert "registry.invalid/no/such:1 cannot be pulled" in assignment.reason


def test_a_job_that_runs_out_of_memory_says_so(site: DockerSite) -> None:
    job = a_docker_job(site, memory_gb=0.1, command=list(python3("x = b'x' * 400_000_000; print(len(x))")))
    assignment = site.offer(0, job)
    site.until(lambda: is_state(assignment, AssignmentState.FAILED))
    assert assignment.reason_class == ReasonClass.OOM


def test_a_mount_that_the_operator_does_not_allow_is_rejected(site: DockerSite) -> None:
    assignment = site.offer(0, a_docker_job(site, mounts=["/etc:/host:ro"]))
    site.until(lambda: is_state(assignment, AssignmentState.REJECTED))
    assert assignment.reason_class == ReasonClass.USER
    assert "mounts[0]" in assignment.reason


def test_a_process_job_is_rejected_by_a_docker_node_which_says_what_it_offers(site: DockerSite) -> None:
    features = Node.objects.get(pk=site.nodes[0].node.pk).features
    assert "docker" in features
    assert "process" not in features
    assignment = site.offer(0, a_job(site.cluster, command=["true"]))
    site.until(lambda: is_state(assignment, AssignmentState.REJECTED))
    assert "runtime docker, not process" in assignment.reason
