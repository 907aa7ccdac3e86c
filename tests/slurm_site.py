"""A Loadmaster of two nodes of 8 cores, as `make up` starts one, until its input ends.

    LOADMASTER_HOME=FOLDER python -m tests.slurm_site

Prints one line of JSON: its address, and a token of its user root, as whom the agents run too.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

NODES = ("n1", "n2")
EMULATED = """gpu_type: V100
count: 4
memory_gb: 40
idle_w: 50
peak_w: 300
step_s:
  default: {1: 0.5}
"""
"""GPUs of n1, as that of Slurm has."""


def main() -> None:
    """Start server and agents, say where, and stay."""
    import django

    django.setup()
    from controlplane.operations.embedded.local import running_locally

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with running_locally(31300, say, nodes=()) as local:
        _count_from(500_000)
        _agents(local)
        print(json.dumps({"url": local.url, "token": _token()}), flush=True)
        while sys.stdin.readline():
            pass


def _agents(local: object) -> None:
    """Start an agent for each node, which then has 8 cores and 16 GB as Slurm's have."""
    from django.conf import settings

    from clusters.models import Cluster, Node
    from clusters.services.enrolment import issue_enrolment_token
    from controlplane.operations.bootstrap import CLUSTER
    from controlplane.operations.embedded.supervisor import Program, python

    home = Path(settings.LOADMASTER_HOME)
    cluster = Cluster.objects.get(name=CLUSTER)
    Cluster.objects.update(heartbeat_s=1.0, grace_s=3.0)
    gpus = home / "gpus.yaml"
    gpus.write_text(EMULATED)
    for name in NODES:
        argv = python("-m", "loadmaster.agent", "--server", local.url, "--name", name)  # type: ignore[attr-defined]
        argv += ["--state-dir", str(home / name), "--token", issue_enrolment_token(cluster)]
        if name == "n1":
            argv += ["--emulate", str(gpus)]
        here = Node.objects.filter(name=name)
        local.supervisor.start(Program(f"agent-{name}", argv, ready=here.exists, stop_s=30))  # type: ignore[attr-defined]
    Node.objects.update(cores=8.0, memory_gb=16.8)
    Node.objects.filter(name="n1").update(labels=["fast"])


def _count_from(number: int) -> None:
    """Let numbers of jobs be long, so that they are found in what scripts print."""
    from jobs.models import JobCounter

    JobCounter.objects.create(pk=1, last=number)


def _token() -> str:
    from django.contrib.auth.models import User
    from knox.models import AuthToken

    from jobs.models import Membership, Team

    user = User.objects.create_superuser("root", password="slurm-or-not")
    Membership.objects.create(team=Team.objects.get(), user=user)
    return str(AuthToken.objects.create(user)[1])


if __name__ == "__main__":
    main()
