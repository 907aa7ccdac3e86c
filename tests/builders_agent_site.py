"""Builders of tests in which real agents speak with the real server, without a network between
them.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from pytest_django.live_server_helper import LiveServer

from clusters.models import Cluster, Node
from clusters.services.enrolment import issue_enrolment_token
from jobs.models import Assignment
from loadmaster.agent.executor import Parts
from loadmaster.agent.journal import Journal
from loadmaster.agent.loop import Agent
from loadmaster.agent.node.emulated import Emulation
from loadmaster.agent.node.machine import Devices, EmulatedDevices, Identity, boot_id
from loadmaster.agent.runtimes.base import Runtime
from loadmaster.agent.runtimes.process import ProcessRuntime
from loadmaster.agent.server.client import AgentClient
from loadmaster.features import SHARED, features_with
from loadmaster.protocol import TIME_HEADER, AssignmentState, Registration
from tests.builders import a_cluster, a_gpu_type
from tests.builders_agent import FAST, an_emulation
from tests.builders_asgi import SiteClient

# Django's live server and the test share one connection to a database in memory. Its savepoints are
# a stack, so transactions of two threads that overlap end with "no such savepoint".
SHARED_CONNECTION = threading.Lock()


@contextmanager
def serialized(server: LiveServer) -> Iterator[None]:
    """Let the live server answer one request at a time, and none during an agent's call."""
    httpd = server.thread.httpd
    application = httpd.get_app()
    assert application is not None

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with SHARED_CONNECTION:
            return application(environ, start_response)

    httpd.set_app(answer)
    try:
        yield
    finally:
        httpd.set_app(application)


def a_site_cluster() -> Cluster:
    """A cluster with short beats, and V100s."""
    a_gpu_type("V100")
    return a_cluster(heartbeat_s=0.5, lease_s=20.0, grace_s=10.0)


def to_server(request: httpx.Request) -> httpx.Response:
    """The server's answer to an agent's call."""
    headers = {
        name: value
        for name, value in request.headers.items()
        if name not in ("host", "content-length", "content-type")
    }
    with SHARED_CONNECTION:
        answer = SiteClient().generic(
            request.method,
            request.url.raw_path.decode(),
            request.read(),
            content_type=request.headers.get("content-type", "application/octet-stream"),
            headers=headers,
        )
    told = {TIME_HEADER: answer.headers[TIME_HEADER]} if TIME_HEADER in answer.headers else {}
    return httpx.Response(answer.status_code, content=answer.content, headers=told)


def by_processes(state_dir: Path) -> Runtime:
    """The process runtime of a node whose operator lets all teams share it."""
    runtime = ProcessRuntime(state_dir / "runs")
    runtime.features = (SHARED,)
    return runtime


class NodeSite:
    """An enrolled node and its agent; `runtime` makes the agent's runtime, `checkpoints` is what
    nodes share.
    """

    def __init__(
        self,
        cluster: Cluster,
        state_dir: Path,
        name: str = "n1",
        runtime: Callable[[Path], Runtime] = by_processes,
        checkpoints: Path | None = None,
        emulation: Emulation | None = None,
        devices: Devices | None = None,
    ) -> None:
        self.cluster, self.state_dir, self.name, self.checkpoints = (
            cluster,
            state_dir,
            name,
            checkpoints,
        )
        self._runtime = runtime
        self.devices = devices or EmulatedDevices(
            emulation or an_emulation(step_s={"default": {1: 0.05}}), name
        )
        self.identity = Identity(f"machine-{name}", boot_id(), "host")
        self.client = AgentClient("http://testserver", transport=httpx.MockTransport(to_server))
        self.agent = self.start()
        registered = self.client.register(issue_enrolment_token(cluster), self.registration())
        self.client.identify(registered.node_id, registered.node_token)
        self.node = Node.objects.get(pk=registered.node_id)

    def registration(self) -> Registration:
        who, features = self.identity, features_with(self.runtime.name, *self.runtime.features)
        return Registration(
            who.machine_id,
            who.boot_id,
            who.hostname,
            self.devices.reports(),
            2.0,
            8.0,
            "0.1.0",
            features=features,
            name=self.name,
        )

    def start(self) -> Agent:
        self.runtime = self._runtime(self.state_dir)
        parts = Parts(
            client=self.client,
            journal=Journal(self.state_dir / "journal.jsonl"),
            runtime=self.runtime,
            devices=self.devices,
            identity=self.identity,
            state_dir=self.state_dir,
            checkpoints=self.checkpoints or self.state_dir / "checkpoints",
            address="127.0.0.1",
        )
        return Agent(parts, timing=FAST)

    def restart(self) -> None:
        """The agent leaves, its jobs go on, and another begins in its place."""
        self.agent.close()
        self.agent = self.start()

    def leave(self) -> None:
        """Stop all jobs, then the agent."""
        self.agent.stop_all()
        self.agent.close()


def is_state(assignment: Assignment, state: AssignmentState) -> bool:
    """Whether the server knows the assignment to be in that state."""
    assignment.refresh_from_db()
    return assignment.state == state
