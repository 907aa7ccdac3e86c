"""The command `loadmaster agent --runtime docker` with the real server and a real Engine: killed,
cut off, started again.
"""

import json
import signal
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from clusters.models import Cluster, Node
from jobs.models import Assignment, Job, LogChunk
from jobs.secrets import set_secret
from loadmaster.protocol import AssignmentState, ReasonClass
from tests.builders import a_cluster, a_gpu_type, a_team, a_user
from tests.builders_agent_site import is_state
from tests.builders_agents import an_offer, reconcile_clusters
from tests.builders_docker import an_api, clear_containers, sh
from tests.builders_docker_site import STUBBORN, AgentCommand, Wire, a_docker_job, runs
from tests.builders_jobs import api, kept_output

S, R = AssignmentState, ReasonClass
pytestmark = [pytest.mark.docker, pytest.mark.django_db, pytest.mark.timeout(240)]
GRACE_S, MARGIN_S = 2.0, 5.0


class Place:
    """A node whose agent is a process, started as often as a test wants."""

    def __init__(self, folder: Path, wire: Wire, address: str) -> None:
        a_gpu_type("V100")
        self.cluster: Cluster = a_cluster(
            heartbeat_s=0.5, lease_s=8.0, grace_s=GRACE_S, margin_s=MARGIN_S
        )
        self.user: User = a_user("ada", team=a_team("research"))
        self.folder, self.wire, self.address = folder, wire, address
        self.agents: list[AgentCommand] = []

    def start(self) -> AgentCommand:
        self.agents.append(AgentCommand(self.address, self.cluster, self.folder / "state"))
        return self.agents[-1]

    def job(self, *command: str, **values: object) -> Job:
        return a_docker_job(
            self.cluster,
            command=list(command),
            user=self.user,
            team=self.user.teams.get(),
            **values,
        )

    def running(self, job: Job) -> Assignment:
        """The job's launch, once its container runs and has said something."""
        nodes = Node.objects.filter(
            cluster=self.cluster, state="ready", session_expires_at__isnull=False
        )
        self.wire.until(nodes.exists)
        assignment = an_offer(nodes.get(), job)
        said = LogChunk.objects.filter(assignment=assignment, stream="stdout")
        self.until(lambda: is_state(assignment, S.RUNNING) and said.exists())
        return assignment

    def until(self, holds: Callable[[], object]) -> None:
        self.wire.until(holds)

    def shown(self, job: Job) -> dict[str, object]:
        found: dict[str, object] = api(self.user).get(f"/api/v1/jobs/{job.pk}/").data
        return found

    def file(self, assignment: Assignment, name: str) -> str:
        return (
            self.folder / "state" / "runs" / f"lm-{assignment.pk}-{assignment.fence}" / name
        ).read_text()

    def kept_its_lease(self, assignment: Assignment) -> None:
        """The job's last sign of life is within what the server waits for before it lets the job go
        on elsewhere.
        """
        lease = json.loads(self.file(assignment, "run/lease.json"))
        assert (
            float(self.file(assignment, "work/marks").split()[-1])
            <= lease["deadline_s"] + GRACE_S + MARGIN_S
        )

    def close(self) -> None:
        for agent in self.agents:
            if agent.process.poll() is None:
                agent.end(signal.SIGKILL)
        machine = self.folder / "state" / "machine-id"
        if machine.exists():
            clear_containers(machine.read_text().strip())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    wire = Wire()
    with wire.serving() as address:
        place = Place(tmp_path, wire, address)
        yield place
        place.close()


def test_with_its_agent_killed_a_container_ends_with_lease_and_grace_and_the_job_goes_on_later(
    place: Place,
) -> None:
    agent = place.start()
    job = place.job(*STUBBORN)
    first = place.running(job)
    agent.end(signal.SIGKILL)
    assert runs(first.container)
    place.until(lambda: not runs(first.container))
    place.kept_its_lease(first)
    first.refresh_from_db()
    assert first.state in (S.RUNNING, S.UNKNOWN)
    later = timezone.now() + timedelta(seconds=8.0 + GRACE_S + MARGIN_S + 1)
    reconcile_clusters(later)
    reconcile_clusters(later)
    assert is_state(first, S.LOST)
    assert first.reason == "its node was silent for longer than the lease, the grace and the margin"
    told = place.shown(job)
    assert (told["state"], told["retries_used"]) == ("queued", 0)
    place.start()
    second = place.running(Job.objects.get(pk=job.pk))
    assert second.fence == first.fence + 1
    with an_api() as engine:
        place.until(lambda: not engine.containers(all=True, filters={"name": first.container}))


def test_a_killed_agent_that_is_back_within_the_lease_adopts_what_runs(place: Place) -> None:
    agent = place.start()
    job = place.job(*sh("echo up; while [ ! -e $HOME/go ]; do sleep 0.1; done; echo done"))
    assignment = place.running(job)
    with an_api() as engine:
        made = engine.inspect_container(assignment.container)["Id"]
        agent.end(signal.SIGKILL)
        place.start()
        epoch = Node.objects.get(pk=assignment.node_id).epoch
        place.until(lambda: Node.objects.get(pk=assignment.node_id).epoch > epoch)
        assert engine.inspect_container(assignment.container)["Id"] == made
    work = place.folder / "state" / "runs" / assignment.container / "work"
    (work / "go").touch()
    place.until(lambda: is_state(assignment, S.SUCCEEDED))
    place.until(lambda: kept_output(assignment) == b"up\ndone\n")
    told = place.shown(job)
    assert (told["state"], told["retries_used"], job.assignments.count()) == ("completed", 0, 1)


def test_with_its_server_gone_a_container_ends_with_its_lease_and_the_server_hears_why_later(
    place: Place,
) -> None:
    place.start()
    job = place.job(*STUBBORN)
    assignment = place.running(job)
    place.wire.down = True
    place.until(lambda: not runs(assignment.container))
    place.kept_its_lease(assignment)
    assert not is_state(assignment, S.FAILED)
    place.wire.down = False
    place.until(lambda: is_state(assignment, S.FAILED))
    assert (assignment.reason_class, assignment.reason) == (R.LEASE, "the lease ran out")
    told = place.shown(job)
    assert (told["state"], told["retries_used"]) == ("queued", 0)


def test_secrets_are_in_the_job_and_neither_in_what_the_engine_shows_nor_in_any_log(
    place: Place,
) -> None:
    secret = f"hunter2-{uuid.uuid4().hex}"
    agent = place.start()
    set_secret(place.user.teams.get(), "api-key", secret)
    script = (
        "echo up; echo key=$KEY; echo $KEY >&2; printf %s $KEY >$HOME/key; while :; do sleep 0.2;"
        " done"
    )
    assignment = place.running(place.job(*sh(script), environment={"KEY": {"secret": "api-key"}}))
    place.until(lambda: b"key=" in kept_output(assignment))
    with an_api() as engine:
        told = json.dumps(engine.inspect_container(assignment.container)) + json.dumps(
            engine.top(assignment.container)
        )
        told += bytes(engine.logs(assignment.container)).decode()
    assert place.file(assignment, "work/key") == secret
    assert assignment.container in told + agent.log.read_text()
    assert secret not in told
    assert secret not in agent.log.read_text()
    assert secret.encode() not in kept_output(assignment) + kept_output(assignment, "stderr")
    assert secret not in json.dumps(place.shown(assignment.job), default=str)
