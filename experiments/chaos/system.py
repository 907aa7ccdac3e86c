"""A whole Loadmaster under chaos: its parts, kept running and struck one by one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

import loadmaster
from experiments.chaos.faults.database import postgres
from experiments.chaos.jobs.spreading import installed
from experiments.chaos.parts import ROOT, STOP_S, Part, end_what_is_left
from loadmaster.training.run_folder import boot_s

LEAST_FREE_GB = "0.02"
"""The disks of a run are small."""

TICK_S = 0.05
UP_S = 300.0
USUAL_UP_S = 8.0
"""Seconds in which the system comes up on two free cores."""

IMPORTS_S = 10.0
"""Seconds until a worker that has begun holds a round: its first one imports solvers, which takes
half a second on a free core, and was seen to take 15 s beside other tests."""

_RECORDS = (
    "import django; django.setup(); from experiments.chaos.checks.records import main; main()"
)
_LOG_IN = "import django; django.setup(); from experiments.chaos.prepare import log_in; log_in()"
_PREPARE = "import django; django.setup(); from experiments.chaos.prepare import main; main()"


class ChaosError(Exception):
    """The system cannot be brought up or does not come to rest; the message says what was seen."""


Span = tuple[float, float]
"""From when to when something was away, by the boot clock."""

SOON_S = 2.0


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return spans of which none begins within SOON_S of another: too soon for a heartbeat."""
    whole: list[Span] = []
    for begin_s, end_s in sorted(spans):
        if whole and begin_s <= whole[-1][1] + SOON_S:
            whole[-1] = (whole[-1][0], max(whole[-1][1], end_s))
        else:
            whole.append((begin_s, end_s))
    return whole


def no_clock(name: str) -> Mapping[str, str]:
    """Leave a part with the clock of this machine."""
    return {}


@dataclass(frozen=True, slots=True)
class Site:
    """Settings of a system: its folder, number of agents, the cluster's intervals, environment.

    `prefixes` is put before the command of a part of that name: how an agent gets into a network of
    its own. `clock_of` names the variables that give a part of that name a clock of its own.
    """

    folder: Path
    agents: int
    clockwork: Mapping[str, float]
    port: int
    host: str = "127.0.0.1"
    env: Mapping[str, str] = field(default_factory=dict)
    prefixes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    clock_of: Callable[[str], Mapping[str, str]] = no_clock
    processes: int = 1
    """Number of workers, of beats, and of the web server's processes."""

    @property
    def home(self) -> Path:
        """LOADMASTER_HOME."""
        return self.folder / "home"

    @property
    def nodes(self) -> Path:
        """Folder of the agents' files and of checkpoints."""
        return self.folder / "nodes"

    @property
    def logs(self) -> Path:
        """Folder of the parts' logs, which always has room."""
        return self.folder / "logs"

    @property
    def journals(self) -> Path:
        """Folder of the jobs' journals and of submitted.json."""
        return self.folder / "journals"

    @property
    def lost_s(self) -> float:
        """Seconds after its last heartbeat when an agent's jobs may go elsewhere."""
        return sum(self.clockwork[name] for name in ("lease_s", "grace_s", "margin_s"))

    def environment(self) -> dict[str, str]:
        """Environment of the parts beside that of this process."""
        return {
            "DJANGO_SETTINGS_MODULE": "controlplane.settings",
            "LOADMASTER_HOME": str(self.home),
            "LOADMASTER_SOLVER_TIMEOUT_S": "20",
            "LOADMASTER_NODE_LEAST_FREE_GB": LEAST_FREE_GB,
            "LOADMASTER_SERVER_LEAST_FREE_GB": LEAST_FREE_GB,
            "WEB_CONCURRENCY": str(self.processes),
            "PYTHONPATH": f"{ROOT}:{installed(self.folder / 'policy')}",
            "ALLOWED_HOSTS": f"127.0.0.1,localhost,{self.host}",
            **self.env,
        }


