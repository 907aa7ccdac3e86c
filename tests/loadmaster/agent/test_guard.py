"""The guard stops its job when the lease ends, catches what detaches itself, and tells how it
ended.
"""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadmaster.agent.guarding import guard, guard_orders
from tests.builders_agent import python, until
from tests.builders_processes import is_running

BOOT = "this-boot"


class Guarded:
    """A guard over a job in a folder, started as the agent would."""

    def __init__(
        self,
        folder: Path,
        command: tuple[str, ...],
        lease_s: float = 60.0,
        grace_s: float = 1.0,
        **limits: object,
    ) -> None:
        self.folder = folder
        (folder / "work").mkdir(parents=True)
        launch = {
            "argv": command,
            "environment": dict(os.environ),
            "cwd": str(folder / "work"),
            "grace_s": grace_s,
            "boot_id": BOOT,
            **limits,
        }
        (folder / "launch.json").write_text(json.dumps(launch))
        self.lease(lease_s)
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(self.folder)], start_new_session=True
        )

    def lease(self, lease_s: float) -> None:
        (self.folder / "lease.json").write_text(
            json.dumps({"deadline_s": guard_orders.boot_s() + lease_s, "boot_id": BOOT})
        )

    def order(self, by: str, term_in_s: float, kill_in_s: float) -> None:
        now_s = guard_orders.boot_s()
        (self.folder / "stop.json").write_text(
            json.dumps({"by": by, "term_at_s": now_s + term_in_s, "kill_at_s": now_s + kill_in_s})
        )

    def says(self, text: str) -> bool:
        path = self.folder / "stdout.log"
        return path.exists() and text in path.read_text()

    def end(self) -> dict[str, Any]:
        """Wait for the guard; how it says that the job ended."""
        self.process.wait(20)
        ended = guard_orders.read_json(self.folder / "exit.json")
        assert ended is not None
        return ended


STUBBORN = python(
    "import signal,time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
)
SLEEPER = python("import time; print('up', flush=True); time.sleep(60)")


def test_a_jobs_exit_code_and_output_are_kept(tmp_path: Path) -> None:
    guarded = Guarded(
        tmp_path / "run",
        python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"),
    )
    ended = guarded.end()
    assert (ended["started"], ended["exit_code"], ended["stopped_by"]) == (True, 3, None)
    assert (tmp_path / "run/stdout.log").read_text() == "out\n"
    assert (tmp_path / "run/stderr.log").read_text() == "err\n"


def test_secrets_are_gone_from_the_launch_file_once_the_job_runs(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path / "run", SLEEPER)
    until(lambda: guarded.says("up"))
    assert not (tmp_path / "run/launch.json").exists()
    guarded.order("cancel", 0.0, 0.5)
    guarded.end()


def test_the_job_is_stopped_when_its_lease_ends(tmp_path: Path) -> None:
    ended = Guarded(tmp_path / "run", SLEEPER, lease_s=0.7).end()
    assert (ended["stopped_by"], ended["exit_code"], ended["killed"]) == (
        "lease",
        -signal.SIGTERM,
        False,
    )


def test_a_job_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path / "run", STUBBORN, grace_s=0.5)
    until(lambda: guarded.says("up"))  # only now does it ignore anything
    guarded.lease(0.2)
    ended = guarded.end()
    assert (ended["stopped_by"], ended["exit_code"], ended["killed"]) == (
        "lease",
        -signal.SIGKILL,
        True,
    )


@pytest.mark.parametrize("limit", ["walltime", "deadline"])
def test_a_job_is_ended_at_its_walltime_and_at_its_deadline_without_agent_or_server(
    tmp_path: Path, limit: str
) -> None:
    at_s = 0.7 if limit == "walltime" else guard_orders.boot_s() + 0.7
    ended = Guarded(tmp_path / "run", SLEEPER, **{f"{limit}_s": at_s}).end()
    assert (ended["stopped_by"], ended["exit_code"], ended["killed"]) == (
        limit,
        -signal.SIGTERM,
        False,
    )


def test_a_job_that_ignores_the_end_of_its_walltime_is_killed_after_the_grace(
    tmp_path: Path,
) -> None:
    ended = Guarded(tmp_path / "run", STUBBORN, grace_s=0.5, walltime_s=1.0).end()
    assert (ended["stopped_by"], ended["exit_code"], ended["killed"]) == (
        "walltime",
        -signal.SIGKILL,
        True,
    )


def test_a_job_that_ends_within_its_walltime_ends_by_itself(tmp_path: Path) -> None:
    ended = Guarded(tmp_path / "run", python("pass"), walltime_s=20.0).end()
    assert (ended["stopped_by"], ended["exit_code"]) == (None, 0)


