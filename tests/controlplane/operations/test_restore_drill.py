"""The drill: jobs run, a backup is made, more happens, the house goes back to the backup, and the
agents come back to it.

Agents, server and rounds are real; played are the jobs, and the one clock that everybody has.
"""

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import httpx
import pytest
from django.core.management import call_command
from django.utils import timezone
from pytest_django import DjangoDbBlocker

from clusters.events import request_reschedule
from clusters.models import Reason
from clusters.services.enrolment import issue_enrolment_token
from controlplane.execution.services.stops import stop_assignment
from controlplane.loop.live.solver import solve_here
from controlplane.loop.live.world import Ports, hold_round
from controlplane.web.storage.watch import Watch
from jobs.models import Assignment, Job
from loadmaster.agent.executor import Parts
from loadmaster.agent.journal import Journal
from loadmaster.agent.loop import Agent, Timing
from loadmaster.agent.node.machine import EmulatedDevices, Identity, boot_id
from loadmaster.agent.runtimes.base import RunState
from loadmaster.agent.server.client import AgentClient
from loadmaster.features import FEATURES
from loadmaster.protocol import Registration, StopReason
from tests.builders import a_cluster, a_gpu_type, a_job, a_kind, a_team
from tests.builders_agent import an_emulation
from tests.builders_agents import reconcile_clusters
from tests.builders_asgi import SiteClient
from tests.builders_databases import migrated, postgres_database, sqlite_database
from tests.fake_runtime import FakeRuntime, Script, VirtualClock

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TURN_S = 0.5
STEP_S = 0.5
PATIENCE_S = 600.0
CLOCK = {"heartbeat_s": 1.0, "lease_s": 10.0, "grace_s": 2.0, "margin_s": 2.0}
LONGEST_S = 16.0
"""More than lease, grace and margin: whatever was cut off has ended by itself."""


class Network(httpx.BaseTransport):
    """To the server in this process; cut off while `down`."""

    def __init__(self) -> None:
        self.down = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self.down:
            raise httpx.ConnectError("no way")
        kept = {
            k: v
            for k, v in request.headers.items()
            if k not in ("host", "content-length", "content-type")
        }
        kind = request.headers.get("content-type", "application/octet-stream")
        answer = SiteClient().generic(
            request.method,
            request.url.raw_path.decode(),
            request.read(),
            content_type=kind,
            headers=kept,
        )
        return httpx.Response(answer.status_code, content=answer.content)


class Machine:
    """A node with its agent, whose jobs are played. `saved` is the checkpoint place that all
    machines share.
    """

    def __init__(
        self, name: str, folder: Path, clock: VirtualClock, token: str, saved: dict[str, int]
    ) -> None:
        self.network = Network()
        self.runtime = FakeRuntime(clock, lambda spec: Script(step_s=STEP_S), saved)
        devices = EmulatedDevices(an_emulation(), name)
        client = AgentClient("http://testserver", transport=self.network)
        features = tuple(sorted(FEATURES))
        words = Registration(
            name,
            boot_id(),
            name,
            devices.reports(),
            8.0,
            32.0,
            "0.1.0",
            features=features,
            name=name,
        )
        registered = client.register(token, words)
        client.identify(registered.node_id, registered.node_token)
        parts = Parts(
            client=client,
            journal=Journal(folder / f"{name}.jsonl"),
            runtime=self.runtime,
            devices=devices,
            identity=Identity(name, boot_id(), name),
            state_dir=folder,
            checkpoints=folder / "checkpoints",
            clock=clock,
        )
        timing = Timing(tick_s=TURN_S, ship_s=TURN_S, sample_s=5.0, flush_s=2.0, long_poll_s=0.0)
        self.agent = Agent(parts, timing=timing, jitter=random.Random(1))

    def running(self) -> list[str]:
        """Jobs that work here at this moment, whatever anybody believes."""
        works = [
            run for run in self.runtime.list() if self.runtime.poll(run).state is RunState.RUNNING
        ]
        return [spec.job for run in works if (spec := self.runtime.spec(run)) is not None]


