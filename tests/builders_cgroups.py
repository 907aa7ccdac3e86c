"""Sites whose launches get cgroups: a subtree of the machine's own groups, removed afterwards."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from loadmaster.agent import admission
from loadmaster.agent.guarding import guard_orders
from loadmaster.agent.node.machine import boot_id
from loadmaster.agent.runtimes.base import Exit, Launch, RunId, RunState, StopBy, StopOrder
from loadmaster.agent.runtimes.cgroups import (
    PREFIX,
    PROC,
    Cgroups,
    NoCgroupsError,
    Resource,
    mounted_trees,
    working_cgroups,
)
from loadmaster.agent.runtimes.isolation import Isolation
from loadmaster.agent.runtimes.process import ProcessRuntime
from tests.builders_agent import a_spec, until

PATIENCE_S = 20.0
CONTROLLERS = ("memory", "pids", "cpu")


def version_of(controller: str) -> int | None:
    """Return the version of cgroups that holds a controller of this machine; None if none does."""
    for tree in mounted_trees(PROC):
        if controller in tree.controllers:
            return tree.version.number
    return None


def skip_unless_version(version: int) -> None:
    """Skip a test on a machine whose controllers belong to the other version of cgroups."""
    if any(version_of(controller) != version for controller in CONTROLLERS):
        pytest.skip(f"cgroups version {version} holds not all of {CONTROLLERS} on this machine")


@contextlib.contextmanager
def own_cgroups(*resources: Resource) -> Iterator[Cgroups]:
    """Groups of an agent of its own. Nothing of them is left afterwards."""
    machine_id = f"test-{uuid4().hex}"
    try:
        groups = working_cgroups(machine_id, resources or tuple(Resource))
    except NoCgroupsError as error:
        pytest.fail(f"root can make no cgroups on this machine: {error}")
    try:
        yield groups
    finally:
        remove_groups_of(machine_id)


def groups_of(machine_id: str) -> list[Path]:
    """Return the folders of an agent's own groups in all trees."""
    folders = []
    for tree in mounted_trees(PROC):
        folder = tree.root / (PREFIX + machine_id)
        if folder.is_dir():
            folders.append(folder)
    return folders


def remove_groups_of(machine_id: str) -> None:
    """Kill what is in an agent's groups, and remove them."""
    for folder in groups_of(machine_id):
        remove_group(folder)


def remove_group(group: Path) -> None:
    """Kill the processes of a group and of those in it, and remove them."""
    if not group.is_dir():
        return
    for path in group.iterdir():
        if path.is_dir():
            remove_group(path)
    _empty(group)
    group.rmdir()


def _empty(group: Path) -> None:
    """Kill the processes of a group until none is left."""
    ends_s = time.monotonic() + PATIENCE_S
    while pids := (group / "cgroup.procs").read_text().split():
        assert time.monotonic() < ends_s, f"{pids} stay in {group}"
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.02)


@dataclass
class GroupedSite:
    """An agent's state folder with the process runtime, whose launches get cgroups."""

    state: Path
    groups: Cgroups
    isolation: Isolation | None = None
    most_processes: int | None = None

    def __post_init__(self) -> None:
        self.runtime = self.again()

    def again(self) -> ProcessRuntime:
        """A runtime of a later agent."""
        return ProcessRuntime(
            self.state / "runs",
            isolation=self.isolation,
            most_processes=self.most_processes,
            cgroups=self.groups,
        )

    def start(self, *command: str, name: str = "a1", **spec: Any) -> RunId:
        """Start a launch of a command."""
        known = replace(a_spec(name, command=command, team=1, job=f"job-of-{name}"), **spec)
        checkpoints = self.state / "checkpoints"
        place = admission.checkpoint_folder(known, self.state, checkpoints)
        environment = admission.launch_environment(
            known, place, node=self.runtime.environment(), devices={}
        )
        run = RunId(known.assignment, known.fence)
        launch = Launch(run, known, environment, 1.0, boot_id(), checkpoints=checkpoints)
        objection = self.runtime.objection(launch)
        assert objection is None, objection
        self.runtime.prepare(launch)
        self.runtime.start(run, guard_orders.boot_s() + 60.0)
        return run

    def end_of(self, run: RunId) -> Exit:
        """Wait for the end of a run."""
        until(lambda: self.runtime.poll(run).state is RunState.ENDED, within_s=PATIENCE_S)
        ended = self.runtime.poll(run).exit
        assert ended is not None
        return ended

    def output(self, run: RunId) -> str:
        """Return what a run has written so far."""
        words = [self.runtime.read(run, stream, 0, 100_000) for stream in ("stdout", "stderr")]
        return b"".join(words).decode()

    def cancel(self, run: RunId) -> Exit:
        """Stop a run at once, and wait for its end."""
        self.runtime.stop(run, StopOrder(StopBy.CANCEL, 0.0))
        return self.end_of(run)

    def pids(self, run: RunId) -> set[int]:
        """Return the processes in a run's group."""
        pids: set[int] = set()
        for entrance in self.groups.entrances(run.name):
            pids |= {int(pid) for pid in Path(entrance).read_text().split()}
        return pids

    def close(self) -> None:
        """End all runs."""
        for run in self.runtime.list():
            if self.runtime.poll(run).state is RunState.RUNNING:
                self.cancel(run)
        self.runtime.close()