CATCHER = (
    "import os, signal, sys, time\n"
    "def say(text): os.write(1, (text + '\\n').encode())  # whole, beside what others write\n"
    "def leave(*_): say(sys.argv[1]); time.sleep(sys.argv[1] == 'first'); sys.exit(7)\n"
    "signal.signal(10, leave)\n"
    "say('up ' + sys.argv[1])\ntime.sleep(60)\n"
)
FAMILY = (
    "import os, subprocess, sys, time\n"
    f"child = [sys.executable, '-c', {CATCHER!r}]\n"
    "step = {**os.environ, 'SLURM_STEP_ID': '0'}\n"
    "subprocess.Popen([*child, 'plain']); subprocess.Popen([*child, 'step'], env=step)\n"
    "sys.argv[1:] = ['first']\n" + CATCHER
)


@pytest.mark.parametrize(
    ("to", "told"),
    [("first", ["first"]), ("steps", ["step"]), ("all", ["first", "plain", "step"])],
)
def test_a_signal_comes_before_the_end_to_those_whom_it_is_for(
    tmp_path: Path, to: str, told: list[str]
) -> None:
    wanted = {"number": signal.SIGUSR1, "before_s": 3.0, "to": to}
    guarded = Guarded(tmp_path / "run", python(FAMILY), walltime_s=6.0, signal=wanted)
    ended = guarded.end()
    said = (tmp_path / "run/stdout.log").read_text().splitlines()
    assert sorted(said) == sorted([*told, "up first", "up plain", "up step"])
    assert ended["exit_code"] == (7 if "first" in told else -signal.SIGTERM)
    assert ended["stopped_by"] == (None if "first" in told else "walltime")


def test_a_signal_comes_once_and_not_to_a_job_that_is_being_stopped(tmp_path: Path) -> None:
    code = (
        "import signal, time\n"
        "for n in (10, 15): signal.signal(n, lambda n, _: print(n, flush=True))\n"
        "print('up', flush=True)\nwhile True: time.sleep(1)"
    )
    wanted = {"number": signal.SIGUSR1, "before_s": 1.0, "to": "first"}
    limits: dict[str, Any] = {"walltime_s": 3.0, "signal": wanted}
    once = Guarded(tmp_path / "once", python(code), grace_s=1.0, **limits)
    stopped = Guarded(tmp_path / "stopped", python(code), **limits)
    until(lambda: stopped.says("up"))
    stopped.order("preempt", 0.0, 3.5)
    assert stopped.end()["killed"] is once.end()["killed"] is True
    assert (once.folder / "stdout.log").read_text() == "up\n10\n15\n"
    assert (stopped.folder / "stdout.log").read_text() == "up\n15\n"


def test_a_renewed_lease_lets_the_job_go_on(tmp_path: Path) -> None:
    code = "import time\nfor i in range(8):\n print(i, flush=True); time.sleep(0.2)"
    guarded = Guarded(tmp_path / "run", python(code), lease_s=1.0)
    until(lambda: guarded.says("1"))
    guarded.lease(60.0)
    ended = guarded.end()
    assert (ended["exit_code"], ended["stopped_by"]) == (0, None)


def test_a_torn_lease_file_counts_as_the_lease_before(tmp_path: Path) -> None:
    guarded = Guarded(
        tmp_path / "run", python("import time; print('up', flush=True); time.sleep(0.5)")
    )
    until(lambda: guarded.says("up"))
    (guarded.folder / "lease.json").write_text('{"deadline')
    assert guarded.end()["exit_code"] == 0


def test_a_lease_of_another_boot_starts_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    launch = {
        "argv": ["true"],
        "environment": {},
        "cwd": str(folder),
        "grace_s": 1.0,
        "boot_id": "an-older-boot",
    }
    (folder / "launch.json").write_text(json.dumps(launch))
    (folder / "lease.json").write_text(
        json.dumps({"deadline_s": guard_orders.boot_s() + 60, "boot_id": BOOT})
    )
    assert guard.Guard(folder).run()["started"] is False
    assert not (folder / "job.json").exists()


def test_a_second_guard_of_the_same_launch_starts_nothing(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path / "run", SLEEPER)
    until(lambda: guarded.says("up"))
    first = guarded.process
    guarded.start()
    assert guarded.process.wait(10) == guard.ALREADY_LAUNCHED
    guarded.process = first
    guarded.order("cancel", 0.0, 0.5)
    guarded.end()
    guarded.start()
    assert guarded.process.wait(10) == guard.ALREADY_LAUNCHED
    assert (guarded.folder / "stdout.log").read_text() == "up\n"


