"""A whole system runs a job that prints its secret; afterwards its value is in no file of it:
database, broker, logs, journals.
"""

import base64
import gzip
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[2]
VALUE = "s3cr3t-value-that-nobody-keeps-0123456789"
METRICS = "a-token-for-metrics-0123456789"
PATIENCE_S = 240.0
OVER = ("completed", "failed", "cancelled")
PRINTS_IT = """
import os, sys
key = os.environ["KEY"]
print("stdout", key, flush=True)
print(key[:9], end="", flush=True)
print(key[9:], flush=True)
sys.exit("stderr " + key)
"""


@dataclass
class System:
    """A running embedded system; `said` is what its supervisor wrote."""

    process: subprocess.Popen[str]
    home: Path
    said: Path
    client: httpx.Client

    def stop(self) -> None:
        """SIGTERM, as Ctrl-C does it."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(90)


def eventually(what: str, seen: Any, said: Path) -> Any:
    """What it comes to; fails with the supervisor's words if it never does."""
    ends = time.monotonic() + PATIENCE_S
    while not (found := seen()):
        assert time.monotonic() < ends, f"no {what}: {said.read_text()[-3000:]}"
        time.sleep(0.5)
    return found


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    home, said = tmp_path / "home", tmp_path / "said"
    without = {
        name: value
        for name, value in os.environ.items()
        if name not in ("DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE")
    }
    debug = {
        "LOADMASTER_LOG_LEVEL": "DEBUG",
        "LOADMASTER_LOG_FORMAT": "json",
        "LOADMASTER_METRICS_TOKEN": METRICS,
    }
    env = {**without, **debug, "LOADMASTER_HOME": str(home)}
    with said.open("w") as output:
        argv = [sys.executable, "-u", "manage.py", "embedded", "--port", "31200"]
        process = subprocess.Popen(argv, cwd=ROOT, env=env, stdout=output, stderr=output, text=True)
    try:
        told = r"up: (\S+)\n.*password (\S+)"
        url, password = eventually(
            "start", lambda: re.search(told, said.read_text()), said
        ).groups()
        client = httpx.Client(base_url=url, timeout=60)
        account = {"username": "admin", "password": password, "new_password": "a new one of ours"}
        given = client.post("/api/v1/tokens/", json=account)
        client.headers["Authorization"] = f"Bearer {given.json()['token']}"
        yield System(process, home, said, client)
        client.close()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(90)


def shapes(value: str) -> list[bytes]:
    """The value as it is, and what of it shows in base64 wherever in a text it begins: so the
    broker keeps messages.
    """
    raw = value.encode()
    return [
        raw,
        *(
            base64.b64encode(b"x" * shift + raw)[4 : 4 * ((shift + len(raw)) // 3)]
            for shift in range(3)
        ),
    ]


def holders(folder: Path, value: str) -> list[str]:
    """The files that hold it in any shape."""
    wanted = shapes(value)
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [
        str(path.relative_to(folder))
        for path in files
        if any(shape in path.read_bytes() for shape in wanted)
    ]


def a_job(system: System, **values: Any) -> str:
    fields = {
        "name": "prints", "kind": "prints", "command": [sys.executable, "-c", PRINTS_IT],
        "steps": 4, "gpus": 1, "cores": 0.1,
        "memory_gb": 0.1, "walltime": 60, "max_retries": 0,
        "environment": {"KEY": {"secret": "wandb"}}, **values,
    }  # fmt: skip
    answer = system.client.post("/api/v1/jobs/", json=fields)
    assert answer.status_code == 201, answer.text
    return str(answer.json().get("id") or answer.json()["job"]["id"])


def test_the_shapes_find_a_value_that_is_encoded_within_a_message() -> None:
    for before in ("", "a", "ab", "abc"):
        kept = base64.b64encode(f"{before}{VALUE} and more".encode())
        assert any(shape in kept for shape in shapes(VALUE))
    assert not any(
        shape in base64.b64encode(b"something else, as long as the value is or even longer")
        for shape in shapes(VALUE)
    )


def test_the_value_of_a_secret_is_nowhere_once_its_jobs_are_over(system: System) -> None:
    put = system.client.put("/api/v1/teams/research/secrets/wandb/", json={"value": VALUE})
    assert put.status_code == 204
    job = a_job(system)
    eventually("failed launch", lambda: _reasons(system, job), system.said)
    system.client.post(f"/api/v1/jobs/{job}/cancel/")
    eventually(
        "end",
        lambda: system.client.get(f"/api/v1/jobs/{job}/").json()["state"] in OVER,
        system.said,
    )
    assert all("***" in reason for reason in _reasons(system, job))
    told = system.client.get("/metrics", headers={"Authorization": f"Bearer {METRICS}"})
    assert told.status_code == 200
    for text in (
        told.text,
        *_reasons(system, job),
        system.client.get(f"/api/v1/jobs/{job}/events/").text,
    ):
        assert VALUE not in text
    runs = system.home / "agents"
    eventually("end of the runs' folders", lambda: not list(runs.glob("*/runs/lm-*")), system.said)
    system.stop()
    nothing_is_left(system)


def _reasons(system: System, job: str) -> list[str]:
    """Why its launches have failed so far: with the last words of their output."""
    rows = system.client.get(f"/api/v1/jobs/{job}/assignments/").json()["results"]
    return [row["reason"] for row in rows if row["state"] == "failed"]


def nothing_is_left(system: System) -> None:
    """Neither the value nor the caller's token is in any file; those that could hold them were
    searched.
    """
    home = system.home
    with closing(sqlite3.connect(home / "db.sqlite3")) as database:
        rows = database.execute("SELECT data, unpacked_size FROM jobs_logchunk")
        kept = [gzip.decompress(data) if packed else data for data, packed in rows]
    assert [text for text in kept if b"*" * len(VALUE) in text], "no output was shipped"
    assert [text for text in kept if VALUE.encode() in text] == []
    assert '"level": "debug"' in (home / "logs" / "web.log").read_text()
    assert list(home.glob("agents/*/journal.jsonl"))
    agents = "".join(path.read_text() for path in home.glob("logs/agent-*.log"))
    assert '"job": ' in agents
    assert holders(home, VALUE) == []
    assert VALUE not in system.said.read_text()
    token = system.client.headers["Authorization"].removeprefix("Bearer ")
    assert holders(home, token) == []
