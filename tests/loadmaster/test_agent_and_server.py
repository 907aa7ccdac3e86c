"""The real agent and the real server, without a network between them."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from django.test import Client

from clusters.models import Assignment, LogChunk, Node
from clusters.services import request_stop
from clusters.services.enrolment import issue_enrolment_token
from jobs.lifecycle import JobState
from loadmaster.agent.client import AgentClient, Unauthorized
from loadmaster.agent.journal import Journal
from loadmaster.agent.loop import Agent
from loadmaster.agent.machine import EmulatedDevices, Identity, boot_id
from loadmaster.agent.runtimes.process import ProcessRuntime
from loadmaster.protocol import FEATURES, AssignmentState, ReasonClass, Registration, StopReason
from tests.builders import a_cluster, a_gpu_type, a_job
from tests.builders_agent import FAST, an_emulation, python, until
from tests.builders_agents import an_offer

pytestmark = pytest.mark.django_db

TRAINER = python(
    "import loadmaster.training as training\n"
    "done = [0]\n"
    "def save(path): path.write_text(str(done[0]))\n"
    "def load(path): done[0] = int(path.read_text())\n"
    "for batch in training.steps(range(10), save=save, load=load):\n"
    "    done[0] += 1\n"
    "    training.report(loss=1.0 / done[0])\n"
    "print('steps', done[0])\n"
)


def to_django(request: httpx.Request) -> httpx.Response:
    headers = {name: value for name, value in request.headers.items() if name not in ("host", "content-length", "content-type")}
    answer = Client().generic(
        request.method,
        request.url.raw_path.decode(),
        request.read(),
        content_type=request.headers.get("content-type", "application/octet-stream"),
        headers=headers,
    )
    return httpx.Response(answer.status_code, content=answer.content)


class Site:
    """A cluster with one enrolled node and its agent."""

    def __init__(self, state_dir: Path) -> None:
        a_gpu_type("V100")
        self.cluster = a_cluster(heartbeat_s=0.5, lease_s=20.0, grace_s=10.0)
        self.state_dir = state_dir
        self.identity = Identity("machine-1", boot_id(), "host")
        self.devices = EmulatedDevices(an_emulation(step_s={"default": {1: 0.05}}), "n1")
        self.client = AgentClient("http://testserver", transport=httpx.MockTransport(to_django))
        token = issue_enrolment_token(self.cluster)
        registered = self.client.register(token, self.registration())
        self.client.identify(registered.node_id, registered.node_token)
        self.node = Node.objects.get(pk=registered.node_id)
        self.agent = self.start()

    def registration(self) -> Registration:
        features = tuple(sorted(FEATURES))
        return Registration("machine-1", boot_id(), "host", self.devices.reports(), 2.0, 8.0, "0.1.0", features=features, name="n1")

    def start(self) -> Agent:
        return Agent(
            client=self.client,
            journal=Journal(self.state_dir / "journal.jsonl"),
            runtime=ProcessRuntime(self.state_dir / "runs"),
            devices=self.devices,
            identity=self.identity,
            state_dir=self.state_dir,
            pace=FAST,
        )

    def restart(self) -> None:
        self.agent.close()
        self.agent = self.start()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    site = Site(tmp_path)
    yield site
    site.agent.stop_all()
    site.agent.close()


def is_state(assignment: Assignment, state: AssignmentState) -> bool:
    assignment.refresh_from_db()
    return assignment.state == state


def test_a_training_job_is_preempted_resumed_after_a_restart_of_the_agent_and_finished(site: Site) -> None:
    job = a_job(site.cluster, command=list(TRAINER), total_steps=60)
    first = an_offer(site.node, job)
    until(lambda: is_state(first, AssignmentState.RUNNING) and first.steps_done > 5, site.agent)
    request_stop(first, StopReason.PREEMPT)
    until(lambda: is_state(first, AssignmentState.PREEMPTED), site.agent)
    job.refresh_from_db()
    assert (first.exit_code, first.reason_class, job.state) == (75, ReasonClass.PREEMPT, JobState.QUEUED)
    second = an_offer(site.node, job)
    until(lambda: is_state(second, AssignmentState.RUNNING), site.agent)
    site.restart()
    until(lambda: is_state(second, AssignmentState.SUCCEEDED) and site.agent.is_idle, site.agent)
    job.refresh_from_db()
    output = b"".join(LogChunk.objects.filter(assignment=second, stream="stdout").values_list("data", flat=True))
    assert (output, second.steps_done, job.state) == (b"steps 60\n", 60, JobState.COMPLETED)


def test_a_failing_job_says_why(site: Site) -> None:
    assignment = an_offer(site.node, a_job(site.cluster, command=list(python("raise SystemExit('no data')"))))
    until(lambda: is_state(assignment, AssignmentState.FAILED), site.agent)
    assert assignment.reason_class == ReasonClass.USER
    assert "no data" in assignment.reason


def test_a_cancelled_job_ends(site: Site) -> None:
    assignment = an_offer(site.node, a_job(site.cluster, command=list(python("import time; time.sleep(60)"))))
    until(lambda: is_state(assignment, AssignmentState.RUNNING), site.agent)
    request_stop(assignment, StopReason.CANCEL)
    until(lambda: is_state(assignment, AssignmentState.CANCELLED), site.agent)


def test_a_used_token_enrols_no_other_machine(site: Site) -> None:
    token = issue_enrolment_token(site.cluster)
    words = site.registration()
    site.client.register(token, words)
    site.restart()
    with pytest.raises(Unauthorized):
        site.client.register("no such token", words)