def test_a_guard_that_comes_after_its_launch_was_settled_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent has settled it between the guard's file and its lock."""

    def settled(descriptor: int, operation: int) -> None:
        guard.write_exit(tmp_path, {"started": False})

    monkeypatch.setattr("loadmaster.agent.guarding.guard.fcntl.flock", settled)
    assert guard.own(tmp_path) is None
    assert (tmp_path / "guard.pid").read_bytes() == b""


DAEMON = (
    "import os,sys,time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n       "
    " import signal; signal.signal(15, signal.SIG_IGN)\n       "
    " open('daemon.pid','w').write(str(os.getpid())); print('up', flush=True); time.sleep(60)\n   "
    " os._exit(0)\n"
)


def test_a_child_that_detached_itself_does_not_outlive_a_cancelled_job(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path / "run", python(DAEMON + "time.sleep(60)"))
    until(lambda: guarded.says("up"))
    daemon = psutil.Process(int((guarded.folder / "work/daemon.pid").read_text()))
    guarded.order("cancel", 0.0, 0.5)
    assert guarded.end()["exit_code"] == -signal.SIGTERM
    assert not daemon.is_running()


def test_a_child_that_detached_itself_does_not_outlive_a_job_that_ends(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path / "run", python(DAEMON + "time.sleep(0.3)"))
    until(lambda: guarded.says("up"))
    daemon = psutil.Process(int((guarded.folder / "work/daemon.pid").read_text()))
    assert guarded.end()["exit_code"] == 0
    assert not daemon.is_running()


RUNAWAY = (
    "import os, signal, time\nsignal.signal(15, signal.SIG_IGN)\nos.setsid()\n"
    "print('up', flush=True)\nwhile True:\n"
    "    open('alive', 'w').close()\n    if os.fork(): os._exit(0)\n"
)
"""A process that has another number at every look."""


def test_a_child_that_goes_on_by_forking_does_not_outlive_a_cancelled_job(tmp_path: Path) -> None:
    code = "import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {!r}])\n"
    guarded = Guarded(tmp_path / "run", python(code.format(RUNAWAY) + "time.sleep(60)"))
    until(lambda: guarded.says("up"))
    guarded.order("cancel", 0.0, 0.5)
    assert guarded.end()["exit_code"] == -signal.SIGTERM
    alive = guarded.folder / "work/alive"
    alive.unlink()
    time.sleep(0.3)
    assert not alive.exists()


def test_a_process_whose_name_is_no_text_is_ended_as_any_other(tmp_path: Path) -> None:
    rename = "import ctypes; ctypes.CDLL(None).prctl(15, b'\\xff')\n"
    guarded = Guarded(tmp_path / "run", python(rename + DAEMON + "time.sleep(0.3)"))
    until(lambda: guarded.says("up"))
    daemon = psutil.Process(int((guarded.folder / "work/daemon.pid").read_text()))
    assert guarded.end()["exit_code"] == 0
    assert not daemon.is_running()


def test_a_guard_of_what_does_not_end_stays_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "launch.json").write_text(json.dumps({"grace_s": 1.0, "boot_id": BOOT}))
    looks = iter([True] * 4 + [False])
    monkeypatch.setattr(guard, "STUCK_S", 0.0)
    monkeypatch.setattr("loadmaster.agent.guarding.guard_processes.LEFT_S", 0.0)
    monkeypatch.setattr(guard.Guard, "_reap", lambda self: next(looks))
    guard.Guard(tmp_path)._sweep()
    assert next(looks, "looked until the end") == "looked until the end"
    assert capfd.readouterr().err.count("do not end") == 1


def test_a_job_dies_with_its_guard(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path / "run", STUBBORN)
    until(lambda: guarded.says("up"))
    job = psutil.Process(json.loads((guarded.folder / "job.json").read_text())["pid"])
    guarded.process.kill()
    guarded.process.wait()
    until(lambda: not is_running(job))


def test_a_command_that_does_not_exist_is_told(tmp_path: Path) -> None:
    ended = Guarded(tmp_path / "run", ("/no/such/program",)).end()
    assert ended["started"] is False
    assert "cannot be started" in ended["error"]


def test_sigterm_to_the_guard_stops_the_job(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path / "run", SLEEPER)
    until(lambda: guarded.says("up"))
    guarded.process.terminate()
    assert guarded.end()["stopped_by"] == "signal"


