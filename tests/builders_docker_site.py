"""Builders of tests in which real agents run containers for the real server: a site of two nodes,
agents as processes.
"""

import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from clusters.models import Cluster
from clusters.services.enrolment import issue_enrolment_token
from controlplane.execution.gangs import PORTS
from jobs.models import Assignment, Job
from loadmaster.agent.node.emulated import Emulation
from loadmaster.agent.runtimes.docker import DockerEngine, DockerOptions, DockerRuntime
from loadmaster.agent.runtimes.mounts import AllowedMount
from tests.builders import a_job
from tests.builders_agent import until
from tests.builders_agent_site import NodeSite, a_site_cluster, to_server
from tests.builders_agents import an_offer
from tests.builders_docker import BASE, ROOT, an_api, clear_containers, python3, sh

PROGRAM = "import sys; from loadmaster.cli.main import main; sys.exit(main())"
"""What the installed command `loadmaster` does, whichever folder it is installed in."""

STUBBORN = sh(
    "trap '' TERM; while :; do read up _ </proc/uptime; echo $up >>$HOME/marks; echo up; sleep 0.1;"
    " done"
)
"""A job that ignores SIGTERM and marks the time (boot clock) while it runs."""

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
    """Nodes of one cluster whose agents run containers and share a folder of checkpoints.

    `emulations`: of the GPUs of each node; two nodes of V100s if none is given. `mounts`: folders
    of the host that jobs may mount besides the training library.
    """

    def __init__(
        self,
        folder: Path,
        cluster: Cluster | None = None,
        network: str = "none",
        emulations: Sequence[Emulation | None] = (None, None),
        mounts: Sequence[Path] = (),
    ) -> None:
        self.cluster = cluster or a_site_cluster()
        self.folder = folder
        self.network = network
        self.mounts = tuple([AllowedMount(path) for path in (ROOT / "loadmaster", *mounts)])
        self.owners: list[str] = []
        self.nodes: list[NodeSite] = []
        for number, emulation in enumerate(emulations, start=1):
            self.nodes.append(self._node(f"n{number}", emulation))

    def _node(self, name: str, emulation: Emulation | None) -> NodeSite:
        owner = f"test-{self.folder.name}-{name}-{id(self)}"
        self.owners.append(owner)
        options = DockerOptions(network=self.network, pull="missing", mounts=self.mounts)

        def runtime(state_dir: Path) -> DockerRuntime:
            return DockerRuntime(state_dir / "runs", DockerEngine(), owner, options)

        checkpoints = self.folder / "checkpoints"
        return NodeSite(
            self.cluster, self.folder / name, name, runtime, checkpoints, emulation=emulation
        )

    def offer(self, node: int, job: Job) -> Assignment:
        return an_offer(self.nodes[node].node, job)

    def offer_gang(self, *nodes: int, job: Job) -> list[Assignment]:
        """A launch of a rank on each of these nodes."""
        return [
            an_offer(
                self.nodes[node].node, job, rank=rank, world_size=len(nodes), gang_port=PORTS[0]
            )
            for rank, node in enumerate(nodes)
        ]

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


def a_docker_job(cluster: Cluster, **values: Any) -> Job:
    """A job that says hello in the base image."""
    defaults: dict[str, Any] = {
        "runtime": "docker",
        "image": BASE,
        "command": list(sh("echo hello")),
    }
    return a_job(cluster, **{**defaults, **values})


def runs(name: str) -> bool:
    """Whether the container runs."""
    with an_api() as api:
        return bool(api.containers(filters={"name": f"^/{name}$"}))


@dataclass(slots=True)
class _Call:
    """An agent's call that waits for its answer."""

    request: httpx.Request
    answered: threading.Event = field(default_factory=threading.Event)
    answer: httpx.Response | None = None


class Wire:
    """The real server on a port, for agents in processes of their own. `down` makes it unreachable.

    It answers while the test waits (`until`), one call at a time, in the test's own thread and
    transaction.
    """

    def __init__(self) -> None:
        self.down = False
        self._calls: queue.Queue[_Call] = queue.Queue()

    def until(self, holds: Callable[[], object], within_s: float = 90.0) -> None:
        """Wait until something holds, answering calls."""

        def look() -> object:
            self._answer()
            return holds()

        until(look, within_s=within_s)

    def _answer(self) -> None:
        while not self._calls.empty():
            call = self._calls.get()
            call.answer = to_server(call.request)
            call.answered.set()

    def take(self, request: httpx.Request) -> httpx.Response | None:
        """The answer to a call, in the thread that took it; None where the server cannot be
        reached.
        """
        if self.down:
            return None
        call = _Call(request)
        self._calls.put(call)
        call.answered.wait(30)
        if call.answer is not None and request.url.path.endswith("/directives"):
            time.sleep(
                0.2
            )  # in place of the wait that the call asked for, which nobody could answer meanwhile
        return None if self.down else call.answer

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        """Be there on a port; the address."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            self.down = True
            server.shutdown()
            thread.join()
            server.server_close()


def _handler(wire: Wire) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _take(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            url = httpx.URL(f"http://testserver{self.path}")
            if "wait" in url.params:
                url = url.copy_set_param("wait", "0")
            answer = wire.take(
                httpx.Request(self.command, url, headers=dict(self.headers), content=body)
            )
            if answer is None:
                self.close_connection = True
                return
            self.send_response(answer.status_code)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            with contextlib.suppress(OSError):  # the agent is gone
                self.wfile.write(answer.content)

        def do_GET(self) -> None:
            self._take()

        def do_POST(self) -> None:
            self._take()

        def do_PUT(self) -> None:
            self._take()

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Say nothing."""

    return Handler


class AgentCommand:
    """`loadmaster agent --runtime docker` as a process; its log is kept in a file beside its state
    folder.
    """

    def __init__(self, address: str, cluster: Cluster, state_dir: Path, name: str = "n1") -> None:
        self.state_dir, self.log = state_dir, state_dir.parent / f"{name}.log"
        emulation = state_dir.parent / f"{name}.yaml"
        emulation.write_text("gpu_type: V100\ncount: 2\n")
        words = [
            "agent",
            "--server",
            address,
            "--state-dir",
            str(state_dir),
            "--name",
            name,
            "--emulate",
            str(emulation),
        ]
        words += [
            "--verbose",
            "--runtime",
            "docker",
            "--docker",
            "network=none",
            "--docker",
            "pull=never",
        ]
        environ = {
            **os.environ,
            "LOADMASTER_TOKEN": issue_enrolment_token(cluster),
            "PYTHONPATH": str(ROOT),
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *words],
                env=environ,
                cwd=ROOT,
                stderr=log,
                stdout=log,
            )

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)
