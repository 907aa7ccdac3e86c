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


@contextmanager
def running_locally(
    port: int,
    say: Callable[[str], None],
    runtime: LocalRuntime = PROCESSES,
    nodes: Sequence[EmulatedNode] = EMULATED_NODES,
) -> Iterator[Local]:
    """Start everything, yield, and stop everything; "docker" runs jobs in containers."""
    if runtime.name == "docker":
        check_engine()
    home: Path = settings.LOADMASTER_HOME
    with Supervisor(home, say) as supervisor:
        call_command("migrate", verbosity=0)
        newest = max(path.stat().st_mtime_ns for path in (settings.BASE_DIR / "static").rglob("*"))
        stamp = Path(settings.STATIC_ROOT) / "loadmaster.stamp"
        wanted = f"{loadmaster.__version__} {newest}"
        if not stamp.exists() or stamp.read_text() != wanted:
            call_command("collectstatic", interactive=False, verbosity=0)
            stamp.write_text(wanted)
        password = bootstrap()
        port = programs.free_port(port)
        for program in _programs(home, port, runtime, nodes):
            supervisor.start(program)
        yield Local(supervisor, f"http://127.0.0.1:{port}", password)


def welcome(local: Local) -> list[str]:
    home, python = os.path.relpath(settings.LOADMASTER_HOME), os.path.relpath(sys.executable)
    login = (
        f"Log in as {ADMIN} with the one-time password {local.password} (shown only now, and"
        " changed at the first login)"
        if local.password
        else f"Log in as {ADMIN}. Forgotten the password? LOADMASTER_HOME={home} {python} manage.py"
        f" changepassword {ADMIN}"
    )
    return [f"Loadmaster is up: {local.url}", login]


def _programs(
    home: Path, port: int, runtime: LocalRuntime, nodes: Sequence[EmulatedNode]
) -> Iterator[Program]:
    """Programs in starting order; workers stop first so that no agent gets offers late."""
    if not settings.REDIS_URL:
        yield programs.valkey(home)
    # A child compiles the policies' kernels meanwhile, so that the first round need not wait.
    null, solver = subprocess.DEVNULL, python("-m", "policies", "serve")
    with subprocess.Popen(solver, stdin=null, stdout=null):
        yield programs.web(port)
        for node in nodes:
            yield _agent(node, home, port, runtime)
    yield programs.worker(home)
    yield programs.beat()


def _agent(node: EmulatedNode, home: Path, port: int, runtime: LocalRuntime = PROCESSES) -> Program:
    """Node's agent with its emulated GPUs and, before its first start, a token."""
    folder = private_folder(home / "agents")
    emulation = folder / f"{node.name}.yaml"
    emulation.write_text(yaml.safe_dump(_emulation(node)))
    token_file = folder / f"{node.name}.token"
    before = _epoch(node)
    if before is None:
        cluster = Cluster.objects.get(name=CLUSTER)
        write_whole(token_file, issue_enrolment_token(cluster, role="both").encode())
    program = programs.agent(node.name, home, port, emulation, token_file, runtime)
    return replace(program, ready=lambda: _is_in(node, before or 0))


def _is_in(node: EmulatedNode, before: int) -> bool:
    connections.close_all()  # a supervisor holds no connection while it waits
    if (_epoch(node) or 0) <= before:
        return False
    _row(node).filter(base_w=Node._meta.get_field("base_w").default).update(base_w=node.base_w)
    return True


def _epoch(node: EmulatedNode) -> int | None:
    return _row(node).values_list("epoch", flat=True).first()


def _row(node: EmulatedNode) -> QuerySet[Node]:
    return Node.objects.filter(cluster__name=CLUSTER, name=node.name)


def _emulation(node: EmulatedNode) -> dict[str, object]:
    return {
        "gpu_type": node.gpu_type,
        "count": node.gpus,
        "memory_gb": node.memory_gb,
        "step_s": {**step_s(node.gpu_type), "default": {1: 0.1, 2: 0.06}},
        "idle_w": node.idle_w,
        "peak_w": node.peak_w,
    }
