"""A program's wall clock is set while it runs; its sleep and its other clocks stay true."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import pytest

from experiments.chaos.clocks.jumping import Jumping
from experiments.chaos.clocks.wall_clocks import ClockError, WallClocks
from experiments.chaos.schedule import CLOCK, DRIFTS, SERVER, Blow
from loadmaster.training.run_folder import boot_s

CLOCKS = """
import json, sys, time
for line in sys.stdin:
    began = time.monotonic()
    time.sleep(0.05)
    read = [time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), time.monotonic() - began]
    print(json.dumps(read), flush=True)
"""


class Program:
    """A program with a clock of its own."""

    def __init__(self, clocks: WallClocks, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", CLOCKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env=clocks.environment(name),
        )  # fmt: skip

    def ahead_s(self) -> float:
        """Lead of its wall clock over this process's."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("now\n")
        self._process.stdin.flush()
        wall_s, boot, slept_s = json.loads(self._process.stdout.readline())
        assert abs(boot - boot_s()) < 5.0
        assert 0.05 <= slept_s < 5.0
        return float(wall_s - time.time())

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def clocks(tmp_path: Path) -> WallClocks:
    made = WallClocks(tmp_path)
    made.build()
    return made


@pytest.mark.compiler
@pytest.mark.parametrize("seconds", [-3600.0, -60.5, 60.0, 3600.0])
def test_a_clock_jumps_and_comes_back_while_its_program_runs(
    clocks: WallClocks, seconds: float
) -> None:
    program = Program(clocks, "web")
    try:
        assert abs(program.ahead_s()) < 5.0
        clocks.move("web", seconds)
        assert abs(program.ahead_s() - seconds) < 5.0
        clocks.move("web", 0.0)
        assert abs(program.ahead_s()) < 5.0
    finally:
        program.end()


@pytest.mark.compiler
def test_a_clock_drifts(clocks: WallClocks) -> None:
    program = Program(clocks, "web")
    try:
        clocks.move("web", 0.0, 1000.0)
        first_s = program.ahead_s()
        assert program.ahead_s() > first_s + 40.0
    finally:
        program.end()


def test_without_a_compiler_it_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ClockError, match="need a C compiler"):
        WallClocks(tmp_path).build()


class Moved:
    """Clocks that only note how they are set."""

    def __init__(self) -> None:
        self.told: list[tuple[str, float, float]] = []

    def move(self, name: str, seconds: float, drift: float = 0.0) -> None:
        self.told.append((name, seconds, drift))


class Others:
    """The field of other blows."""

    def strike(self, blow: Blow) -> str | None:
        return f"struck {blow.target}"

    def mend(self) -> None:
        pass


def a_jump(target: str, how: str) -> Blow:
    return Blow(0, CLOCK, how, 0.0, 0.0, target)


def test_all_of_the_servers_clocks_jump_together_and_are_set_right_when_it_is_time() -> None:
    clocks = Moved()
    programs = ("broker", "web", "worker-0", "worker-1", "beat")

    def names_of(target: str) -> list[str]:
        return [name for name in (*programs, "agent-1") if target in (name, name.split("-")[0])]

    field = Jumping(cast(WallClocks, clocks), names_of, Others())
    assert field.strike(a_jump(SERVER, "-60")) == "set the clock of server by -60 s for 0.0 s"
    assert clocks.told == [(name, -60.0, 0.0) for name in programs]
    field.mend()
    field.mend()
    assert clocks.told[5:] == [(name, 0.0, 0.0) for name in programs]
    assert field.strike(Blow(0, "web", "kill", 0.0, 0.0, "web")) == "struck web"
    field.strike(a_jump("agent-1", DRIFTS))
    assert clocks.told[10:] == [("agent-1", 0.0, 0.05)]


def test_of_several_workers_one_has_its_clock_set() -> None:
    clocks = Moved()
    field = Jumping(cast(WallClocks, clocks), lambda _: ["worker-0", "worker-1"], Others())
    field.strike(Blow(3, CLOCK, "+60", 0.0, 0.0, "worker"))
    assert clocks.told == [("worker-1", 60.0, 0.0)]
