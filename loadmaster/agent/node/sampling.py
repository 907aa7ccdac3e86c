"""Measures what runs use, and finds those that use more memory than they asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from loadmaster.agent.clock import Clock
from loadmaster.agent.journal import Entry
from loadmaster.agent.node.machine import Devices
from loadmaster.agent.runtimes.base import Runtime, Usage
from loadmaster.agent.server.shipping import Shipper
from loadmaster.protocol import DeviceSample, UsageSample


class Sampler:
    """Reads the use of runs and devices, and hands the samples to the shipper."""

    def __init__(self, runtime: Runtime, devices: Devices, shipper: Shipper, clock: Clock) -> None:
        self._runtime = runtime
        self._devices = devices
        self._shipper = shipper
        self._clock = clock

    def devices(self, running: Iterable[Entry]) -> tuple[DeviceSample, ...]:
        """The devices now; those of running entries are busy."""
        return self._devices.samples({uuid for entry in running for uuid in entry.devices})

    def sample(self, running: Sequence[Entry]) -> list[Entry]:
        """Sample every running entry; return those to be stopped for memory."""
        if not running:
            return []
        holders = Counter(uuid for entry in running for uuid in entry.devices)
        samples = {
            sample.uuid: part_of(sample, holders[sample.uuid]) for sample in self.devices(running)
        }
        greedy = []
        for entry in running:
            usage = self._runtime.usage(entry.run)
            if usage:
                own = [samples[uuid] for uuid in entry.devices if uuid in samples]
                self._shipper.note_usage(entry.run, usage_sample(self._clock.wall_s(), usage, own))
                if self._is_greedy(entry, usage):
                    greedy.append(entry)
        return greedy

    def _is_greedy(self, entry: Entry, usage: Usage) -> bool:
        """True if it holds too much memory, by an exact count if the quick one suspects it."""
        if self._runtime.limits_memory or not 0 < entry.memory_gb < usage.memory_gb or entry.stop:
            return False
        exact = self._runtime.usage(entry.run, exact=True)
        return exact is not None and exact.memory_gb > entry.memory_gb


def part_of(sample: DeviceSample, holders: int) -> DeviceSample:
    """The part of a device's use and watts that is each of its `holders`': equal ones, for nobody
    can measure who draws what.

    So the parts of all who run on it add up to the device. Memory that is sampled is that of a
    run's own processes on the machine, and never shared.
    """
    if holders < 2:
        return sample
    fraction, watts = sample.gpu_fraction, sample.power_w
    return replace(
        sample,
        gpu_fraction=None if fraction is None else fraction / holders,
        power_w=None if watts is None else watts / holders,
    )


def usage_sample(at_s: float, usage: Usage, devices: Sequence[DeviceSample]) -> UsageSample:
    """Sample of a run: processes, mean use and total watts of its GPUs (its part)."""
    fractions = [device.gpu_fraction for device in devices if device.gpu_fraction is not None]
    watts = [device.power_w for device in devices if device.power_w is not None]
    measured = bool(watts) and all(device.power_source == "measured" for device in devices)
    return UsageSample(
        at_s,
        usage.cores,
        usage.memory_gb,
        gpu_fraction=sum(fractions) / len(fractions) if fractions else None,
        gpu_power_w=sum(watts) if watts else None,
        power_source="measured" if measured else "modelled",
    )
