"""Memory of a run's processes, that in files included: no sandbox needed."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from loadmaster.agent.runtimes.consumption import Consumption, consumption

MB = 1_000_000
GUARD = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', sys.argv[1]])"
IN_A_MEMFD = """
import os, sys
held = os.memfd_create('hidden')
for _ in range(50):
    os.write(held, b'x' * 1_000_000)
os.write(1, b'up\\n')
sys.stdin.read()
"""
MAPPED_BY_TWO = """
import mmap, os, sys
held = os.memfd_create('shared')
os.ftruncate(held, 50_000_000)
memory = mmap.mmap(held, 50_000_000)
for at in range(0, 50_000_000, 4096):
    memory[at] = 1
os.fork()
sum(memory[at] for at in range(0, 50_000_000, 4096))
os.write(1, b'up\\n')
sys.stdin.read()
"""


@contextmanager
def guarded(job: str, processes: int) -> Iterator[int]:
    """Run a job of so many processes below a guard, whose pid this is, once all say 'up'."""
    command = [sys.executable, "-c", GUARD, job]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as guard:
        assert guard.stdout
        for _ in range(processes):
            assert guard.stdout.readline() == b"up\n"
        yield guard.pid


@pytest.mark.parametrize("exact", [True, False])
def test_memory_written_to_a_memfd_counts(*, exact: bool) -> None:
    with guarded(IN_A_MEMFD, 1) as pid:
        found = consumption(pid, exact=exact, sandboxed=False)
    assert 50 * MB < found.memory < 90 * MB
    assert found.most_memory >= found.memory


def test_memory_that_two_processes_share_counts_once() -> None:
    with guarded(MAPPED_BY_TWO, 2) as pid:
        found = consumption(pid, exact=True, sandboxed=False)
    assert 50 * MB < found.memory < 90 * MB
    assert found.most_memory >= found.memory


def test_a_guard_that_has_ended_has_consumed_nothing() -> None:
    with guarded(IN_A_MEMFD, 1) as pid:
        pass
    assert consumption(pid, exact=False, sandboxed=True) == Consumption()
