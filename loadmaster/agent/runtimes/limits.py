"""Limits of a job's memory and cores that the kernel keeps, the same in all runtimes. Pure."""

import math

from loadmaster.agent.runtimes.base import GB, QuotaError
from loadmaster.protocol import LaunchSpec

CPU_PERIOD_US = 100_000
"""Microseconds of the period for which a CPU quota holds."""

LEAST_QUOTA_US = 1000
"""Least microseconds of a CPU quota that the kernel takes."""

OWN_MEMORY_GB = 0.05
"""Memory of the guard in a container, or of a sandbox, on top of the job's."""

LEAST_MEMORY_GB = 0.016
"""Least memory of a job that a container can be limited to."""


def memory_bytes(memory_gb: float) -> int | None:
    """Return the bytes that a job may use with its guard or sandbox; None: no limit."""
    if memory_gb <= 0:
        return None
    return round((max(memory_gb, LEAST_MEMORY_GB) + OWN_MEMORY_GB) * GB)


def cores_of(spec: LaunchSpec) -> float | None:
    """Return the cores that a launch may use: its quota, else what it asked for; None: no limit."""
    cores = spec.cores if spec.cpu_quota is None else spec.cpu_quota
    return cores if cores > 0 else None


def check_quota(cores: float) -> None:
    """Raise QuotaError for cores to which no run can be limited."""
    if not (math.isfinite(cores) and cores > 0):
        raise QuotaError(f"cpu_quota: name a number of cores above 0, not {cores!r}")


def quota_us(cores: float) -> int:
    """Return the CPU time of all processes together in each CPU_PERIOD_US, in microseconds."""
    return max(LEAST_QUOTA_US, round(cores * CPU_PERIOD_US))
