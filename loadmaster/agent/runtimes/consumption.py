"""Processor time and memory that the processes of a run hold, files in memory included.

Memory that is mapped is part of a process; what lies in a memfd or in the sandbox's shared memory
without being mapped is found by the files. System V segments that no process has attached, and
what is under way in sockets, are not found (docs/security.md).
"""

import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from loadmaster.agent.runtimes.isolation import SHM

KB = 1024
BLOCK = 512
MEMFD = "/memfd:"

MAPPING = re.compile(rb"[0-9a-f]+-[0-9a-f]+ \S+ \S+ ([0-9a-f]+):([0-9a-f]+) (\d+)")
"""First line of a mapping in /proc/PID/smaps: its device and inode."""

Files = dict[tuple[int, int], int]
"""Bytes of files in memory by device and inode."""


@dataclass(frozen=True, slots=True)
class Consumption:
    """CPU seconds of all processes, ended ones included, and bytes of memory now.

    `memory` counts shared pages of processes for each unless it is exact; `most_memory` also files
    in memory besides what is mapped of them, so that it is never less than what is held.
    """

    cpu_s: float = 0.0
    memory: int = 0
    most_memory: int = 0


def consumption(guard_pid: int, *, exact: bool, sandboxed: bool) -> Consumption:
    """What the processes below a guard consume; an exact count takes longer."""
    try:
        below = psutil.Process(guard_pid).children(recursive=True)
    except psutil.Error:
        return Consumption()
    cpu_s = 0.0
    for process in below:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            cpu_s += times.user + times.system + times.children_user + times.children_system

    # 1. Files in memory: memfds that are open, and the shared memory of the sandbox.
    pids = [process.pid for process in below]
    memfds = _memfds(pids)
    in_files = sum(memfds.values())
    shm_device = None
    if sandboxed and len(below) > 1:  # bubblewrap, and process 1 of the sandbox
        shm_device, used = _shared_memory(pids[1])
        in_files += used

    # 2. Memory of the processes, and what of it is mapped from such files.
    if exact:
        memory = sum(_proportional(pid) for pid in pids)
        mapped = sum(_mapped_of(pid, memfds, shm_device) for pid in pids) if in_files else 0
    else:
        memory = sum(_kilobytes(pid, "status", b"VmRSS:") for pid in pids)
        mapped = sum(_kilobytes(pid, "status", b"RssShmem:") for pid in pids) if in_files else 0
    return Consumption(cpu_s, memory + max(0, in_files - mapped), memory + in_files)


def _kilobytes(pid: int, name: str, field: bytes) -> int:
    """Bytes of a field in a file of /proc that counts in kB; 0 if there is none."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/{name}").read_bytes().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * KB
    return 0


def _proportional(pid: int) -> int:
    """Bytes of a process, its shared pages divided among those that share them.

    A process that lets nobody look at it counts with all its pages.
    """
    shared_fairly = _kilobytes(pid, "smaps_rollup", b"Pss:")
    return shared_fairly or _kilobytes(pid, "status", b"VmRSS:")


def _memfds(pids: Sequence[int]) -> Files:
    """Memfds that the processes have open."""
    found: Files = {}
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended, or lets nobody look at it
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(entry.path).startswith(MEMFD):  # noqa: PTH115  # no path
                        status = os.stat(entry.path)  # noqa: PTH116  # of what it is open to
                        found[status.st_dev, status.st_ino] = status.st_blocks * BLOCK
    return found


def _shared_memory(pid: int) -> tuple[int | None, int]:
    """Device and bytes of shared memory as a process sees it; (None, 0) if it is the node's."""
    place = Path(f"/proc/{pid}/root{SHM}")
    with contextlib.suppress(OSError):
        device = place.stat().st_dev
        if device != Path(SHM).stat().st_dev:
            found = os.statvfs(place)
            return device, (found.f_blocks - found.f_bfree) * found.f_frsize
    return None, 0


def _mapped_of(pid: int, memfds: Files, shm_device: int | None) -> int:
    """Bytes of files in memory that a process has mapped, shared ones divided.

    A process that lets nobody look at it may have mapped all its shared memory from them.
    """
    try:
        text = Path(f"/proc/{pid}/smaps").read_bytes()
    except OSError:
        return _kilobytes(pid, "status", b"RssShmem:")
    mapped, is_of_file = 0, False
    for line in text.splitlines():
        if found := MAPPING.match(line):
            device = os.makedev(int(found[1], 16), int(found[2], 16))
            is_of_file = device == shm_device or (device, int(found[3])) in memfds
        elif is_of_file and line.startswith(b"Pss:"):
            mapped += int(line.split()[1]) * KB
    return mapped