class House:
    """Server and machines; every turn looks for a job that works in two places."""

    def __init__(self, folder: Path, clock: VirtualClock) -> None:
        self.clock = clock
        a_gpu_type("V100", emulated=True)
        self.cluster = a_cluster(name="main", restart_cost_s=0.0, **CLOCK)
        self.saved: dict[str, int] = {}
        self.machines = [
            Machine(n, folder, clock, issue_enrolment_token(self.cluster), self.saved)
            for n in ("n1", "n2", "n3")
        ]
        self.overlaps: list[str] = []
        self.kind = a_kind("digits", steps_per_s={("V100", 1): 20.0, ("V100", 2): 20.0})
        self.team = a_team("vision")

    def submit(self, name: str, steps: int = 120) -> Job:
        return a_job(self.cluster, name=name, team=self.team, kind=self.kind, total_steps=steps)

    def turn(self) -> None:
        """A little of everybody's work."""
        for machine in self.machines:
            machine.agent.tick()
        reconcile_clusters()
        watch = Watch(self.clock.boot_s, lambda: "house")
        hold_round(self.cluster.pk, Ports(solve_here, self.clock.wall_s, watch=watch))
        seen = [job for machine in self.machines for job in machine.running()]
        self.overlaps += [job for job in set(seen) if seen.count(job) > 1]
        self.clock.advance(TURN_S)

    def until(self, holds: Callable[[], object]) -> None:
        """Go on until something holds; AssertionError if it never does."""
        end_s = self.clock.boot_s() + PATIENCE_S
        while not holds():
            assert self.clock.boot_s() < end_s, list(
                Job.objects.values_list("name", "state", "waiting_code", "fence")
            )
            self.turn()

    def for_a_while(self, seconds: float) -> None:
        """Go on for so long."""
        end_s = self.clock.boot_s() + seconds
        while self.clock.boot_s() < end_s:
            self.turn()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def house(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    django_db_blocker: DjangoDbBlocker,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[House]:
    """A house with a database of its own."""
    own = (
        sqlite_database(tmp_path / "db.sqlite3")
        if request.param == "sqlite"
        else postgres_database()
    )
    with django_db_blocker.unblock(), own:
        migrated()
        clock = VirtualClock()
        monkeypatch.setattr(timezone, "now", lambda: datetime.fromtimestamp(clock.wall_s(), UTC))
        house = House(tmp_path, clock)
        yield house
        for machine in house.machines:
            machine.agent.close()


def place_of(job: Job) -> tuple[str, int]:
    """(node, fence) of the job's newest launch."""
    launch = Assignment.objects.filter(job=job).select_related("node").latest("fence")
    return launch.node.name, launch.fence


def runs(name: str) -> bool:
    return Job.objects.get(name=name).state == "running"


def test_a_house_that_went_back_to_a_backup_finishes_its_jobs_and_runs_none_twice(
    house: House, tmp_path: Path
) -> None:
    jobs = [house.submit(f"job-{i}") for i in range(5)]
    request_reschedule(house.cluster, Reason.OPERATOR)
    house.until(lambda: all(runs(job.name) for job in jobs))
    call_command("backup", str(tmp_path / "house.backup"), stdout=StringIO())
    believed = {job.name: place_of(job) for job in jobs}

    # More happens: a job is moved on to a higher fence, another one comes, and one node is cut off
    # with what it runs.
    stop_assignment(
        Assignment.objects.get(job=jobs[0], state="running"), StopReason.PREEMPT, "test"
    )
    late = house.submit("late", steps=10_000)
    house.until(
        lambda: (
            runs("late") and runs(jobs[0].name) and place_of(jobs[0])[1] > believed[jobs[0].name][1]
        )
    )
    cut_off = next(m for m in house.machines if m.running())
    cut_off.network.down = True
    house.turn()

    call_command("restore", str(tmp_path / "house.backup"), force=True, stdout=StringIO())
    assert not Job.objects.filter(name="late").exists()
    assert {job.name: place_of(job) for job in jobs} == believed
    house.for_a_while(LONGEST_S)
    cut_off.network.down = False
    house.until(lambda: all(job.state == "completed" for job in Job.objects.all()))
    house.for_a_while(5.0)

    assert house.overlaps == []
    assert str(late.pk) not in [job for machine in house.machines for job in machine.running()]
    assert Job.objects.get(pk=jobs[0].pk).fence > 1_000_000
    assert all(job.steps_done == 120 for job in Job.objects.all())
    assert all(machine.agent.is_idle for machine in house.machines)
