"""Fills the database of the system under chaos, and says as JSON what is to be started and how to
get in.

It runs in a process of its own with the system's environment (LOADMASTER_HOME, DATABASE_URL,
REDIS_URL), so the harness itself needs neither Django nor a database: it knows the system only as
its users and agents do.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from knox.models import AuthToken

from clusters.models import Cluster, Node
from clusters.services.enrolment import issue_enrolment_token
from controlplane.operations.bootstrap import ADMIN, CLUSTER, EMULATED_NODES, bootstrap
from controlplane.operations.embedded import programs
from controlplane.operations.embedded.supervisor import Program
from jobs.models import Job

STEP_S = 0.2
BROKER = """\
bind 127.0.0.1
port {port}
dir {folder}
appendonly yes
appendfsync everysec
save ""
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Wishes of the harness, JSON in the first argument; agents find the server at `host`."""

    agents: int
    host: str
    port: int
    clockwork: dict[str, float]


def prepare(wanted: Wanted) -> dict[str, Any]:
    """Make everything that is not there yet."""
    call_command("migrate", verbosity=0)
    bootstrap()
    Cluster.objects.filter(name=CLUSTER).update(**wanted.clockwork)
    home: Path = settings.LOADMASTER_HOME
    (home / "logs").mkdir(exist_ok=True)
    parts = [
        _broker(home),
        _web(wanted),
        *(_agent(number, home, wanted) for number in range(wanted.agents)),
    ]
    parts += [programs.worker(home), programs.beat(home)]
    _, token = AuthToken.objects.create(User.objects.get(username=ADMIN))
    return {
        "parts": [
            {"name": part.name, "argv": list(part.argv), "env": dict(part.env)} for part in parts
        ],
        "token": token,
        "url": f"http://{wanted.host}:{wanted.port}",
        "jobs": Job.objects.count(),
    }


def _broker(home: Path) -> Program:
    """Valkey: on its socket, or by TCP where REDIS_URL names a port."""
    embedded = programs.valkey(home)
    if settings.REDIS_URL:
        folder = home / "valkey"
        port = settings.REDIS_URL.rpartition(":")[2].partition("/")[0]
        (folder / "valkey.conf").write_text(BROKER.format(port=port, folder=folder))
    return Program("broker", embedded.argv)


def _web(wanted: Wanted) -> Program:
    web = programs.web(wanted.port)
    return Program("web", [wanted.host if word == "127.0.0.1" else word for word in web.argv])


def _agent(number: int, home: Path, wanted: Wanted) -> Program:
    """An enrolled agent with emulated GPUs of one of the local types."""
    name, like = f"agent-{number}", EMULATED_NODES[number % len(EMULATED_NODES)]
    folder = home / "agents"
    folder.mkdir(mode=0o700, exist_ok=True)
    emulation = {
        "gpu_type": like.gpu_type,
        "count": like.gpus,
        "memory_gb": 16.0,
        "step_s": {"default": {1: STEP_S}},
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(emulation))
    token = folder / f"{name}.token"
    if not Node.objects.filter(name=name).exists():
        token.touch(mode=0o600)
        token.write_text(issue_enrolment_token(Cluster.objects.get(name=CLUSTER), role="both"))
    agent = programs.agent(name, home, wanted.port, folder / f"{name}.yaml", token)
    server = [
        f"http://{wanted.host}:{wanted.port}" if word.startswith("http://") else word
        for word in agent.argv
    ]
    return Program(name, server, env=agent.env)


def main() -> None:
    """Prepare what the first argument asks for, and print what was made."""
    sys.stdout.write(json.dumps(prepare(Wanted(**json.loads(sys.argv[1])))) + "\n")
