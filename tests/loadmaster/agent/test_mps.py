"""NVIDIA's MPS, by a stand-in for its control program that writes down how it is called.

The real one is tested by `test_gpus.py`.
"""

import os
from pathlib import Path

import pytest

from loadmaster.agent.node.mps import CONTROL, PERCENTAGE, PIPES, Mps
from loadmaster.agent.node.nvidia import NvidiaDevices
from tests.builders_agent import a_spec

STAND_IN = """#!/bin/sh
echo "$*|$CUDA_MPS_PIPE_DIRECTORY|$CUDA_MPS_LOG_DIRECTORY|$(test -n "$1" || cat)" >> "$0.calls"
[ "$1" = -d ] && {start} && exit 0
[ -e "$0.runs" ]
"""


class FakeNvml:
    """A driver without GPUs."""

    @staticmethod
    def nvmlDeviceGetCount() -> int:
        return 0


class Machine:
    """A machine with the stand-in in its PATH."""

    def __init__(
        self, folder: Path, *, starts: bool = True, runs: bool = False, pipes: str = ""
    ) -> None:
        self.program = folder / "bin" / CONTROL
        self.program.parent.mkdir()
        self.program.write_text(STAND_IN.format(start='touch "$0.runs"' if starts else "false"))
        self.program.chmod(0o755)
        if runs:
            self.program.with_name(f"{CONTROL}.runs").touch()
        self.state = folder / "state"
        self.environ = {
            "PATH": f"{self.program.parent}:{os.environ['PATH']}",
            **({PIPES: pipes} if pipes else {}),
        }

    def mps(self) -> Mps:
        """The service as an agent finds it."""
        found = Mps.found(self.state, self.environ)
        assert found is not None
        return found

    @property
    def calls(self) -> list[list[str]]:
        """(arguments, pipes, logs, question) of each call."""
        log = self.program.with_name(f"{CONTROL}.calls")
        return [line.split("|") for line in log.read_text().splitlines()] if log.exists() else []


def test_sharers_go_through_a_daemon_of_the_agents_own_with_their_part_of_the_gpu(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path)
    pipes = str(machine.state / "mps" / "pipe")
    assert machine.mps().environment(0.5) == {PIPES: pipes, PERCENTAGE: "50"}
    assert machine.mps().environment(0.334) == {PIPES: pipes, PERCENTAGE: "33"}
    assert [call[0] for call in machine.calls] == ["-d", "", ""]
    assert {call[1] for call in machine.calls} == {pipes}
    assert [call[3] for call in machine.calls] == ["", "get_server_list", "get_server_list"]
    assert (machine.state / "mps" / "pipe").stat().st_mode & 0o777 == 0o700


def test_a_job_with_a_gpu_to_itself_goes_without(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert machine.mps().environment(1.0) == {}
    assert not machine.calls


def test_a_daemon_that_the_operator_runs_is_used_and_never_started(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    machine = Machine(tmp_path, runs=True, pipes=str(tmp_path / "theirs"))
    assert machine.mps().environment(0.5)[PIPES] == str(tmp_path / "theirs")
    machine.program.with_name(f"{CONTROL}.runs").unlink()
    assert machine.mps().environment(0.5) == {}
    assert "-d" not in [call[0] for call in machine.calls]


def test_a_daemon_that_does_not_start_leaves_plain_sharing_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mps = Machine(tmp_path, starts=False).mps()
    assert mps.environment(0.5) == mps.environment(0.5) == {}
    assert [record.levelname for record in caplog.records].count("WARNING") == 1


def test_without_the_program_there_is_no_service(tmp_path: Path) -> None:
    assert Mps.found(tmp_path, {"PATH": str(tmp_path)}) is None


def test_gpus_hand_the_services_variables_to_those_who_share_them(tmp_path: Path) -> None:
    devices = NvidiaDevices(FakeNvml, 2, Machine(tmp_path).mps())
    whole, half = a_spec(devices=("GPU-1",)), a_spec(devices=("GPU-1",), share=0.5)
    assert devices.environment(half)[PERCENTAGE] == "50"
    assert devices.environment(whole) == {"CUDA_VISIBLE_DEVICES": "GPU-1"}
    assert NvidiaDevices(FakeNvml).environment(half) == {"CUDA_VISIBLE_DEVICES": "GPU-1"}
