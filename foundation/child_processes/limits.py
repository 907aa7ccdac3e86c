"""Limits that a child process sets itself: its lifetime, niceness and memory."""

import ctypes
import os
import resource
import signal
import time
from contextlib import suppress
from pathlib import Path

PARENT = "LOADMASTER_PARENT"
"""Variable of a new child's environment with its parent's process number."""

PR_SET_PDEATHSIG = 1
"""prctl's option for the signal that a process gets when its parent ends."""

LEAST_BYTES = 2 << 30
"""Memory granted to a child on any machine: solver libraries need as much."""

CGROUP = Path("/sys/fs/cgroup/memory.max")
"""File with the memory limit of the container, in bytes."""

FIRST_TO_GO = "1000"
"""Highest score of a process that Linux kills when memory runs out."""

AUTOGROUP = Path("/proc/self/autogroup")
"""File with the niceness of this process' session."""

AUTOGROUP_TRIES = 10
"""Most tries to change the niceness of the session."""

AUTOGROUP_PAUSE_S = 0.1
"""Time between tries in seconds: Linux accepts one such change in 0.1 s, whoever makes it."""

M_MMAP_THRESHOLD = -3
"""glibc's setting for the least size in bytes of a block that is mapped by itself."""

LARGE_BYTES = 1 << 20
"""Value of M_MMAP_THRESHOLD."""

M_ARENA_MAX = -8
"""glibc's setting for the number of heaps that threads share."""

ARENAS = 2
"""Value of M_ARENA_MAX."""


def set_up_child(
    *,
    nice: int = 0,
    memory_bytes: int | None = None,
    death_signal: signal.Signals = signal.SIGKILL,
) -> None:
    """End with the parent, be nicer by `nice` with the whole session, and limit the memory.

    A process that no `ChildProcess` has started, but a person by hand, stays as it is.
    """
    parent = os.environ.pop(PARENT, "")
    if not parent:
        return
    die_with(int(parent), death_signal)
    be_nice(nice)
    if memory_bytes is not None:
        limit_memory(memory_bytes)


def die_with(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Get this signal when the parent ends; exit if it has ended already."""
    set_death_signal(by)
    if os.getppid() != parent:
        os._exit(0)


def set_death_signal(number: signal.Signals) -> None:
    """Ask Linux to send this process a signal when the thread that started it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def be_nice(more: int = 0) -> None:
    """Raise the niceness of this process by `more`, and give it to its whole session.

    Linux shares processors by session first, and within a session by niceness: a nice process in a
    session of its own takes as much as others unless its session is nice, too.
    """
    nice = os.nice(more)
    if nice == 0:
        return
    for _ in range(AUTOGROUP_TRIES):
        try:
            AUTOGROUP.write_text(str(nice))
        except BlockingIOError:
            time.sleep(AUTOGROUP_PAUSE_S)
        except OSError:  # a kernel without such groups, where niceness alone counts
            return
        else:
            return


def limit_memory(most_bytes: int) -> None:
    """Limit the allocations of this process, and of each of its children.

    Beyond that Python raises MemoryError. A lower limit that is set already stays. Should memory
    run out all the same, Linux kills this process first.
    """
    _, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
    if hard_limit != resource.RLIM_INFINITY:
        most_bytes = min(most_bytes, hard_limit)
    resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_GO)


def half_of_memory() -> int:
    """Return half of the memory in bytes, but at least LEAST_BYTES."""
    return max(memory_bytes() // 2, LEAST_BYTES)


def memory_bytes(limit: Path = CGROUP) -> int:
    """Return the memory of the machine in bytes, or the container's limit if that is less."""
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(machine_bytes, int(limit.read_text()))
    except (OSError, ValueError):  # no container, or "max"
        return machine_bytes


def keep_little_memory() -> None:
    """Return large blocks to the system as soon as they are free, and let threads share heaps.

    If nothing is set, glibc raises M_MMAP_THRESHOLD with each large block that is freed, and gives
    each thread a heap of its own. Each heap then keeps the memory of its thread's largest request.
    """
    with suppress(AttributeError):  # a C library other than glibc
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        libc.mallopt(M_ARENA_MAX, ARENAS)
