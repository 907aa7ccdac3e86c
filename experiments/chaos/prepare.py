"""Fills the database of the system under chaos, and says as JSON what is to be started and how to
get in.

It runs in a process of its own with the system's environment (LOADMASTER_HOME, DATABASE_URL,
REDIS_URL), so the harness itself needs neither Django nor a database: it knows the system only as
its users and agents do.
"""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
from knox.models import AuthToken

from clusters.models import Cluster, Node
from clusters.services.enrolment import issue_enrolment_token
from controlplane.operations.bootstrap import ADMIN, CLUSTER, EMULATED_NODES, bootstrap
from controlplane.operations.embedded import programs
from controlplane.operations.embedded.supervisor import Program
from controlplane.web.credentials.passwords import SESSION_KEY
from experiments.chaos.jobs import spreading
from experiments.chaos.jobs.forms import APART, GANGS, SLOTS

STEP_S = 0.2
KEPT = 0.7
"""Fraction of its speed that a job keeps beside another one on its GPU."""

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
    """Wishes of the harness, JSON in the first argument.

    Agents find the server at `host`, and keep their files in `nodes`; the last two are a cluster of
    their own. There are `processes` of worker and beat each, and the web server has as many.
    """

    agents: int
    host: str
    port: int
    clockwork: dict[str, float]
    nodes: str
    processes: int = 1


def prepare(wanted: Wanted) -> dict[str, Any]:
    """Make everything that is not there yet."""
    call_command("migrate", verbosity=0)
    bootstrap()
    _make_cluster_of_gangs()
    Cluster.objects.update(**wanted.clockwork)
    home: Path = settings.LOADMASTER_HOME
    (home / "logs").mkdir(exist_ok=True)
    agents = (_agent(number, wanted) for number in range(wanted.agents))
    parts = [_broker(home), _web(wanted), *agents]
    parts += [part for n in range(wanted.processes) for part in _workers(n, home, wanted)]
    _, token = AuthToken.objects.create(User.objects.get(username=ADMIN))
    return {
        "parts": [
            {"name": part.name, "argv": list(part.argv), "env": dict(part.env)} for part in parts
        ],
        "token": token,
        "url": f"http://{wanted.host}:{wanted.port}",
    }


def _make_cluster_of_gangs() -> None:
    """Make a cluster whose policy spreads gangs over nodes, and lets jobs share GPUs."""
    policy = {"policy": spreading.NAME, "policy_parameters": {}}
    Cluster.objects.get_or_create(name=GANGS, defaults=policy)


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


def _workers(number: int, home: Path, wanted: Wanted) -> tuple[Program, Program]:
    """Return a worker and a beat; one of several has one process and a name of its own."""
    worker, beat = programs.worker(home), programs.beat()
    if wanted.processes == 1:
        return worker, beat
    argv = [*worker.argv, "--concurrency", "1", "--hostname", f"worker-{number}@%h"]
    named = replace(worker, name=f"worker-{number}", argv=argv)
    return named, replace(beat, name=f"beat-{number}")


def _agent(number: int, wanted: Wanted) -> Program:
    """An enrolled agent with emulated GPUs of one of the local types; jobs may share the GPUs of
    the last two.
    """
    is_apart, home = number >= wanted.agents - APART, Path(wanted.nodes)
    like = EMULATED_NODES[0 if is_apart else number % len(EMULATED_NODES)]
    name, folder = f"agent-{number}", home / "agents"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    emulation = {
        "gpu_type": like.gpu_type,
        "count": like.gpus,
        "memory_gb": 16.0,
        "step_s": {"default": {1: STEP_S}},
        "shared": {"default": {"default": KEPT}},
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(emulation))
    token = folder / f"{name}.token"
    if not Node.objects.filter(name=name).exists():
        cluster = Cluster.objects.get(name=GANGS if is_apart else CLUSTER)
        token.touch(mode=0o600)
        token.write_text(issue_enrolment_token(cluster, role="both"))
    agent = programs.agent(name, home, wanted.port, folder / f"{name}.yaml", token)
    server = [
        f"http://{wanted.host}:{wanted.port}" if word.startswith("http://") else word
        for word in agent.argv
    ]
    slots = ["--slots-per-gpu", str(SLOTS)] if is_apart else []
    return Program(name, [*server, *slots], env=agent.env)


def log_in() -> None:
    """Log the admin in as one who has chosen a password, and print the cookie of the session."""
    browser = Client()
    browser.force_login(User.objects.get(username=ADMIN))
    session = browser.session
    session.pop(SESSION_KEY, None)
    session.save()
    sys.stdout.write(json.dumps({"session": browser.cookies["sessionid"].value}) + "\n")


def main() -> None:
    """Prepare what the first argument asks for, and print what was made."""
    sys.stdout.write(json.dumps(prepare(Wanted(**json.loads(sys.argv[1])))) + "\n")
