"""A child process from its parent's side: messages, deadlines, its end with all its children."""

import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from time import monotonic

import pytest

from foundation.child_processes.child import PACKAGES, ChildProcess, environment_without_secrets
from foundation.child_processes.messages import DeadlineError

PATIENCE_S = 60.0

SET_UP = "from foundation.child_processes.limits import set_up_child\nset_up_child()\n"


def a_child(code: str) -> ChildProcess:
    """A child that runs this code of Python."""
    imports = "import os, subprocess, sys, time\n"
    command = [sys.executable, "-c", imports + textwrap.dedent(code)]
    return ChildProcess(command, environment_without_secrets())


def is_alive(pid: int) -> bool:
    """Return False for a zombie, too, which nobody has waited for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def eventually(holds: Callable[[], bool], what: str) -> None:
    deadline_s = monotonic() + PATIENCE_S
    while not holds():
        assert monotonic() < deadline_s, what
        time.sleep(0.02)


def test_child_answers_one_line_with_another() -> None:
    with a_child("for line in sys.stdin: print(line.strip().upper(), flush=True)") as child:
        child.send(b"one", inf)
        child.send(b"two", inf)
        assert [child.receive(inf), child.receive(inf)] == [b"ONE", b"TWO"]


def test_messages_larger_than_a_pipe_go_through() -> None:
    with a_child("for line in sys.stdin: print(line.strip(), flush=True)") as child:
        sent = b"x" * (1 << 22)
        child.send(sent, inf)
        assert child.receive(inf) == sent


def test_child_that_does_not_answer_passes_the_deadline() -> None:
    with a_child("time.sleep(600)") as child, pytest.raises(DeadlineError, match="not answer"):
        child.receive(monotonic() + 0.1)


def test_child_that_does_not_read_passes_the_deadline() -> None:
    with a_child("time.sleep(600)") as child, pytest.raises(DeadlineError, match="not read"):
        child.send(b"x" * (1 << 22), monotonic() + 0.1)


def test_deadline_within_a_message_loses_none_of_it() -> None:
    code = "print('ha', end='', flush=True); sys.stdin.readline(); print('lf\\nnext', flush=True)"
    with a_child(code) as child:
        with pytest.raises(DeadlineError):
            child.receive(monotonic() + 0.5)
        child.send(b"go on", inf)
        assert [child.receive(inf), child.receive(inf)] == [b"half", b"next"]


def test_messages_before_the_end_are_read_before_it() -> None:
    with a_child("print('last', flush=True); sys.exit(3)") as child:
        assert child.wait() == 3
        assert child.receive(inf) == b"last"
        with pytest.raises(EOFError):
            child.receive(inf)


def test_end_is_noticed_while_a_grandchild_holds_the_pipe() -> None:
    with a_child("print(subprocess.Popen(['sleep', '600']).pid, flush=True)") as child:
        grandchild = int(child.receive(inf))
        with pytest.raises(EOFError):
            child.receive(monotonic() + PATIENCE_S)
        assert is_alive(grandchild)


def test_answer_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foundation.child_processes.messages.LONGEST_MESSAGE", 1 << 20)
    with (
        a_child("while True: sys.stdout.write('x' * 65536)") as child,
        pytest.raises(ValueError, match="its answer is longer than 1 MiB"),
    ):
        child.receive(inf)


def test_kill_ends_grandchildren_whose_parent_has_ended() -> None:
    with a_child("print(subprocess.Popen(['sleep', '600']).pid, flush=True)") as child:
        grandchild = int(child.receive(inf))
        child.wait()
    eventually(lambda: not is_alive(grandchild), "the grandchild lives on")


def test_child_outlives_the_thread_that_asked_for_it() -> None:
    started: list[ChildProcess] = []
    code = SET_UP + "print('up', flush=True); sys.stdin.readline(); print('on', flush=True)"

    def start() -> None:
        started.append(a_child(code))
        started[0].receive(inf)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    with started[0] as child:
        child.send(b"", inf)
        assert child.receive(inf) == b"on"


def test_child_ends_with_a_parent_that_is_killed() -> None:
    parent = f"""
        import os
        from foundation.child_processes.child import ChildProcess
        code = {SET_UP + "import time; print('up', flush=True); time.sleep(600)"!r}
        child = ChildProcess([{sys.executable!r}, "-c", code], os.environ)
        child.receive(float("inf"))
        print(child.pid, flush=True)
        os.kill(os.getpid(), 9)
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(parent)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": PACKAGES},
        check=False,
    )
    assert ran.returncode == -signal.SIGKILL
    pid = int(ran.stdout)
    eventually(lambda: not is_alive(pid), "it outlived its parent")


def test_child_whose_parent_has_ended_before_ends_at_once() -> None:
    code = "os.environ['LOADMASTER_PARENT'] = '1'\n" + SET_UP + "print('up', flush=True)"
    with a_child(code) as child, pytest.raises(EOFError):
        child.receive(inf)


def test_grandchildren_do_not_take_the_parent_for_their_own() -> None:
    code = SET_UP + "print(os.environ.get('LOADMASTER_PARENT'), flush=True)"
    with a_child(code) as child:
        assert child.receive(inf) == b"None"


def test_program_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match="/no/such/program"):
        ChildProcess(["/no/such/program"], {})


def test_secrets_of_the_environment_are_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://secret")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    passed_on = environment_without_secrets()
    assert {"PATH", "LC_ALL"} <= set(passed_on)
    assert "DATABASE_URL" not in passed_on


def test_descriptors_above_those_of_select_are_fine() -> None:
    """A web process has as many sockets as there are event streams."""
    limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard_limit), hard_limit))
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with a_child("print('up', flush=True)") as child:
            assert child.receive(inf) == b"up"
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard_limit))
