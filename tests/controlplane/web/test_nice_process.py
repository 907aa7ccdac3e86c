"""The process for long questions: nice, kept, ended when it takes too much or its parent goes."""

import operator
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from controlplane.web.nice_process import NICE, ask
from controlplane.web.rest.errors import NoAnswerError

# The function as it is: other tests' questions are answered in their own process.

PATIENCE_S = 60.0
PARENT = """
import os, time
from controlplane.web.nice_process import SOCKET, ask
print(ask(os.getpid), os.environ[SOCKET], flush=True)
time.sleep(600)
"""


def test_it_is_nice_with_its_session_bounded_in_memory_and_kept() -> None:
    pid, nice = ask(os.getpid), min(19, os.nice(0) + NICE)
    assert pid not in (os.getpid(), os.getppid())
    assert ask(os.nice, 0) == nice
    group = Path(f"/proc/{pid}/autogroup")
    assert not group.exists() or group.read_text().split()[-2:] == ["nice", str(nice)]
    assert ask(resource.getrlimit, resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
    assert ask(os.getpid) == pid


def test_what_the_question_raises_is_raised_with_its_place() -> None:
    with pytest.raises(ValueError, match="invalid literal") as raised:
        ask(int, "many")
    assert "shared.py" in "".join(raised.value.__notes__)
    assert ask(int, "7") == 7


def test_threads_wait_for_their_answers() -> None:
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, operator.mul, 1000, i) for i in range(40)]
    assert [question.result() for question in asked] == [1000 * i for i in range(40)]


def test_the_children_of_who_started_it_ask_the_same_one() -> None:
    child = [sys.executable, "-c", PARENT.replace("time.sleep(600)", "")]
    asked = subprocess.run(child, stdout=subprocess.PIPE, check=True)
    assert int(asked.stdout.split()[0]) == ask(os.getpid)


def test_it_knows_the_database() -> None:
    assert ask(_vendor) == connection.vendor


def _vendor() -> str:
    return connection.vendor


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("question", "given"),
    [(os._exit, (3,)), (_kill, ()), (bytearray, (1 << 50,)), (threading.Lock, ())],
    ids=["it ends", "it is killed", "it wants all memory", "its answer cannot be sent"],
)
def test_a_failure_is_told_and_the_next_question_is_answered(question: Any, given: Any) -> None:
    with pytest.raises((NoAnswerError, MemoryError, TypeError)):
        ask(question, *given)
    assert ask(int, "7") == 7


def test_what_takes_too_long_ends() -> None:
    pid = ask(os.getpid)
    with pytest.raises(NoAnswerError, match="too much time"):
        ask(_slow)
    assert ask(os.getpid) != pid


def _slow() -> None:
    signal.alarm(1)  # as if most of the time were over
    threading.Event().wait(600.0)


def test_who_goes_without_an_answer_keeps_nobody_else_waiting() -> None:
    child = [sys.executable, "-c", "from controlplane.web.nice_process import ask; import time; "]
    child[-1] += "ask(time.sleep, 1)"
    with subprocess.Popen(child) as asking:
        time.sleep(1.0)
        asking.kill()
    assert ask(int, "7") == 7


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_its_parent_and_leaves_nothing(how: signal.Signals) -> None:
    alone = {name: value for name, value in os.environ.items() if "NICE_PROCESS" not in name}
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=alone) as parent:
        assert parent.stdout is not None
        pid, socket = parent.stdout.readline().decode().split()
        process = Path(f"/proc/{pid}/stat")
        assert process.exists()
        assert Path(socket).parent.stat().st_mode & 0o777 == 0o700
        parent.send_signal(how)  # to the last one Python answers by ending its threads itself
    end = time.monotonic() + PATIENCE_S
    while process.exists() and process.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end, "it goes on without its parent"
        time.sleep(0.05)
    assert not Path(socket).parent.exists()