class System:
    """The running system; use as a context manager."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.parts: dict[str, Part] = {}
        self.url = self.token = ""
        self.left_over: list[str] = []
        self.up_s = USUAL_UP_S
        self.room_since_s = 0.0
        """Since when the server's disk has room, monotonic; inf while it has none."""

        self._full: list[Span] = []

    @property
    def slowness(self) -> float:
        """Factor by which everything takes longer than on two free cores; 1 to 4."""
        return min(4.0, max(1.0, self.up_s / USUAL_UP_S))

    def __enter__(self) -> System:
        self.site.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.site.journals, self.site.logs, self.site.nodes):
            folder.mkdir(exist_ok=True)
        if database := postgres(
            os.environ.get("DATABASE_URL", ""), self.site.logs / "database.log"
        ):
            self.parts[database.name] = database
        made = self._prepare()
        self.url, self.token = made["url"], made["token"]
        for part in made["parts"]:
            name = part["name"]
            argv = [*self.site.prefixes.get(name, ()), *part["argv"]]
            env = {**self.site.environment(), **part["env"], **self.site.clock_of(name)}
            self.parts[name] = Part(name, argv, env, self.site.logs / f"{name}.log")
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _prepare(self) -> dict[str, Any]:
        site = self.site
        wanted = {
            "agents": site.agents,
            "host": site.host,
            "port": site.port,
            "clockwork": dict(site.clockwork),
            "nodes": str(site.nodes),
            "processes": site.processes,
        }
        return self._ask_django(_PREPARE, json.dumps(wanted))

    def _start(self) -> None:
        for part in self.parts.values():
            if not part.is_alive:
                part.start()
        began_s = time.monotonic()
        while not self._is_up():
            if time.monotonic() > began_s + UP_S:
                raise ChaosError(
                    f"the system is not up after {UP_S:.0f} s; its logs are in {self.site.logs}"
                )
            self.wait(0.2)
        self.up_s = time.monotonic() - began_s

    def _is_up(self) -> bool:
        """The web answers, every agent's node is there, and the worker is at work."""
        if not all(part.works_since(0) for part in self.parts.values()):
            return False
        try:
            with httpx.Client(
                timeout=5, headers={"Authorization": f"Bearer {self.token}"}
            ) as client:
                nodes = client.get(f"{self.url}/api/v1/nodes/")
        except httpx.HTTPError:
            return False
        return nodes.status_code == 200 and len(nodes.json()["results"]) == self.site.agents

    def _stop(self) -> None:
        """All at once: what they would still have to say to one another matters no more."""
        until_s = time.monotonic() + STOP_S
        for part in self.parts.values():
            part.ask_to_stop()
        for part in self.parts.values():
            part.stop(until_s)
        self.left_over = end_what_is_left([("LOADMASTER_HOME", str(self.site.home))])

    def wait(self, seconds: float) -> None:
        """Let time pass; what is due to come back is started meanwhile."""
        until_s = time.monotonic() + seconds
        while True:
            for part in self.parts.values():
                part.look()
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(TICK_S, left_s))

    def records(self) -> dict[str, Any]:
        """Findings of `checks.records` in the server's database."""
        return self._ask_django(_RECORDS)

    def lost_unduly(self, counts: Mapping[str, int]) -> list[str]:
        """Nodes that were declared lost more often than they were out of reach for long enough."""
        return [
            f"{name} was declared lost {count} times, and out of reach for long {long} times"
            for name, count in counts.items()
            if count > (long := self._long_away(name))
        ]

    def _long_away(self, name: str) -> int:
        """Number of times for which an agent did not reach the server until its jobs were lost."""
        away = [span for way in (name, "web", "database") for span in self._away(way)]
        spans = [end_s - begin_s for begin_s, end_s in merged([*away, *self._full])]
        return sum(span_s > self.site.lost_s for span_s in spans)

    def _away(self, name: str) -> list[Span]:
        return self.parts[name].away if name in self.parts else []

    def note_full(self) -> None:
        """Note that the server's disk has no room."""
        self._full.append((boot_s(), inf))
        self.room_since_s = inf

    def note_room(self) -> None:
        """Note that the server's disk has room again."""
        self._full[-1] = (self._full[-1][0], boot_s())
        self.room_since_s = time.monotonic()

    def _ask_django(self, code: str, *arguments: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=ROOT,
            env={**os.environ, **self.site.environment()},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ChaosError(f"the server's database cannot be used:\n{done.stderr}")
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    def of(self, target: str) -> list[Part]:
        """Return the part of that name, or all programs of that kind."""
        return [part for part in self.parts.values() if target in (part.name, part.kind)]

    def names_of(self, target: str) -> list[str]:
        """Return the names of these."""
        return [part.name for part in self.of(target)]

    def whole_since_s(self) -> float:
        """Since when one of each program is at work that rounds need, a worker for IMPORTS_S, and
        the server's disk has room, monotonic; inf while one lacks.
        """
        since_s: dict[str, float] = {"disk": self.room_since_s}
        for part in self.parts.values():
            if part.kind not in ("agent", "web"):
                at_work_s = part.at_work_s if part.is_alive else None
                imports_s = IMPORTS_S if part.kind == "worker" else 0.0
                began_s = inf if at_work_s is None else at_work_s + imports_s
                since_s[part.kind] = min(began_s, since_s.get(part.kind, inf))
        return max(since_s.values())

    def slowest_starts_s(self) -> dict[str, float]:
        """Longest time by kind of program from its start until it was at work."""
        kinds = {part.kind for part in self.parts.values()}
        return {k: round(max(p.slowest_start_s for p in self.of(k)), 1) for k in sorted(kinds)}

    def session(self) -> str:
        """Return the session cookie of a browser in which the admin is logged in."""
        return str(self._ask_django(_LOG_IN)["session"])

    def client(self) -> loadmaster.Client:
        """A client of its REST API."""
        return loadmaster.Client(self.url, self.token, timeout_s=10.0)
