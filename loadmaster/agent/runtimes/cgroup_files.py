"""Files of a control group: limits, counters and use of the processes in it, in both versions.

Version 1 has a tree of groups for each controller, version 2 one for all. So the folder of a
launch's group may differ by controller: the functions for memory get that of the memory
controller, and so on.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Protocol

from loadmaster.agent.runtimes.limits import CPU_PERIOD_US, quota_us

PROCESSES = "cgroup.procs"
"""File with the pids of a group's processes; a process that writes 0 to it joins the group."""

UNLIMITED = "max"
"""Word for no limit in version 2, and in the file of the most processes in version 1 too."""


class Version(Protocol):
    """Names and forms of a group's files in one version of cgroups. Writers raise OSError."""

    number: int

    limit_files: dict[str, str]
    """File by which a controller limits a group, by the controller's name."""

    oom_file: str
    """File of the memory controller with a line `oom_kill N`: processes killed for memory."""

    def limit_memory(self, group: Path, limit_bytes: int) -> None:
        """Limit the memory of a group, swap included."""

    def limit_cores(self, group: Path, cores: float | None) -> None:
        """Limit the CPU time of a group to so many cores; None: no limit."""

    def cores_limit(self, group: Path) -> float | None:
        """Return the cores to which a group is limited; None: no limit, or no such group."""

    def cpu_s(self, group: Path) -> float | None:
        """Return the CPU seconds that a group has used; None if that is not known."""

    def throttled_s(self, group: Path) -> float:
        """Return the seconds for which CPUs were withheld from a group at its quota."""

    def memory(self, group: Path) -> int | None:
        """Return the bytes that a group uses, without file cache that can be dropped, or None."""


class Version1:
    """Files of cgroups version 1."""

    number = 1
    limit_files = {
        "memory": "memory.limit_in_bytes",
        "pids": "pids.max",
        "cpu": "cpu.cfs_quota_us",
        "cpuacct": "cpuacct.usage",
    }
    oom_file = "memory.oom_control"

    def limit_memory(self, group: Path, limit_bytes: int) -> None:
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
        with_swap = group / "memory.memsw.limit_in_bytes"
        if with_swap.exists():  # a kernel may do without an account of swap
            with_swap.write_text(str(limit_bytes))

    def limit_cores(self, group: Path, cores: float | None) -> None:
        quota = -1 if cores is None else quota_us(cores)
        (group / "cpu.cfs_period_us").write_text(str(CPU_PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(quota))

    def cores_limit(self, group: Path) -> float | None:
        quota = _number_in(group / "cpu.cfs_quota_us")
        period = _number_in(group / "cpu.cfs_period_us")
        if quota is None or quota < 0 or not period:
            return None
        return quota / period

    def cpu_s(self, group: Path) -> float | None:
        used_ns = _number_in(group / "cpuacct.usage")
        return None if used_ns is None else used_ns / 1e9

    def throttled_s(self, group: Path) -> float:
        return fields_of(group / "cpu.stat").get("throttled_time", 0) / 1e9

    def memory(self, group: Path) -> int | None:
        used = _number_in(group / "memory.usage_in_bytes")
        if used is None:
            return None
        return max(0, used - fields_of(group / "memory.stat").get("total_inactive_file", 0))


class Version2:
    """Files of cgroups version 2."""

    number = 2
    limit_files = {"memory": "memory.max", "pids": "pids.max", "cpu": "cpu.max"}
    oom_file = "memory.events"

    def limit_memory(self, group: Path, limit_bytes: int) -> None:
        (group / "memory.max").write_text(str(limit_bytes))
        swap = group / "memory.swap.max"
        if swap.exists():  # a kernel may do without an account of swap
            swap.write_text("0")

    def limit_cores(self, group: Path, cores: float | None) -> None:
        quota = UNLIMITED if cores is None else str(quota_us(cores))
        (group / "cpu.max").write_text(f"{quota} {CPU_PERIOD_US}")

    def cores_limit(self, group: Path) -> float | None:
        with contextlib.suppress(OSError, ValueError):
            quota, period = (group / "cpu.max").read_text().split()
            if quota != UNLIMITED:
                return int(quota) / int(period)
        return None

    def cpu_s(self, group: Path) -> float | None:
        used_us = fields_of(group / "cpu.stat").get("usage_usec")
        return None if used_us is None else used_us / 1e6

    def throttled_s(self, group: Path) -> float:
        return fields_of(group / "cpu.stat").get("throttled_usec", 0) / 1e6

    def memory(self, group: Path) -> int | None:
        used = _number_in(group / "memory.current")
        if used is None:
            return None
        return max(0, used - fields_of(group / "memory.stat").get("inactive_file", 0))


def limit_processes(group: Path, most: int) -> None:
    """Limit the processes and threads of a group. Raises OSError."""
    (group / "pids.max").write_text(str(most))


def pids_in(group: Path) -> list[int]:
    """Return the pids of the processes in a group; none if there is no such group.

    The kernel tells 0 for a process that this one's namespace does not show.
    """
    with contextlib.suppress(OSError, ValueError):
        pids = [int(word) for word in (group / PROCESSES).read_text().split()]
        return [pid for pid in pids if pid > 0]
    return []


def fields_of(path: Path) -> dict[str, int]:
    """Return the numbers in a file of lines `NAME NUMBER`; none if it cannot be read."""
    fields = {}
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            name, _, number = line.partition(" ")
            with contextlib.suppress(ValueError):
                fields[name] = int(number)
    return fields


def _number_in(path: Path) -> int | None:
    """Return the number that is the whole content of a file; None if there is none."""
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return None
