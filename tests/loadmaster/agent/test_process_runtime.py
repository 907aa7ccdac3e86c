"""The process runtime: a launch starts once, whatever happens between two steps."""

import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from loadmaster.agent.guarding import guard, guard_orders
from loadmaster.agent.runtimes.base import Launch, RunId, RunState, StopBy, StopOrder
from loadmaster.agent.runtimes.process import ProcessRuntime
from loadmaster.agent.runtimes.spawner import GUARD_START_S
from loadmaster.protocol import LaunchSpec
from tests.builders_agent import (
    a_spec,
    python,
    until,
)
from tests.builders_processes import is_running
from tests.fake_runtime import VirtualClock
from tests.loadmaster.agent.test_processes import RUN, SLEEPER, end_runs


class TestProcessRuntime:
    """Launch once, whatever happens between two steps."""

    @pytest.fixture
    def runtime(self, tmp_path: Path) -> Iterator[ProcessRuntime]:
        with closing(ProcessRuntime(tmp_path / "runs")) as runtime:
            yield runtime
        end_runs(tmp_path)

    def prepare(self, runtime: ProcessRuntime, spec: LaunchSpec) -> None:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        runtime.prepare(
            Launch(RunId(spec.assignment, spec.fence), spec, dict(os.environ), 1.0, boot)
        )

    def test_a_second_start_of_a_launch_does_nothing(
        self, runtime: ProcessRuntime, tmp_path: Path
    ) -> None:
        self.prepare(runtime, a_spec(command=python("print('once')")))
        for _ in range(3):
            runtime.start(RUN, guard_orders.boot_s() + 60)
        until(lambda: runtime.poll(RUN).state is RunState.ENDED)
        runtime.start(RUN, guard_orders.boot_s() + 60)
        ProcessRuntime(tmp_path / "runs").start(RUN, guard_orders.boot_s() + 60)
        assert runtime.read(RUN, "stdout", 0, 100) == b"once\n"
        assert runtime.size(RUN, "stdout") == 5

    def test_a_killed_spawner_of_guards_is_replaced_and_its_guards_go_on(
        self, runtime: ProcessRuntime
    ) -> None:
        first, second = (a_spec(f"a-{n}", command=SLEEPER) for n in range(2))
        for spec in (first, second):
            self.prepare(runtime, spec)
        runtime.start(RunId(first.assignment, first.fence), guard_orders.boot_s() + 60)
        children = psutil.Process().children()
        (spawner,) = [
            p for p in children if any("agent.guarding.guards" in word for word in p.cmdline())
        ]
        spawner.kill()
        runtime.start(RunId(second.assignment, second.fence), guard_orders.boot_s() + 60)
        for spec in (first, second):
            run = RunId(spec.assignment, spec.fence)
            until(functools.partial(runtime.size, run, "stdout"))
            assert runtime.poll(run).state is RunState.RUNNING

    def test_a_guard_outlives_the_agent_that_started_it(
        self, runtime: ProcessRuntime, tmp_path: Path
    ) -> None:
        with closing(ProcessRuntime(tmp_path / "runs")) as former:
            self.prepare(former, a_spec(command=SLEEPER))
            former.start(RUN, guard_orders.boot_s() + 60)
            until(lambda: former.size(RUN, "stdout"))
        assert runtime.poll(RUN).state is RunState.RUNNING

    def test_an_abandoned_launch_can_never_be_started(self, runtime: ProcessRuntime) -> None:
        self.prepare(runtime, a_spec(command=python("print('never')")))
        ended = runtime.abandon(RUN).exit
        assert ended is not None
        assert ended.started is False
        runtime.start(RUN, guard_orders.boot_s() + 60)
        until(lambda: not (runtime.folder(RUN) / "guard.pid").stat().st_size)
        assert runtime.size(RUN, "stdout") == 0
        assert runtime.poll(RUN).exit == ended

    @pytest.mark.parametrize("comes", [True, False])
    def test_a_restarted_agent_waits_for_a_guard_that_is_about_to_come(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes: bool
    ) -> None:
        """Else a launch whose agent is restarted too soon ends as never started."""
        former, clock = ProcessRuntime(tmp_path / "runs"), VirtualClock(guard_orders.boot_s())
        self.prepare(former, a_spec(command=python("print('once')")))
        with monkeypatch.context() as patch:
            patch.setattr(former, "_spawn", lambda folder: 0)
            former.start(RUN, guard_orders.boot_s() + 60)
        runtime = ProcessRuntime(tmp_path / "runs", clock)
        assert runtime.poll(RUN).state is RunState.RUNNING
        command = [sys.executable, guard.__file__, str(runtime.folder(RUN))]
        if comes:
            subprocess.run(command, check=True)
        clock.advance(GUARD_START_S)
        status = runtime.poll(RUN)
        assert status.state is (RunState.ENDED if comes else RunState.PREPARED)
        ended = runtime.abandon(RUN).exit
        assert ended is not None
        assert ended.started is comes
        assert subprocess.run(command, check=False).returncode == guard.ALREADY_LAUNCHED
        assert runtime.read(RUN, "stdout", 0, 100) == b"once\n" * comes

    def test_a_running_launch_is_not_abandoned(
        self, runtime: ProcessRuntime, tmp_path: Path
    ) -> None:
        self.prepare(runtime, a_spec(command=SLEEPER))
        runtime.start(RUN, guard_orders.boot_s() + 60)
        until(lambda: runtime.size(RUN, "stdout"))
        another = ProcessRuntime(tmp_path / "runs")
        assert another.list() == (RUN,)
        assert another.abandon(RUN).state is RunState.RUNNING

    def test_when_its_guard_was_killed_nothing_of_the_job_is_left(
        self, runtime: ProcessRuntime, tmp_path: Path
    ) -> None:
        code = (
            "import os,time\nif os.fork() == 0: os.setsid(); print(os.getpid(),"
            " flush=True)\ntime.sleep(60)"
        )
        self.prepare(runtime, a_spec(command=python(code)))
        folder = runtime.folder(RUN)
        (folder / "launch.json").write_text(
            json.dumps(
                {
                    **json.loads((folder / "launch.json").read_text()),
                    "environment": {"LOADMASTER_RUN_DIR": str(folder)},
                }
            )
        )
        runtime.start(RUN, guard_orders.boot_s() + 60)
        until(lambda: runtime.size(RUN, "stdout"))
        child = psutil.Process(int(runtime.read(RUN, "stdout", 0, 20)))
        os.kill(json.loads((folder / "guard.pid").read_text())["pid"], signal.SIGKILL)
        until(lambda: runtime.poll(RUN).state is RunState.ENDED)
        ended = runtime.poll(RUN).exit
        assert ended is not None
        assert "guard was killed" in ended.error
        until(lambda: not is_running(child))

    def test_a_full_disk_stops_a_job_all_the_same(
        self, runtime: ProcessRuntime, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_room(*_: object, **__: object) -> None:
            raise OSError("No space left on device")

        self.prepare(runtime, a_spec(command=SLEEPER))
        runtime.start(RUN, guard_orders.boot_s() + 60)
        until(lambda: runtime.size(RUN, "stdout"))
        with monkeypatch.context() as patch:
            patch.setattr("loadmaster.agent.runtimes.folders.write_json", no_room)
            patch.setattr("loadmaster.agent.runtimes.folders.write_whole", no_room)
            runtime.renew(RUN, guard_orders.boot_s() + 120)
            lease = runtime.poll(RUN).lease_until_s
            assert lease is not None
            assert lease > guard_orders.boot_s() + 100
            runtime.stop(RUN, StopOrder(StopBy.CANCEL, 1.0))
        until(lambda: runtime.poll(RUN).state is RunState.ENDED)

    def test_the_specification_is_private_and_goes_with_the_folder(
        self, runtime: ProcessRuntime
    ) -> None:
        self.prepare(runtime, a_spec(secrets={"KEY": "hunter2"}))
        folder = runtime.folder(RUN)
        assert (folder.stat().st_mode & 0o777, (folder / "spec.json").stat().st_mode & 0o777) == (
            0o700,
            0o600,
        )
        found = runtime.spec(RUN)
        assert found is not None
        assert found.secrets == {"KEY": "hunter2"}
        runtime.remove(RUN)
        assert runtime.spec(RUN) is None
        assert runtime.poll(RUN).state is RunState.ABSENT
