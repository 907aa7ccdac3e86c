"""Child processes: their environment, lifetime and memory."""

import ctypes
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1

LEAST_BYTES = 2 << 30
"""Memory granted to a child on any machine: solver libraries need as much."""

CGROUP = Path("/sys/fs/cgroup/memory.max")
FIRST_TO_GO = "1000"


PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV", "SYSTEMROOT")
PASSED_ON_PREFIXES = ("LC_", "NUMBA_", "PYTHON", "COVERAGE_", "OMP_", "OPENBLAS_", "MKL_")
"""Prefixes of variables for children: policies must not see the server's secrets."""


def die_with(parent: int) -> None:
    """Ask Linux to kill this process with its parent; exit if that has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


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
