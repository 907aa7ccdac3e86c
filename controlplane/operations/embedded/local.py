"""Embedded system: start all in order, enrol local agents, stop all."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from django.conf import settings
from django.core.management import call_command
from django.db import connections
from django.db.models import QuerySet

import loadmaster
from clusters.models import Cluster, Node
from clusters.services.enrolment import issue_enrolment_token
from controlplane.operations.bootstrap import (
    ADMIN,
    CLUSTER,
    EMULATED_NODES,
    EmulatedNode,
    bootstrap,
)
from controlplane.operations.demo.image import check_engine
from controlplane.operations.demo.scenario import step_s
from controlplane.operations.embedded import programs
from controlplane.operations.embedded.programs import PROCESSES, LocalRuntime
from controlplane.operations.embedded.supervisor import Program, Supervisor, python
from loadmaster.files import private_folder, write_whole


@dataclass(frozen=True, slots=True)
class Local:
    """Running Loadmaster on this machine; `password` is a new admin's."""

    supervisor: Supervisor
    url: str
    password: str | None


_POLL_S = 0.2
"""Pause in seconds while the policies' kernels are being compiled."""


def ignore_pages(local: Local) -> None:
    """Do nothing when the pages answer."""


@contextmanager
def running_locally(
    port: int,
    say: Callable[[str], None],
    runtime: LocalRuntime = PROCESSES,
    nodes: Sequence[EmulatedNode] = EMULATED_NODES,
    on_pages: Callable[[Local], None] = ignore_pages,
) -> Iterator[Local]:
    """Start everything, yield, and stop everything. Raises EmbeddedError.

    `port`: of the pages. `say` receives a line before each step that takes seconds. `nodes`: one
    agent is started for each. `on_pages` is called once the pages answer, before agents and worker
    start.
    """
    if runtime.name == "docker":
        check_engine()
    home: Path = settings.LOADMASTER_HOME
    with Supervisor(home, say) as supervisor:
        # 1. The database, the pages' files, and what an empty installation needs.
        say("Preparing the database ...")
        call_command("migrate", verbosity=0)
        _collect_static_files()
        password = bootstrap()

        # 2. The broker and the pages. People can log in from here on.
        port = programs.free_port(port)
        say("Starting the pages ...")
        if not settings.REDIS_URL:
            supervisor.start(programs.valkey(home))
        supervisor.start(programs.web(port))
        local = Local(supervisor, f"http://127.0.0.1:{port}", password)
        on_pages(local)

        # 3. The agents, while a child compiles the policies' kernels.
        with _compiling_kernels() as compiler:
            say(f"Starting agents and the worker ({len(nodes)} nodes of emulated GPUs) ...")
            for node in nodes:
                supervisor.start(_agent(node, home, port, runtime))
            _await_kernels(compiler, supervisor)

        # 4. The worker and its clock. They stop first, so that no agent gets offers late.
        supervisor.start(programs.worker(home))
        supervisor.start(programs.beat())
        yield local


def _collect_static_files() -> None:
    """Copy the pages' files to where web serves them from, unless they are there already."""
    files = (settings.BASE_DIR / "static").rglob("*")
    newest_ns = max(path.stat().st_mtime_ns for path in files)
    state = f"{loadmaster.__version__} {newest_ns}"
    stamp = Path(settings.STATIC_ROOT) / "loadmaster.stamp"
    if not stamp.exists() or stamp.read_text() != state:
        call_command("collectstatic", interactive=False, verbosity=0)
        stamp.write_text(state)


@contextmanager
def _compiling_kernels() -> Iterator[subprocess.Popen[bytes]]:
    """Start a child that compiles the policies' kernels, or loads them, and then ends.

    Its lower priority leaves the processors to the programs that start meanwhile. The workers'
    solvers find the result on the disk; without it the first round would compile.
    """
    solver = ["nice", "-n", "10", *python("-m", "policies", "serve")]
    child = subprocess.Popen(solver, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def _await_kernels(compiler: subprocess.Popen[bytes], supervisor: Supervisor) -> None:
    """Wait for the child's end. If it failed, so will the worker's solver, which says why."""
    if compiler.poll() is None:
        supervisor.say(
            "Compiling the policies' kernels, once and for about half a minute; jobs start after"
            " it ..."
        )
    while compiler.poll() is None:
        supervisor.pause(_POLL_S)


def welcome(local: Local) -> list[str]:
    """Return the lines that tell where the pages are and how to log in."""
    home = os.path.relpath(settings.LOADMASTER_HOME)
    python = os.path.relpath(sys.executable)
    if local.password:
        login = (
            f"Log in as {ADMIN} with the one-time password {local.password} (shown only now, and"
            " changed at the first login)"
        )
    else:
        login = (
            f"Log in as {ADMIN}. Forgotten the password? LOADMASTER_HOME={home} {python} manage.py"
            f" changepassword {ADMIN}"
        )
    return [f"The pages are up: {local.url}", login]


def _agent(node: EmulatedNode, home: Path, port: int, runtime: LocalRuntime = PROCESSES) -> Program:
    """Return the program of a node's agent: with emulated GPUs and, at first, a token to enrol."""
    folder = private_folder(home / "agents")
    emulation = folder / f"{node.name}.yaml"
    emulation.write_text(yaml.safe_dump(_emulation(node)))
    token_file = folder / f"{node.name}.token"
    last_epoch = _last_epoch(node)
    if last_epoch is None:  # not enrolled yet
        cluster = Cluster.objects.get(name=CLUSTER)
        write_whole(token_file, issue_enrolment_token(cluster, role="both").encode())
    program = programs.agent(node.name, home, port, emulation, token_file, runtime)
    return replace(program, ready=lambda: _has_session_after(node, last_epoch or 0))


def _has_session_after(node: EmulatedNode, last_epoch: int) -> bool:
    """Return True if the agent has begun a session after that epoch.

    Then its node gets the emulated node's base power, unless an operator has set another.
    """
    connections.close_all()  # a supervisor holds no connection while it waits
    if (_last_epoch(node) or 0) <= last_epoch:
        return False
    default_w = Node._meta.get_field("base_w").default
    _rows(node).filter(base_w=default_w).update(base_w=node.base_w)
    return True


def _last_epoch(node: EmulatedNode) -> int | None:
    """Return the number of the node's last session; None if it was never enrolled."""
    return _rows(node).values_list("epoch", flat=True).first()


def _rows(node: EmulatedNode) -> QuerySet[Node]:
    """Return the node's row; none until its agent has enrolled."""
    return Node.objects.filter(cluster__name=CLUSTER, name=node.name)


def _emulation(node: EmulatedNode) -> dict[str, object]:
    """Return the content of the agent's file of emulated GPUs."""
    return {
        "gpu_type": node.gpu_type,
        "count": node.gpus,
        "memory_gb": node.memory_gb,
        "step_s": {**step_s(node.gpu_type), "default": {1: 0.1, 2: 0.06}},
        "idle_w": node.idle_w,
        "peak_w": node.peak_w,
    }
