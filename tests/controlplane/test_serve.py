"""The web server as several processes behind one address."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from controlplane.serve import main
from tests.builders_processes import is_running


def test_processes_behind_one_address_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    """However that one ends: what is left of it would hold the address, and the next one could not
    have it.
    """
    port = _free_port()
    env = {**os.environ, "LOADMASTER_HOME": str(tmp_path), "DATABASE_URL": ""}
    argv = [
        sys.executable,
        "-m",
        "controlplane.serve",
        "--port",
        str(port),
        "--workers",
        "2",
        "--grace",
        "1",
    ]
    server = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _eventually(lambda: _answers(port), "it answers")
        children = psutil.Process(server.pid).children(recursive=True)
        assert len(children) >= 2
        server.send_signal(signal.SIGKILL)
        server.wait()
        _eventually(
            lambda: not any(is_running(child) for child in children), "its processes have ended"
        )
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", port))
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("processes", ["many", "0", "-1"])
def test_a_number_of_processes_that_cannot_be_meant_is_refused(
    processes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([f"--workers={processes}"])
    assert "WEB_CONCURRENCY" in capsys.readouterr().err


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=5.0).status_code in (200, 503)
    except httpx.TransportError:
        return False


def _eventually(holds: Callable[[], bool], what: str, within_s: float = 30.0) -> None:
    until_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until_s, what
        time.sleep(0.1)
