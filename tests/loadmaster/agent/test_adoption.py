"""Agents in processes of their own: killed and followed by the next, or told to leave."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from loadmaster.protocol import ReasonClass
from tests.builders_agent import (
    ENROLMENT_TOKEN,
    NODE_TOKEN,
    FakeServer,
    a_spec,
    python,
    until,
)
from tests.builders_cgroups import groups_of, remove_groups_of
from tests.builders_processes import is_running
from tests.loadmaster.agent.test_processes import RUN, SLEEPER, TRAINER, end_runs, job_of

ROOT = Path(__file__).parents[3]


class AgentProcess:
    """An agent in a process of its own."""

    def __init__(self, address: str, state_dir: Path, *options: str) -> None:
        emulation = state_dir.parent / "gpus.yaml"
        emulation.write_text("gpu_type: V100\ncount: 2\n")
        command = [
            sys.executable,
            "-m",
            "loadmaster.agent",
            "--server",
            address,
            "--state-dir",
            str(state_dir),
            "--name",
            "n1",
        ]
        environ = {**os.environ, "LOADMASTER_TOKEN": ENROLMENT_TOKEN, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [*command, "--emulate", str(emulation), *options], env=environ, cwd=ROOT
        )

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(20)


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def agents(server: FakeServer, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The server's address and a state folder; agents and jobs that a test leaves behind are
    ended.
    """
    with server.serving() as address:
        yield address, tmp_path / "state"
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "loadmaster.agent" in process.cmdline():
                process.kill()
                process.wait()
    end_runs(tmp_path / "state")


def test_a_job_outlives_its_killed_agent_and_is_adopted_by_the_next(
    server: FakeServer, agents: tuple[str, Path]
) -> None:
    address, state = agents
    code = "import time\nfor i in range(30): print(i, flush=True); time.sleep(0.1)"
    held = server.offer(a_spec(command=python(code)))
    first = AgentProcess(address, state)
    until(lambda: held.logs["stdout"])
    job = job_of(state)
    first.end(signal.SIGKILL)
    assert is_running(job)
    second = AgentProcess(address, state)
    until(lambda: "succeeded" in held.states)
    second.end(signal.SIGTERM)
    assert held.states == ["running", "succeeded"]
    assert held.logs["stdout"].decode().split() == [str(i) for i in range(30)]
    assert len(server.registrations) == 1
    assert [known.id for known in server.sessions[1].assignments] == ["a1"]


def test_with_its_agent_dead_the_guard_stops_the_job_and_the_next_agent_learns_it(
    server: FakeServer, agents: tuple[str, Path]
) -> None:
    address, state = agents
    server.intervals = server.intervals.__class__(
        heartbeat_s=0.3, lease_s=1.0, grace_s=0.5, margin_s=1.0
    )
    held = server.offer(a_spec(command=SLEEPER))
    first = AgentProcess(address, state)
    until(lambda: "running" in held.states)
    job = job_of(state)
    first.end(signal.SIGKILL)
    until(lambda: not is_running(job))
    second = AgentProcess(address, state)
    until(lambda: held.states[-1] in ("preempted", "failed"))
    second.end(signal.SIGTERM)
    assert held.reports[-1].reason_class is ReasonClass.LEASE


def test_an_agent_told_to_stop_its_jobs_preempts_and_tells_before_it_leaves(
    server: FakeServer, agents: tuple[str, Path]
) -> None:
    address, state = agents
    held = server.offer(a_spec(command=TRAINER, grace_s=10.0))
    agent = AgentProcess(address, state, "--stop-jobs-on-exit")
    until(lambda: held.progress)
    assert agent.end(signal.SIGTERM) == 0
    assert (held.states[-1], held.reports[-1].reason_class) == ("preempted", ReasonClass.OPERATOR)
    assert held.reports[-1].exit_code == 75


def test_an_agent_leaves_its_jobs_running_and_keeps_its_files_private(
    server: FakeServer, agents: tuple[str, Path]
) -> None:
    address, state = agents
    held = server.offer(a_spec(command=SLEEPER))
    agent = AgentProcess(address, state)
    until(lambda: "running" in held.states)
    job = job_of(state)
    assert agent.end(signal.SIGTERM) == 0
    assert is_running(job)
    assert (state.stat().st_mode & 0o777, (state / "node.json").stat().st_mode & 0o777) == (
        0o700,
        0o600,
    )
    assert json.loads((state / "node.json").read_text())["token"] == NODE_TOKEN


@pytest.mark.root
def test_a_cgroup_outlives_a_killed_agent_and_ends_with_its_job(
    server: FakeServer, agents: tuple[str, Path]
) -> None:
    address, state = agents
    options = ("--cgroups", "memory,processes,cores")
    code = "import os, time\nwhile not os.path.exists('over'): time.sleep(0.05)"
    held = server.offer(a_spec(command=python(code), memory_gb=1.0, cores=1.0))
    first = AgentProcess(address, state, *options)
    until(lambda: "running" in held.states)
    job = job_of(state)
    machine_id = (state / "machine-id").read_text()
    try:
        # 1. Killed: job and group go on.
        first.end(signal.SIGKILL)
        groups = [folder / RUN.name for folder in groups_of(machine_id)]
        assert len(groups) >= 3
        assert all(str(job.pid) in (group / "cgroup.procs").read_text() for group in groups)

        # 2. The next agent adopts the job, and keeps its group.
        second = AgentProcess(address, state, *options)
        until(lambda: len(server.sessions) == 2)
        assert all(str(job.pid) in (group / "cgroup.procs").read_text() for group in groups)

        # 3. With the job's end the group ends; with the agent its own group.
        (state / "runs" / RUN.name / "work/over").touch()
        until(lambda: "succeeded" in held.states)
        assert not any(group.exists() for group in groups)
        second.end(signal.SIGTERM)
        assert groups_of(machine_id) == []
    finally:
        end_runs(state)
        remove_groups_of(machine_id)
