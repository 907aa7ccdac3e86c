"""Implausible figures of nodes: an agent may report anything, and bills and pages use it. Pure.

A figure beyond its bounds is dropped, and counted by its name. The rest of the report is kept.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from loadmaster.protocol import MOST_DEVICES, DeviceReport, DeviceSample
from loadmaster.samples import UsageSample

PEAKS = 1.5
"""Plausible multiple of a nominal figure, as short peaks above it are real: of the peak watts of a
GPU's type, and of the cores and memory of a node."""

CLOCK_S = 60.0
"""Seconds by which a node's clock may be ahead of the server's."""

COLDEST_C = -40.0
HOTTEST_C = 150.0
"""Bounds of a GPU's temperature in degrees Celsius."""

MOST_MEMORY_GB = 4096.0
"""Largest memory of a GPU."""

MOST_DISK_GB = 1e7
"""Largest free room on a node's disk."""

LONGEST_TROUBLE = 200
"""Most characters of the trouble of a GPU."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Hardware of a node that bounds its figures; without GPUs `peak_w` is 0."""

    peak_w: float
    cores: float
    memory_gb: float


@dataclass(slots=True)
class Dropped:
    """Figures that were dropped; `figures`: how many, and the newest one, by name."""

    figures: dict[str, tuple[int, float]] = field(default_factory=dict)

    def note(self, name: str, value: float) -> None:
        """Count a dropped figure of this name."""
        count, _ = self.figures.get(name, (0, 0.0))
        self.figures[name] = (count + 1, value)

    def within(self, name: str, value: float | None, least: float, most: float) -> float | None:
        """Return a value within its bounds, else None; one out of bounds is noted."""
        if value is None or least <= value <= most:
            return value
        self.note(name, value)
        return None

    def in_time(self, at_s: float, now_s: float) -> float:
        """Return a time in Unix seconds, or `now_s` for a time in the future or below 0."""
        if 0.0 <= at_s <= now_s + CLOCK_S:
            return at_s
        self.note("time", at_s)
        return now_s


def device_samples(
    samples: Iterable[DeviceSample], peak_w: float, dropped: Dropped
) -> tuple[DeviceSample, ...]:
    """Return the samples of a heartbeat without implausible figures."""
    all_samples = tuple(samples)
    if len(all_samples) > MOST_DEVICES:
        dropped.note("devices", len(all_samples))
    plausible = []
    for sample in all_samples[:MOST_DEVICES]:
        plausible.append(_device_sample(sample, peak_w, dropped))
    return tuple(plausible)


def trouble_of(device: DeviceReport | DeviceSample) -> str:
    """Return the trouble of a device as it is stored and shown."""
    return shown_trouble(device.trouble)


def shown_trouble(text: str) -> str:
    """Return a trouble of at most LONGEST_TROUBLE characters, with "?" for unprintable ones."""
    shown = ""
    for character in text[:LONGEST_TROUBLE]:
        shown += character if character.isprintable() else "?"
    return shown


def room_gb(disk_free_gb: float | None, dropped: Dropped) -> float | None:
    """Return the free room on a node's disk; None if it is unknown or implausible."""
    return dropped.within("disk_free_gb", disk_free_gb, 0.0, MOST_DISK_GB)


def _device_sample(sample: DeviceSample, peak_w: float, dropped: Dropped) -> DeviceSample:
    """Return a sample of a GPU with None in place of implausible figures."""
    bounds = {
        "gpu_fraction": (0.0, 1.0),
        "memory_used_gb": (0.0, MOST_MEMORY_GB),
        "power_w": (0.0, PEAKS * peak_w),
        "temperature_c": (COLDEST_C, HOTTEST_C),
    }
    implausible: dict[str, Any] = {}
    for name, (least, most) in bounds.items():
        value = getattr(sample, name)
        if dropped.within(name, value, least, most) != value:
            implausible[name] = None
    return replace(sample, **implausible) if implausible else sample


def usage_samples(
    samples: Iterable[UsageSample], machine: Machine, gpus: int, now_s: float, dropped: Dropped
) -> tuple[UsageSample, ...]:
    """Return the samples of a launch on `gpus` GPUs, with None in place of implausible figures.

    A sample with implausible cores or memory is left out.
    """
    # 1. The bounds of this launch on this machine.
    most_power_w = PEAKS * machine.peak_w * gpus
    most_cores = PEAKS * max(1.0, machine.cores)
    most_gb = PEAKS * max(1.0, machine.memory_gb)

    # 2. Each sample: a figure out of its bounds is None, or ends the sample.
    plausible = []
    for reported in samples:
        throttled = dropped.within("throttled_cores", reported.throttled_cores, 0.0, most_cores)
        sample = replace(
            reported,
            at_s=dropped.in_time(reported.at_s, now_s),
            gpu_fraction=dropped.within("gpu_fraction", reported.gpu_fraction, 0.0, 1.0),
            gpu_power_w=dropped.within("power_w", reported.gpu_power_w, 0.0, most_power_w),
            throttled_cores=throttled,
            cores_limit=dropped.within("cores_limit", reported.cores_limit, 0.0, most_cores),
        )
        cores = dropped.within("cores", reported.cores, 0.0, most_cores)
        memory_gb = dropped.within("memory_gb", reported.memory_gb, 0.0, most_gb)
        if cores is not None and memory_gb is not None:
            plausible.append(sample)
    return tuple(plausible)
