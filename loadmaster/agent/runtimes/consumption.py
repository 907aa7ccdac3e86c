"""CPU time and memory of the processes of a run, files in memory included.

Mapped memory counts with the process that maps it. Memory in a memfd or in the sandbox's shared
memory that no process maps is found by the sizes of these files. System V segments that no process
has attached, and data under way in sockets, are not found (docs/security.md).
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
"""Bytes of a block of `st_blocks`."""

MEMFD = "/memfd:"
"""Beginning of the target of a link in /proc/PID/fd that is a memfd."""

MAPPING = re.compile(rb"[0-9a-f]+-[0-9a-f]+ \S+ \S+ ([0-9a-f]+):([0-9a-f]+) (\d+)")
"""First line of a mapping in /proc/PID/smaps: its device and inode."""

FileSizes = dict[tuple[int, int], int]
"""Bytes of files in memory by device and inode."""


@dataclass(frozen=True, slots=True)
class Consumption:
    """CPU seconds of all processes, ended ones included, and bytes of memory now.

    `memory`: unless the count is exact, pages that processes share count once for each of them.
    `most_memory`: an upper bound, in which mapped parts of files in memory count twice.
    `throttled_s`: CPU seconds that the run's quota has withheld from it.
    """

    cpu_s: float = 0.0
    memory: int = 0
    most_memory: int = 0
    throttled_s: float = 0.0


def consumption(guard_pid: int, *, exact: bool, sandboxed: bool) -> Consumption:
    """Return the consumption of the processes below a guard; an exact count takes longer."""
    # 1. CPU time.
    try:
        below = psutil.Process(guard_pid).children(recursive=True)
    except psutil.Error:
        return Consumption()
    cpu_s = 0.0
    for process in below:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            cpu_s += times.user + times.system + times.children_user + times.children_system

    # 2. Files in memory: memfds that are open, and the shared memory of the sandbox.
    pids = [process.pid for process in below]
    memfds = _memfds(pids)
    in_files = sum(memfds.values())
    shm_device = None
    if sandboxed and len(pids) > 1:
        sandbox_init = pids[1]  # pids[0] is bubblewrap's outer process
        shm_device, shm_bytes = _shared_memory(sandbox_init)
        in_files += shm_bytes

    # 3. Memory of the processes, and the part of it that they map from such files.
    memory = 0
    mapped = 0
    for pid in pids:
        memory += _proportional(pid) if exact else _proc_bytes(pid, "status", b"VmRSS:")
        if in_files and exact:
            mapped += _mapped_of(pid, memfds, shm_device)
        elif in_files:
            mapped += _proc_bytes(pid, "status", b"RssShmem:")
    not_mapped = max(0, in_files - mapped)
    return Consumption(cpu_s, memory + not_mapped, memory + in_files)


def _proc_bytes(pid: int, name: str, field: bytes) -> int:
    """Return the bytes that a field of the file /proc/PID/name tells in kB; 0 if it is missing."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/{name}").read_bytes().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * KB
    return 0


def _proportional(pid: int) -> int:
    """Return the bytes of a process; a page that n processes share counts as 1/n of a page.

    Of a process whose `smaps_rollup` the agent may not read, all pages count in full.
    """
    proportional = _proc_bytes(pid, "smaps_rollup", b"Pss:")
    return proportional or _proc_bytes(pid, "status", b"VmRSS:")


def _memfds(pids: Sequence[int]) -> FileSizes:
    """Return the memfds that the processes have open."""
    sizes: FileSizes = {}
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended, or the agent may not look at it
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):  # closed meanwhile
                    if os.readlink(entry.path).startswith(MEMFD):  # noqa: PTH115  # no path
                        status = os.stat(entry.path)  # noqa: PTH116  # of what it is open to
                        sizes[status.st_dev, status.st_ino] = status.st_blocks * BLOCK
    return sizes


def _shared_memory(pid: int) -> tuple[int | None, int]:
    """Return device and used bytes of a process's own /dev/shm; (None, 0) if it is the node's."""
    place = Path(f"/proc/{pid}/root{SHM}")
    with contextlib.suppress(OSError):
        device = place.stat().st_dev
        if device != Path(SHM).stat().st_dev:
            status = os.statvfs(place)
            return device, (status.f_blocks - status.f_bfree) * status.f_frsize
    return None, 0


def _mapped_of(pid: int, memfds: FileSizes, shm_device: int | None) -> int:
    """Return the bytes that a process maps from memfds and the sandbox's shared memory.

    Pages that n processes map count as 1/n. Of a process whose `smaps` the agent may not read, all
    shared memory counts as mapped from such files.
    """
    try:
        text = Path(f"/proc/{pid}/smaps").read_bytes()
    except OSError:
        return _proc_bytes(pid, "status", b"RssShmem:")
    mapped = 0
    is_of_file = False
    for line in text.splitlines():
        mapping = MAPPING.match(line)
        if mapping:
            device = os.makedev(int(mapping[1], 16), int(mapping[2], 16))
            inode = int(mapping[3])
            is_of_file = device == shm_device or (device, inode) in memfds
        elif is_of_file and line.startswith(b"Pss:"):
            mapped += int(line.split()[1]) * KB
    return mapped
