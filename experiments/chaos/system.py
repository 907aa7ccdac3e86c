"""A whole Loadmaster under chaos: its parts, kept running and struck one by one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

import loadmaster
from experiments.chaos.parts import ROOT, STOP_S, Part, end_what_is_left

TICK_S = 0.05
UP_S = 300.0
USUAL_UP_S = 8.0
"""Seconds in which the system comes up on two free cores."""
_PREPARE = "import django; django.setup(); from experiments.chaos.prepare import main; main()"


class ChaosError(Exception):
    """The system cannot be brought up or does not come to rest; the message says what was seen."""


@dataclass(frozen=True, slots=True)
class Site:
    """Settings of a system: its folder, number of agents, the cluster's intervals, environment.

    `prefixes` is put before the command of a part of that name: how an agent gets into a network of
    its own.
    """

    folder: Path
    agents: int
    clockwork: Mapping[str, float]
    port: int
    host: str = "127.0.0.1"
    env: Mapping[str, str] = field(default_factory=dict)
    prefixes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        """LOADMASTER_HOME."""
        return self.folder / "home"

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
            "PYTHONPATH": str(ROOT),
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

    @property
    def slowness(self) -> float:
        """Factor by which everything takes longer than on two free cores; 1 to 4."""
        return min(4.0, max(1.0, self.up_s / USUAL_UP_S))

    def __enter__(self) -> System:
        self.site.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.site.journals.mkdir(exist_ok=True)
        made = self._prepare()
        self.url, self.token = made["url"], made["token"]
        for part in made["parts"]:
            name = part["name"]
            argv = [*self.site.prefixes.get(name, ()), *part["argv"]]
            env = {**self.site.environment(), **part["env"]}
            self.parts[name] = Part(name, argv, env, self.site.home / "logs" / f"{name}.log")
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
        }
        done = subprocess.run(
            [sys.executable, "-c", _PREPARE, json.dumps(wanted)],
            cwd=ROOT, env={**os.environ, **site.environment()}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if done.returncode:
            raise ChaosError(f"the system cannot be prepared:\n{done.stderr}")
        made: dict[str, Any] = json.loads(done.stdout)
        return made

    def _start(self) -> None:
        for part in self.parts.values():
            part.start()
        began_s = time.monotonic()
        while not self._is_up():
            if time.monotonic() > began_s + UP_S:
                raise ChaosError(
                    f"the system is not up after {UP_S:.0f} s; its logs are in"
                    f" {self.site.home / 'logs'}"
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

    def client(self) -> loadmaster.Client:
        """A client of its REST API."""
        return loadmaster.Client(self.url, self.token, timeout_s=10.0)
