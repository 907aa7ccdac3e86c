"""Figures of nodes that cannot be: an agent may say anything, and bills and pages rest on it. Pure.

A figure beyond its bounds is dropped, and counted by its name; what else a report says stays.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from loadmaster.protocol import MOST_DEVICES, DeviceReport, DeviceSample
from loadmaster.samples import UsageSample

PEAKS = 1.5
"""Multiple of its type's peak that a GPU may draw, and of its node's cores and memory that a job
may use: short peaks above the nominal figure are real."""

CLOCK_S = 60.0
"""Seconds by which a node's clock may be ahead of the server's."""

COLDEST_C, HOTTEST_C = -40.0, 150.0
MOST_MEMORY_GB = 4096.0
"""Memory of a GPU."""

MOST_DISK_GB = 1e7
LONGEST_TROUBLE = 200
"""Characters of what is wrong with a GPU."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Hardware of a node that bounds its figures; without GPUs `peak_w` is 0."""

    peak_w: float
    cores: float
    memory_gb: float


@dataclass(slots=True)
class Dropped:
    """Figures that were dropped: their number and the newest one, by name."""

    figures: dict[str, tuple[int, float]] = field(default_factory=dict)

    def note(self, name: str, value: float) -> None:
        self.figures[name] = (self.figures.get(name, (0, 0.0))[0] + 1, value)

    def within(self, name: str, value: float | None, least: float, most: float) -> float | None:
        """Return the value if it is within its bounds or unknown, else None."""
        if value is None or least <= value <= most:
            return value
        self.note(name, value)
        return None

    def in_time(self, at_s: float, now_s: float) -> float:
        """Return the time, or the server's for one in the future or before all computers."""
        if 0.0 <= at_s <= now_s + CLOCK_S:
            return at_s
        self.note("time", at_s)
        return now_s


def device_samples(
    samples: Iterable[DeviceSample], peak_w: float, dropped: Dropped
) -> tuple[DeviceSample, ...]:
    """Return the samples of a heartbeat without figures that cannot be."""
    told = tuple(samples)
    if len(told) > MOST_DEVICES:
        dropped.note("devices", len(told))
    return tuple([_device_sample(sample, peak_w, dropped) for sample in told[:MOST_DEVICES]])


def trouble_of(told: DeviceReport | DeviceSample) -> str:
    """Return what is wrong with a device, as it is kept and shown."""
    return shown_trouble(told.trouble)


def shown_trouble(text: str) -> str:
    """Return a node's words on its GPUs without control characters, cut to their longest."""
    return "".join(c if c.isprintable() else "?" for c in text[:LONGEST_TROUBLE])


def room_gb(disk_free_gb: float | None, dropped: Dropped) -> float | None:
    """Return the room on a node's disk; None if it is unknown, or more than there can be."""
    return dropped.within("disk_free_gb", disk_free_gb, 0.0, MOST_DISK_GB)


def _device_sample(sample: DeviceSample, peak_w: float, dropped: Dropped) -> DeviceSample:
    bounds = {
        "gpu_fraction": (0.0, 1.0),
        "memory_used_gb": (0.0, MOST_MEMORY_GB),
        "power_w": (0.0, PEAKS * peak_w),
        "temperature_c": (COLDEST_C, HOTTEST_C),
    }
    wrong: dict[str, Any] = {
        name: None
        for name, (least, most) in bounds.items()
        if dropped.within(name, value := getattr(sample, name), least, most) != value
    }
    return replace(sample, **wrong) if wrong else sample


def usage_samples(
    samples: Iterable[UsageSample], machine: Machine, gpus: int, now_s: float, dropped: Dropped
) -> tuple[UsageSample, ...]:
    """Return the samples of a launch on so many GPUs without figures that cannot be.

    One whose cores or memory cannot be is left out.
    """
    found = []
    for told in samples:
        sample = replace(
            told,
            at_s=dropped.in_time(told.at_s, now_s),
            gpu_fraction=dropped.within("gpu_fraction", told.gpu_fraction, 0.0, 1.0),
            gpu_power_w=dropped.within(
                "power_w", told.gpu_power_w, 0.0, PEAKS * machine.peak_w * gpus
            ),
        )
        cores = dropped.within("cores", told.cores, 0.0, PEAKS * max(1.0, machine.cores))
        most_gb = PEAKS * max(1.0, machine.memory_gb)
        memory_gb = dropped.within("memory_gb", told.memory_gb, 0.0, most_gb)
        if cores is not None and memory_gb is not None:
            found.append(sample)
    return tuple(found)
