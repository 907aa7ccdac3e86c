"""What an isolated job can take: processes, memory in files, and time beyond its own end."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadmaster.agent.runtimes.base import RunId
from tests.builders_agent import python, until
from tests.builders_isolation import Site, a_site, an_isolation

FORKS = """
import os, time
forked = 0
try:
    for _ in range(300):
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        forked += 1
except OSError as error:
    print(error.strerror)
print('forked', forked)
"""
MEMFD = """
import os, time
held = os.memfd_create('hidden')
for _ in range(200):
    os.write(held, b'x' * 1_000_000)
print('up', flush=True)
time.sleep(60)
"""
MAPPED_MEMFD = """
import mmap, os, time
held = os.memfd_create('shared')
os.ftruncate(held, 200_000_000)
memory = mmap.mmap(held, 200_000_000)
for at in range(0, 200_000_000, 4096):
    memory[at] = 1
os.fork()
sum(memory[at] for at in range(0, 200_000_000, 4096))
print('up', flush=True)
time.sleep(60)
"""
SHARED_MEMORY = """
import time
with open('/dev/shm/hidden', 'wb') as file:
    for _ in range(200):
        file.write(b'x' * 1_000_000)
print('up', flush=True)
time.sleep(60)
"""
TRACES_PROCESS_1 = """
import ctypes, os, sys, time
PTRACE_ATTACH = 16
if os.fork() == 0:
    libc = ctypes.CDLL(None, use_errno=True)
    print('attached', libc.ptrace(PTRACE_ATTACH, 1, None, None), flush=True)
    time.sleep(600)
time.sleep(1)
sys.exit(3)
"""


@pytest.fixture
def bare_site(state: Path) -> Iterator[Site]:
    """A site without bubblewrap: as root its jobs are a team's user, else the agent's own."""
    yield from a_site(an_isolation(state, program=""))


def memory_gb(site: Site, run: RunId, lines: int = 1) -> float:
    """Memory of a run by an exact count, once its processes say that they hold it."""
    until(lambda: site.text(run).count("up") == lines)
    usage = site.runtime.usage(run, exact=True)
    assert usage
    assert usage.most_memory_gb >= usage.memory_gb
    return usage.memory_gb


def test_a_sandbox_has_a_limit_of_processes_of_its_own(site: Site) -> None:
    site.runtime.most_processes = 40
    runs = [site.start(name, command=python(FORKS)) for name in ("a1", "a2")]
    for run in runs:  # the other job's do not count
        said = site.says(run)
        assert "Resource temporarily unavailable" in said
        assert 25 <= int(said.split()[-1]) < 40, said


def test_the_limit_of_processes_holds_without_a_sandbox_too(bare_site: Site) -> None:
    bare_site.runtime.most_processes = 40
    said = bare_site.runs(FORKS)
    assert "Resource temporarily unavailable" in said
    assert 25 <= int(said.split()[-1]) < 40, said


def test_a_job_makes_no_user_namespace(site: Site) -> None:
    code = "import subprocess\nprint(subprocess.run(['unshare', '--user', 'true']).returncode)"
    said = site.runs(code)
    assert "1" in said.splitlines(), said


def test_memory_counts_what_was_written_to_a_memfd(any_site: Site) -> None:
    run = any_site.start(command=python(MEMFD))
    assert 0.2 <= memory_gb(any_site, run) < 0.25


def test_memory_counts_a_mapped_memfd_once_for_all_processes(any_site: Site) -> None:
    run = any_site.start(command=python(MAPPED_MEMFD))
    assert 0.2 <= memory_gb(any_site, run, lines=2) < 0.26


def test_memory_counts_files_in_shared_memory(site: Site) -> None:
    run = site.start(command=python(SHARED_MEMORY))
    assert 0.2 <= memory_gb(site, run) < 0.25


def test_a_job_that_traces_process_1_ends_with_its_own_code(site: Site) -> None:
    run = site.start(command=python(TRACES_PROCESS_1))
    end = site.end_of(run).exit
    assert end
    assert "attached 0" in site.text(run)
    assert (end.started, end.exit_code, end.killed) == (True, 3, False)
