"""All of `make up` on a disk that is really full: nothing dies, reads go on, submissions are told
why not, and everything resumes once there is room.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from controlplane.web.http import request_metrics
from controlplane.web.http.request_metrics import FIRST_BYTES, ReservedFile, count_request
from tests.builders_disks import SmallDisk, small_disk

ROOT = Path(__file__).parents[3]
PATIENCE_S = 120.0
FULL_S = 25.0
LONG = "python -m loadmaster.demo.convnet --batch-size 64"

pytestmark = pytest.mark.root


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path, 256) as disk:
        yield disk


def eventually(holds: Callable[[], object], said: Path) -> None:
    ends_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < ends_s, said.read_text()[-3000:]
        time.sleep(0.5)


def programs(home: Path, words: str) -> list[psutil.Process]:
    """Processes of the system with these words in their command."""
    found = []
    for process in psutil.process_iter():
        try:
            mine = process.environ().get("LOADMASTER_HOME") == str(home)
            if mine and words in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def submit(client: httpx.Client, name: str) -> httpx.Response:
    fields = {"name": name, "team": "research", "command": LONG, "gpus": 1}
    return client.post("/api/v1/jobs/", json={**fields, "epochs": 500, "steps_per_epoch": 4})


def states(client: httpx.Client) -> dict[str, str]:
    rows = client.get("/api/v1/jobs/").raise_for_status().json()["results"]
    return {row["name"]: row["state"] for row in rows}


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.HTTPError:
        return False


@pytest.mark.timeout(600)
def test_a_full_disk_kills_no_process_fails_no_job_and_is_over_when_there_is_room(
    disk: SmallDisk, tmp_path: Path
) -> None:
    home, said = disk.folder / "home", tmp_path / "said"
    apart = ("DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE")
    env = {name: value for name, value in os.environ.items() if name not in apart}
    limits = {"LOADMASTER_NODE_LEAST_FREE_GB": "0.02", "LOADMASTER_SERVER_LEAST_FREE_GB": "0.02"}
    env |= {"LOADMASTER_HOME": str(home), **limits}
    with said.open("w") as output:
        argv = [sys.executable, "-u", "manage.py", "embedded", "--port", "31240"]
        system = subprocess.Popen(argv, cwd=ROOT, env=env, stdout=output, stderr=output)
    try:
        eventually(lambda: "password" in said.read_text(), said)
        told = re.search(r"up: (\S+)\n.*password (\S+)", said.read_text())
        assert told is not None
        with httpx.Client(base_url=told[1], timeout=60) as client:
            account = {
                "username": "admin",
                "password": told[2],
                "new_password": "a new one of ours",
            }
            token = client.post("/api/v1/tokens/", json=account).json()["token"]
            client.headers["Authorization"] = f"Bearer {token}"
            through_a_full_disk(client, disk, home, said)
        assert system.poll() is None, said.read_text()
    finally:
        if system.poll() is None:
            system.terminate()
        system.wait(90)


def through_a_full_disk(client: httpx.Client, disk: SmallDisk, home: Path, said: Path) -> None:
    submit(client, "before").raise_for_status()
    eventually(lambda: states(client)["before"] == "running", said)
    disk.fill()
    killed = [p for words in ("controlplane.serve", " worker ") for p in programs(home, words)]
    for process in killed:
        process.send_signal(signal.SIGKILL)
    eventually(lambda: answers(client), said)
    ends_s, codes, reads = time.monotonic() + FULL_S, set(), set()
    while time.monotonic() < ends_s:
        disk.fill()
        answer = submit(client, "full")
        codes.add(answer.status_code)
        reads.add(client.get("/api/v1/jobs/").status_code)
        time.sleep(1)
    assert (codes, reads) == ({507}, {200})
    assert "make room" in answer.json()["error"]["detail"]
    checks = client.get("/readyz").json()["checks"]
    assert (checks["database"], checks["cache"]) == ("disk_full", "ok")
    assert re.search(r"^loadmaster_server_disk_free_bytes \d", client.get("/metrics").text, re.M)
    disk.make_room()
    submit(client, "after").raise_for_status()
    eventually(lambda: states(client)["after"] in ("running", "completed"), said)
    eventually(lambda: client.get("/readyz").status_code == 200, said)
    assert "failed" not in states(client).values()
    ended = re.findall(r"ended with (\S+);", said.read_text())
    assert set(ended) == {"-9"}, said.read_text()


def test_counters_of_requests_are_given_up_with_one_line_and_resume_when_there_is_room(
    disk: SmallDisk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk.fill()
    with pytest.raises(OSError, match="No space"):
        ReservedFile(str(disk.folder / "counter_1.db"))
    assert not (disk.folder / "counter_1.db").exists(), "an empty file is no file of counters"

    def no_room(*labels: str) -> None:
        ReservedFile(str(disk.folder / "counter_1.db"))

    monkeypatch.setattr(request_metrics, "_metrics_of", no_room)
    for _ in range(3):
        count_request("GET", "/", 200, 0.1)
    assert caplog.text.count("requests are not counted") == 1
    disk.make_room()
    ReservedFile(str(disk.folder / "counter_1.db")).close()  # type: ignore[no-untyped-call]


def test_a_file_of_counters_grows_by_room_that_it_has_reserved(disk: SmallDisk) -> None:
    path = disk.folder / "counter_1.db"
    counters = ReservedFile(str(path))
    keys = [f"{number}:" + "x" * 100 for number in range(2000)]

    def set_all(value: float) -> None:
        for key in keys:
            counters.write_value(key, value, 0.0)  # type: ignore[no-untyped-call]

    disk.fill()
    with pytest.raises(OSError, match="No space"):
        set_all(1.0)
    disk.make_room()
    set_all(2.0)
    counters.close()  # type: ignore[no-untyped-call]
    status = path.stat()
    assert status.st_size > FIRST_BYTES
    assert status.st_blocks * 512 >= status.st_size, "a hole ends a process by SIGBUS"
    found = ReservedFile.read_all_values_from_file(str(path))  # type: ignore[no-untyped-call]
    assert {key: value for key, value, *_ in found} == dict.fromkeys(keys, 2.0)
