"""The supervisor starts in order, restarts what dies, gives up on what always dies, and leaves
nothing behind.
"""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from controlplane.operations.embedded import supervisor as embedded_supervisor
from controlplane.operations.embedded.supervisor import EmbeddedError, Program, Supervisor, python

SLEEPER = python("-c", "import time; time.sleep(600)")


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether the condition comes true in time."""
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)
    return condition()


def writes_its_pid(path: Path, then: str = "import time; time.sleep(600)") -> list[str]:
    return python("-c", f"import os; open({str(path)!r}, 'a').write(f'{{os.getpid()}}\\n'); {then}")


def pids(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def test_a_program_is_waited_for_until_it_is_ready(tmp_path: Path) -> None:
    sign = tmp_path / "ready"
    with Supervisor(tmp_path) as supervisor:
        supervisor.start(Program("slow", writes_its_pid(sign), ready=sign.exists))
        assert sign.exists()


def test_a_nice_program_leaves_the_processors_to_the_others_with_its_whole_session(
    tmp_path: Path,
) -> None:
    said = tmp_path / "said"
    tell = "import os; from pathlib import Path; own = Path('/proc/self/autogroup'); "
    tell += (
        f"Path({str(said)!r}).write_text(f'{{os.nice(0)}} ' + (own.read_text() if own.exists() else"
        " f'nice {os.nice(0)}'))"
    )
    with Supervisor(tmp_path) as supervisor:
        supervisor.start(
            Program(
                "nice",
                python("-c", tell),
                ready=lambda: said.exists() and said.stat().st_size > 0,
                nice=5,
            )
        )
    words = said.read_text().split()
    assert int(words[0]) == min(19, os.nice(0) + 5)
    assert words[-2:] == ["nice", words[0]]


def test_a_program_that_ends_while_starting_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor, pytest.raises(EmbeddedError, match="out of coffee"):
        supervisor.start(
            Program("bad", python("-c", "raise SystemExit('out of coffee')"), ready=lambda: False)
        )


def test_of_a_long_log_only_the_end_is_read(tmp_path: Path) -> None:
    script = "import sys; sys.exit('x' * 1_000_000 + 'out of coffee')"
    with Supervisor(tmp_path) as supervisor, pytest.raises(EmbeddedError) as failed:
        supervisor.start(Program("bad", python("-c", script), ready=lambda: False))
    assert str(failed.value).endswith("out of coffee")
    assert len(str(failed.value)) < 66_000


def test_the_log_of_a_program_that_goes_on_stays_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_supervisor, "_LARGEST_LOG", 1000)
    log, old = tmp_path / "logs/talker.log", tmp_path / "logs/talker.log.1"
    go, script = tmp_path / "go", "import pathlib, time; print('x' * 2000, flush=True)"
    script += f"\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)"
    script += "\nprint('goes on', flush=True); time.sleep(600)"
    with Supervisor(tmp_path) as supervisor:
        supervisor.start(Program("talker", python("-c", script), ready=log.exists))

        def says(words: str) -> bool:
            supervisor.pause(0.05)
            return log.read_text().startswith(words)

        assert eventually(lambda: says("") and old.exists())
        go.touch()
        assert eventually(lambda: says("goes on"))
    assert old.read_text() == "x" * 2000 + "\n"


def test_a_log_is_cut_though_its_copy_finds_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_supervisor, "_LARGEST_LOG", 1000)
    full = Mock(side_effect=OSError(errno.ENOSPC, "full"))
    monkeypatch.setattr(shutil, "copyfile", full)
    log = tmp_path / "logs/talker.log"
    talker = python("-c", "print('x' * 2000, flush=True); import time; time.sleep(600)")
    with Supervisor(tmp_path) as supervisor:
        supervisor.start(Program("talker", talker, ready=lambda: full.called))
        assert log.read_text() == ""


def test_a_program_that_never_gets_ready_is_reported(tmp_path: Path) -> None:
    with (
        Supervisor(tmp_path) as supervisor,
        pytest.raises(EmbeddedError, match="lazy was not ready within"),
    ):
        supervisor.start(Program("lazy", SLEEPER, ready=lambda: False, ready_s=0.3))


def test_what_dies_is_started_again_and_said_so(tmp_path: Path) -> None:
    log, said = tmp_path / "pids", list[str]()
    with Supervisor(tmp_path, said.append) as supervisor:
        supervisor.start(Program("mortal", writes_its_pid(log), ready=log.exists))
        assert eventually(lambda: len(pids(log)) == 1)
        os.kill(pids(log)[0], signal.SIGKILL)
        for _ in range(100):
            supervisor.pause(0.05)
            if len(pids(log)) == 2:
                break
    assert len(pids(log)) == 2
    assert "mortal ended with -9; starting it again" in said[0]


def test_what_always_dies_is_given_up(tmp_path: Path) -> None:
    with Supervisor(tmp_path, lambda words: None) as supervisor:
        supervisor.start(Program("hopeless", python("-c", "raise SystemExit('no')")))
        with pytest.raises(EmbeddedError, match="hopeless keeps ending"):
            supervisor.pause(60)


def test_the_last_started_is_stopped_first_and_all_are_gone(tmp_path: Path) -> None:
    order = tmp_path / "order"
    says = (
        "import signal, sys, time; signal.signal(15, lambda *_: (open({path!r},"
        " 'a').write({name!r}), sys.exit(0)));open({up!r}, 'w'); time.sleep(600)"
    )
    with Supervisor(tmp_path) as supervisor:
        for name in ("a", "b", "c"):
            up = tmp_path / f"{name}.up"
            supervisor.start(
                Program(
                    name,
                    python("-c", says.format(path=str(order), name=name, up=str(up))),
                    ready=up.exists,
                )
            )
    assert order.read_text() == "cba"


def test_what_ignores_sigterm_is_killed_with_its_children(tmp_path: Path) -> None:
    log = tmp_path / "pids"
    script = "import signal, subprocess, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    with Supervisor(tmp_path) as supervisor:
        supervisor.start(
            Program(
                "stubborn", writes_its_pid(log, script), ready=lambda: bool(pids(log)), stop_s=0.5
            )
        )
        time.sleep(0.2)
    assert not psutil.pid_exists(pids(log)[0])


def test_a_second_supervisor_of_the_same_home_is_refused(tmp_path: Path) -> None:
    with (
        Supervisor(tmp_path),
        pytest.raises(EmbeddedError, match="another Loadmaster already runs"),
    ):
        Supervisor(tmp_path).__enter__()


def test_ctrl_c_interrupts_the_wait(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            supervisor.pause(10)


def test_a_supervisor_killed_by_force_leaves_no_child(tmp_path: Path) -> None:
    log = tmp_path / "pids"
    script = (
        "import sys, pathlib\n"
        "from controlplane.operations.embedded.supervisor import Program, Supervisor\n"
        f"log = pathlib.Path({str(log)!r})\n"
        f"with Supervisor(pathlib.Path({str(tmp_path)!r})) as s:\n"
        f"    s.start(Program('child', {writes_its_pid(log)!r}, ready=log.exists))\n"
        "    s.pause(600)\n"
    )
    supervisor = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[3])
    assert eventually(lambda: len(pids(log)) == 1)
    supervisor.kill()
    supervisor.wait()
    assert eventually(lambda: not psutil.pid_exists(pids(log)[0]))
