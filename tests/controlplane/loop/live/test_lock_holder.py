"""Names of those who hold a round tell whether they still live, as far as that can be known
here.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from controlplane.loop.live.lock_holder import is_gone, new_holder

NAME_ITSELF = (
    "from controlplane.loop.live.lock_holder import new_holder;"
    " import sys; print(new_holder(), flush=True);"
    " sys.stdin.readline()"
)


def test_this_process_lives_and_holds_under_a_new_name_every_time() -> None:
    first, second = new_holder(), new_holder()
    assert first != second
    assert len(first) <= 64
    assert not is_gone(first)


def test_a_holder_is_gone_when_its_process_was_killed_reaped_or_not() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", NAME_ITSELF], stdin=pipe, stdout=pipe, text=True
    ) as process:
        assert process.stdout is not None
        holder = process.stdout.readline().strip()
        assert not is_gone(holder)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_gone(holder), "a zombie applies no plan"
    assert is_gone(holder)


def test_a_process_that_got_the_pid_of_a_dead_holder_does_not_keep_it_alive() -> None:
    place, pid, started, _ = new_holder().split(".")
    assert is_gone(f"{place}.{pid}.{int(started) - 1}.0123456789abcdef")


@pytest.mark.parametrize(
    "holder",
    [
        "",
        "worker-1",
        "0123456789abcdef0123456789abcdef",
        "elsewhere.1.1.0123456789abcdef",
        ".1.1.a",
    ],
)
def test_nothing_is_known_of_holders_elsewhere(holder: str) -> None:
    assert not is_gone(holder)
