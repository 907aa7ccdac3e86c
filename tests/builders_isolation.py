"""Sites of isolated jobs: a process runtime with bubblewrap, users, or both."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from loadmaster.agent import admission
from loadmaster.agent.guarding import guard_orders
from loadmaster.agent.node.machine import boot_id
from loadmaster.agent.runtimes.base import (
    Launch,
    Limits,
    RunId,
    RunState,
    RunStatus,
    StopBy,
    StopOrder,
    Term,
)
from loadmaster.agent.runtimes.isolation import Isolation
from loadmaster.agent.runtimes.process import ProcessRuntime
from tests.builders_agent import a_spec, python, until

IS_ROOT = os.getuid() == 0
USERS = range(2_000_300_000, 2_000_400_000)
BUBBLEWRAP = shutil.which("bwrap") or "bwrap"
"""Debian's package bubblewrap; without it each case fails and names the program."""
SLEEP = python("import time; print('up', flush=True); time.sleep(60)")
NODE_TOKEN, SECRET = "the-nodes-token", "the-other-teams-secret"


def an_isolation(state: Path, **changes: Any) -> Isolation:
    """Isolation by bubblewrap unless changed: jobs make no user namespaces; as root with users."""
    found = replace(Isolation(state, USERS if IS_ROOT else None, BUBBLEWRAP), **changes)
    return replace(found, closes_namespaces=bool(found.program))


@dataclass
class Site:
    """An agent's state folder with the process runtime in it."""

    state: Path
    isolation: Isolation
    runtime: ProcessRuntime = field(init=False)

    def __post_init__(self) -> None:
        self.runtime = self.again()
        (self.state / "node.json").touch(0o600)
        (self.state / "node.json").write_text(NODE_TOKEN)

    def again(self) -> ProcessRuntime:
        """A runtime of a later agent."""
        return ProcessRuntime(self.state / "runs", isolation=self.isolation)

    def launch(
        self,
        name: str = "a1",
        *,
        limits: Limits | None = None,
        gpu_files: tuple[str, ...] = (),
        **spec: Any,
    ) -> Launch:
        known = a_spec(name, **{"team": 1, "job": f"job-of-{name}", **spec})
        place = admission.checkpoint_folder(known, self.state, self.state / "checkpoints")
        environment = admission.launch_environment(
            known, place, node=self.runtime.environment(), devices={}
        )
        run = RunId(known.assignment, known.fence)
        found = Launch(run, known, environment, 1.0, boot_id(), term=Term())
        found = replace(found, checkpoints=self.state / "checkpoints", gpu_files=gpu_files)
        return replace(found, limits=limits) if limits else found

    def start(self, name: str = "a1", lease_s: float = 60.0, **spec: Any) -> RunId:
        """Start a launch that the runtime has nothing against."""
        launch = self.launch(name, **spec)
        assert self.runtime.objection(launch) is None
        self.runtime.prepare(launch)
        self.runtime.start(launch.run, guard_orders.boot_s() + lease_s)
        return launch.run

    def end_of(self, run: RunId) -> RunStatus:
        until(lambda: self.runtime.poll(run).state is RunState.ENDED)
        return self.runtime.poll(run)

    def says(self, run: RunId) -> str:
        """Output of a run until its end."""
        self.end_of(run)
        return self.text(run)

    def text(self, run: RunId) -> str:
        words = [self.runtime.read(run, stream, 0, 100_000) for stream in ("stdout", "stderr")]
        return b"".join(words).decode()

    def runs(self, code: str, name: str = "probe", **spec: Any) -> str:
        """Output of a job of this Python, from its start to its end."""
        return self.says(self.start(name, command=python(code), **spec))


def job_processes(site: Site, run: RunId) -> list[psutil.Process]:
    owner = json.loads((site.runtime.folder(run) / "guard.pid").read_text())
    return psutil.Process(owner["pid"]).children(recursive=True)


def a_site(isolation: Isolation) -> Iterator[Site]:
    site = Site(isolation.state, isolation)
    with closing(site.runtime):
        yield site
        for run in site.runtime.list():
            if site.runtime.poll(run).state is RunState.RUNNING:
                site.runtime.stop(run, StopOrder(StopBy.CANCEL, 0.0))
                site.end_of(run)
