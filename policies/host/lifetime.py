"""Child processes: their environment, lifetime, niceness and memory."""

import ctypes
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1

LEAST_BYTES = 2 << 30
"""Memory granted to a child on any machine: solver libraries need as much."""

CGROUP = Path("/sys/fs/cgroup/memory.max")
FIRST_TO_GO = "1000"
AUTOGROUP, AUTOGROUP_TRIES = Path("/proc/self/autogroup"), 10


PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV", "SYSTEMROOT")
PASSED_ON_PREFIXES = ("LC_", "NUMBA_", "PYTHON", "COVERAGE_", "OMP_", "OPENBLAS_", "MKL_")
"""Prefixes of variables for children: policies must not see the server's secrets."""


def die_with(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Ask Linux to send this signal when the parent ends; exit if that has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, by, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def be_nice(more: int = 0) -> None:
    """Raise the niceness of this process, which has a session of its own, or with 0 only that of
    the session.

    Linux shares processors out by session first, and within a session by niceness: the whole
    session has to be nice.
    """
    nice = os.nice(more)
    for _ in range(AUTOGROUP_TRIES if nice else 0):
        try:
            AUTOGROUP.write_text(str(nice))
        except BlockingIOError:  # Linux takes one such change of all users each 0.1 s
            time.sleep(0.1)
        except OSError:  # a kernel without, where niceness alone counts
            return
        else:
            return


def take_no_more_than_a_half() -> None:
    """Limit allocations of this process, and each of its children, to half of the memory.

    Beyond that Python raises MemoryError. Should memory run out all the same, Linux kills this
    process first.
    """
    most = max(memory_bytes() // 2, LEAST_BYTES)
    with suppress(OSError, ValueError):  # a lower limit may have been set by somebody else
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_GO)


M_MMAP_THRESHOLD, LARGE_BYTES = -3, 1 << 20
M_ARENA_MAX, ARENAS = -8, 2
"""glibc's settings: size from which a block is mapped alone, and heaps that threads share."""


def keep_little_memory() -> None:
    """Return large blocks to the system as soon as they are free, and share heaps.

    glibc raises that size with each large block that is freed, and gives each thread a heap: each
    then keeps as much as its largest request took.
    """
    with suppress(AttributeError):  # another library of C
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        libc.mallopt(M_ARENA_MAX, ARENAS)


def memory_bytes(limit: Path = CGROUP) -> int:
    """Memory of the machine, or the container's limit."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(whole, int(limit.read_text()))
    except (OSError, ValueError):  # no container, or "max"
        return whole


def of_a_child() -> dict[str, str]:
    """Return a child's environment, with this package's folder first on its path."""
    kept = {
        k: v for k, v in os.environ.items() if k in PASSED_ON or k.startswith(PASSED_ON_PREFIXES)
    }
    folder = str(Path(__file__).resolve().parents[2])
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, kept.get("PYTHONPATH"))))
    return kept