class TestOrders:
    """The earliest of all orders holds."""

    @pytest.fixture
    def stopping(self, tmp_path: Path) -> guard_orders.Stopping:
        (tmp_path / "lease.json").write_text(json.dumps({"deadline_s": 100.0, "boot_id": BOOT}))
        return guard_orders.Stopping(
            tmp_path, guard_orders.Lease(tmp_path / "lease.json", BOOT), grace_s=10.0
        )

    def test_before_its_lease_ends_nothing_is_ordered(
        self, stopping: guard_orders.Stopping
    ) -> None:
        stopping.look(99.9)
        assert stopping.by is None

    def test_the_grace_counts_from_the_leases_end_however_late_it_is_seen(
        self, stopping: guard_orders.Stopping
    ) -> None:
        stopping.look(500.0)
        assert (stopping.by, stopping.term_at_s, stopping.kill_at_s) == ("lease", 100.0, 110.0)

    def test_a_cancellation_shortens_a_preemption(self, stopping: guard_orders.Stopping) -> None:
        stopping.order("preempt", 30.0, 60.0)
        stopping.order("cancel", 20.0, 50.0)
        assert (stopping.by, stopping.term_at_s, stopping.kill_at_s) == ("cancel", 20.0, 50.0)

    def test_a_later_order_does_not_give_more_time(self, stopping: guard_orders.Stopping) -> None:
        stopping.order("cancel", 20.0, 50.0)
        stopping.order("preempt", 30.0, 60.0)
        assert (stopping.by, stopping.kill_at_s) == ("cancel", 50.0)


def test_a_job_has_the_limit_of_processes_of_its_launch(tmp_path: Path) -> None:
    told = python("import resource; print(resource.getrlimit(resource.RLIMIT_NPROC)[0])")
    Guarded(tmp_path / "run", told, most_processes=40).end()
    limit = int((tmp_path / "run/stdout.log").read_text())
    assert 40 < limit < 40 + 50_000, "beside the threads that its user has already"


@pytest.mark.parametrize(
    ("launch", "calls"),
    [
        ({}, []),
        ({"user": 7}, [("setgroups", []), ("setresgid", 7, 7, 7), ("setresuid", 7, 7, 7)]),
        (
            {"user": 7, "groups": [44]},
            [("setgroups", [44]), ("setresgid", 7, 7, 7), ("setresuid", 7, 7, 7)],
        ),
    ],
)
def test_a_job_becomes_its_teams_user_with_no_other_groups(
    launch: dict[str, Any], calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[Any, ...]] = []
    for name in ("setgroups", "setresgid", "setresuid"):
        monkeypatch.setattr(os, name, lambda *words, name=name: made.append((name, *words)))
    guard._become_user(launch)
    assert made == calls


def test_a_cgroup_that_is_gone_is_not_the_commands_fault(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone/cgroup.procs")
    ended = Guarded(tmp_path / "run", python("print('ran')"), cgroups=[gone]).end()
    assert not ended["started"]
    assert ended["error"].startswith("the job's cgroup cannot be joined: ")


def test_a_failed_join_is_not_the_commands_fault(tmp_path: Path) -> None:
    ended = Guarded(tmp_path / "run", python("print('ran')"), cgroups=["/dev/full"]).end()
    assert not ended["started"]
    assert ended["error"] == "the job's process cannot join its cgroup or become its user"


def test_a_job_joins_its_cgroup_before_its_program_starts(tmp_path: Path) -> None:
    entrance = tmp_path / "cgroup.procs"
    entrance.touch()
    code = f"print(open({str(entrance)!r}).read())"
    Guarded(tmp_path / "run", python(code), cgroups=[str(entrance)]).end()
    assert (tmp_path / "run/stdout.log").read_text() == "0\n"


def test_a_child_killed_for_memory_in_the_cgroup_counts(tmp_path: Path) -> None:
    counter = tmp_path / "memory.events"
    counter.write_text("low 0\noom_kill 0\n")
    code = f"open({str(counter)!r}, 'w').write('low 0\\noom_kill 1\\n'); exit(3)"
    ended = Guarded(tmp_path / "run", python(code), oom_counters=[str(counter)]).end()
    assert ended["oom"] is True


def test_a_kill_for_memory_in_another_cgroup_does_not_count(tmp_path: Path) -> None:
    counter = tmp_path / "memory.events"
    counter.write_text("low 0\noom_kill 4\n")
    job = python("import os; os.kill(os.getpid(), 9)")
    ended = Guarded(tmp_path / "run", job, oom_counters=[str(counter)]).end()
    assert ended["oom"] is False


@pytest.mark.parametrize(
    "module", ["guard.py", "guard_orders.py", "guard_output.py", "guard_processes.py"]
)
def test_guard_modules_can_run_on_python_3_9(module: str) -> None:
    """Python 3.9 cannot evaluate `int | None`, so annotations are postponed."""
    source = (Path(guard.__file__).parent / module).read_text()
    tree = ast.parse(source, feature_version=(3, 9))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert imports[0].module == "__future__"
    assert imports[0].names[0].name == "annotations"
