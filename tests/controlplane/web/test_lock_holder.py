"""Names of those who hold a round tell whether they still live, as far as that can be known
here.
"""

import os
import subprocess
import sys

import pytest

from controlplane.web.storage.lock_holder import new_owner, owner_has_ended

NAME_ITSELF = (
    "from controlplane.web.storage.lock_holder import new_owner;"
    " import sys; print(new_owner(), flush=True);"
    " sys.stdin.readline()"
)


def test_this_process_lives_and_holds_under_a_new_name_every_time() -> None:
    first, second = new_owner(), new_owner()
    assert first != second
    assert len(first) <= 64
    assert not owner_has_ended(first)


def test_a_holder_is_gone_when_its_process_was_killed_reaped_or_not() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", NAME_ITSELF], stdin=pipe, stdout=pipe, text=True
    ) as process:
        assert process.stdout is not None
        holder = process.stdout.readline().strip()
        assert not owner_has_ended(holder)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert owner_has_ended(holder), "a zombie applies no plan"
    assert owner_has_ended(holder)


def test_a_process_that_got_the_pid_of_a_dead_holder_does_not_keep_it_alive() -> None:
    place, pid, started, _ = new_owner().split(".")
    assert owner_has_ended(f"{place}.{pid}.{int(started) - 1}.0123456789abcdef")


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
    assert not owner_has_ended(holder)
