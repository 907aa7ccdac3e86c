"""Faults are what they say: disks without room, a broker without its state, a database that comes
back, and the choice of those that a machine can make.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from experiments.chaos.faults import choice
from experiments.chaos.faults.choice import chosen, jumps_of
from experiments.chaos.faults.database import postgres
from experiments.chaos.faults.filling import DiskError, Filling, small_disks
from experiments.chaos.faults.killing import Killing
from experiments.chaos.parts import Part
from experiments.chaos.schedule import CLOCK, DATABASE, DISK, EMPTY_BROKER, FAULTS, Blow
from experiments.chaos.system import Site, System

SLEEP = "import time; print('Ready to accept', flush=True); time.sleep(60)"
SLEEPER = [sys.executable, "-c", SLEEP]


class Others:
    """The field of other blows."""

    def strike(self, blow: Blow) -> str | None:
        return f"struck {blow.target}"

    def mend(self) -> None:
        pass


class Parts:
    """A system of some parts."""

    def __init__(self, folder: Path, *parts: Part) -> None:
        self.site = Site(folder, 1, {}, 1)
        self.parts = {part.name: part for part in parts}
        self.full: list[str] = []

    def note_full(self) -> None:
        self.full.append("full")

    def note_room(self) -> None:
        self.full.append("room")

    def of(self, target: str) -> list[Part]:
        return System.of(cast(System, self), target)


def a_blow(part: str, target: str, **values: Any) -> Blow:
    return replace(Blow(0, part, "", 0.0, 0.0, target), **values)


def until_at_work(part: Part) -> None:
    while not part.works_since(0):
        part.look()


def test_a_broker_is_restarted_empty(tmp_path: Path) -> None:
    broker = Part("broker", SLEEPER, {}, tmp_path / "log")
    system = Parts(tmp_path, broker)
    kept = system.site.home / "valkey" / "appendonlydir" / "base.aof"
    kept.parent.mkdir(parents=True)
    kept.write_text("")
    broker.start()
    until_at_work(broker)
    field = Killing(cast(System, system))
    try:
        assert "removed its state" in str(field.strike(a_blow(EMPTY_BROKER, "broker")))
        assert not kept.parent.exists()
        until_at_work(broker)
    finally:
        broker.kill(60.0)


def test_one_of_several_workers_is_killed(tmp_path: Path) -> None:
    workers = [Part(f"worker-{n}", SLEEPER, {}, tmp_path / f"{n}") for n in range(2)]
    for worker in workers:
        worker.start()
    field = Killing(cast(System, Parts(tmp_path, *workers)))
    try:
        said = field.strike(a_blow("worker", "worker", number=3, early=True, hold_s=60.0))
        assert said == "killed worker-1 (back in 60.0 s)"
        assert [worker.is_alive for worker in workers] == [True, False]
    finally:
        workers[0].kill(60.0)


def test_an_agent_is_lost_once_it_has_launches(tmp_path: Path) -> None:
    names = ("agent-0", "agent-1")
    agents = [Part(name, ["sleep", "60"], {}, tmp_path / f"{name}.log") for name in names]
    for agent in agents:
        agent.start()
    system = Parts(tmp_path, *agents)
    field, blow = Killing(cast(System, system)), a_blow("agent", "agent", early=True, busy=True)
    try:
        assert field.strike(blow) is None
        run = system.site.nodes / "agents" / "agent-1" / "runs" / "lm-1"
        run.mkdir(parents=True)
        (run / "guard.pid").write_text("1")
        assert "killed agent-1" in str(field.strike(blow))
        assert agents[0].is_alive
    finally:
        for agent in agents:
            agent.kill(60.0)


def test_all_faults_are_made_that_this_machine_can_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.setattr(choice, "mounted", lambda *_: (_ for _ in ()).throw(DiskError("not root")))
    monkeypatch.setattr(shutil, "which", lambda program: None)
    said = list[str]()
    parts = chosen("", "beat", tmp_path, said.append)
    assert set(parts) == set(FAULTS) - {"beat", CLOCK, DISK, DATABASE}
    assert any("clocks need a C compiler (cc)" in text for text in said)
    assert any("no small ext4 can be mounted: not root" in text for text in said)
    assert any("database: only PostgreSQL" in text for text in said)
    assert chosen("worker,web", "", tmp_path, said.append) == ("worker", "web")
    monkeypatch.setattr(shutil, "which", lambda program: f"/usr/bin/{program}")
    assert CLOCK in chosen("", "", tmp_path, said.append)
    with pytest.raises(ValueError, match="disk: no small ext4"):
        chosen("disk", "", tmp_path, said.append)
    with pytest.raises(ValueError, match="there is no part wroker"):
        chosen("wroker", "", tmp_path, said.append)


def test_clocks_jump_in_proportion_to_the_kills_unless_told_otherwise() -> None:
    assert jumps_of(None, 100, FAULTS) == 60
    assert jumps_of(None, 100, ("worker",)) == 0
    assert jumps_of(5, 100, ("worker",)) == 5


KILLED = """
import os, signal, sys
from pathlib import Path
from experiments.chaos.faults.filling import keep_mounts_private, mounted
keep_mounts_private()
place = Path(sys.argv[1])
with mounted(place / "image", place / "disk", 16) as disk:
    print(disk.folder.is_mount(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.root
def test_a_run_that_is_killed_leaves_no_disk_mounted(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("True\n", -9), done.stderr
    assert not (tmp_path / "disk").is_mount()


@pytest.mark.root
def test_a_disk_is_full_for_a_while(tmp_path: Path) -> None:
    folders = {"server": tmp_path / "a", "nodes": tmp_path / "b"}
    system = Parts(tmp_path)
    with small_disks(tmp_path / "disks", folders) as disks:
        field = Filling(disks, cast(System, system), Others())
        assert field.strike(a_blow("web", "web")) == "struck web"
        assert "of the server" in str(field.strike(a_blow(DISK, "server")))
        with pytest.raises(OSError, match="No space"):
            (folders["server"] / "more").write_bytes(b"x" * 4096)
        (folders["nodes"] / "more").write_bytes(b"x" * 4096)
        assert system.full == ["full"]
        field.mend()
        (folders["server"] / "more").write_bytes(b"x" * 4096)
        assert system.full == ["full", "room"]


RESTART = """
import os, sys, time
from pathlib import Path
import psycopg2
from experiments.chaos.faults.database import postgres

part = postgres(os.environ["DATABASE_URL"], Path(sys.argv[1]))
connection = psycopg2.connect(os.environ["DATABASE_URL"])
connection.cursor().execute("CREATE TABLE kept (n int)")
connection.commit()
for _ in range(2):
    part.kill(0.0)
    assert not part.is_alive
    while not part.works_since(0):
        part.look()
        time.sleep(0.05)
    cursor = psycopg2.connect(os.environ["DATABASE_URL"]).cursor()
    cursor.execute("SELECT count(*) FROM kept")
part.stop(time.monotonic())
"""


@pytest.mark.slow
@pytest.mark.postgres
def test_postgresql_is_killed_and_comes_back_with_what_was_committed(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    server, log = str(root / "tests" / "with-postgres"), str(tmp_path / "log")
    command = [server, sys.executable, "-c", RESTART, log]
    env = {**os.environ, "POSTGRES_SYNC": "on"}
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_server_elsewhere_is_not_killed(tmp_path: Path) -> None:
    assert postgres("", tmp_path / "log") is None
    assert postgres("postgresql://db.example/loadmaster", tmp_path / "log") is None
