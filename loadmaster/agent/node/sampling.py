"""Use of devices by runs: samples, runs over their memory, and the pace of emulated devices."""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from loadmaster.agent.clock import Clock
from loadmaster.agent.containment import Containment
from loadmaster.agent.journal import Entry
from loadmaster.agent.node.machine import Devices
from loadmaster.agent.runtimes.base import RunId, Runtime, Usage
from loadmaster.agent.server.shipping import Shipper
from loadmaster.protocol import DeviceSample
from loadmaster.samples import UsageSample


class Sampler:
    """Reads the use of runs and devices, and hands the samples to the shipper."""

    def __init__(self, runtime: Runtime, devices: Devices, shipper: Shipper, clock: Clock) -> None:
        self._runtime, self._devices = runtime, devices
        self._shipper, self._clock, self._contained = shipper, clock, Containment()

    def devices(self, running: Iterable[Entry]) -> tuple[DeviceSample, ...]:
        """The devices now; those of running entries are busy."""
        return self._devices.samples({uuid for entry in running for uuid in entry.devices})

    def sample(self, running: Sequence[Entry], between: Callable[[], None]) -> list[Entry]:
        """Sample every running entry; return those to be stopped for memory.

        A run of many processes takes long: `between` is called after each run.
        """
        if not running:
            return []
        holders = Counter(uuid for entry in running for uuid in entry.devices)
        samples = {s.uuid: per_holder(s, holders[s.uuid]) for s in self.devices(running)}
        greedy = []
        for entry in running:
            own = [samples[uuid] for uuid in entry.devices if uuid in samples]
            with self._contained(entry.run, "measuring its use"):
                if self._sample(entry, own):
                    greedy.append(entry)
            between()
        return greedy

    def _sample(self, entry: Entry, devices: Sequence[DeviceSample]) -> bool:
        """Sample an entry; return True if it holds too much memory."""
        usage = self._runtime.usage(entry.run)
        if not usage:
            return False
        self._shipper.note_usage(entry.run, usage_sample(self._clock.wall_s(), usage, devices))
        return self._is_greedy(entry, usage)

    def _is_greedy(self, entry: Entry, usage: Usage) -> bool:
        """True if it holds too much memory, by an exact count if the quick one suspects it."""
        most_gb = max(usage.memory_gb, usage.most_memory_gb)
        if self._runtime.limits_memory or not 0 < entry.memory_gb < most_gb or entry.stop:
            return False
        exact = self._runtime.usage(entry.run, exact=True)
        return exact is not None and exact.memory_gb > entry.memory_gb


def per_holder(sample: DeviceSample, holders: int) -> DeviceSample:
    """Equal part of a device's use and watts for each holder: who draws what is not known."""
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


logger = logging.getLogger(__name__)


class Sharing:
    """Step times of runs that share emulated devices, by their co-tenants at the last look.

    Only the agent knows who shares a device, so it writes a changed step time to the runs.
    """

    def __init__(self, runtime: Runtime, devices: Devices) -> None:
        self._runtime, self._devices = runtime, devices
        self._kinds: dict[RunId, tuple[str, int]] = {}
        self._told: dict[RunId, tuple[str, ...]] = {}

    def shares(self, run: RunId) -> bool:
        """Return True if others were on the run's devices at the last look."""
        return bool(self._told.get(run))

    def update_paces(self, running: Sequence[Entry]) -> list[Entry]:
        """Update the pace of runs whose co-tenants have changed; return those that do not fit.

        Of two kinds that exceed a device's memory the later one goes, as on a real GPU.
        """
        gone = self._kinds.keys() - {entry.run for entry in running}
        for run in gone:
            del self._kinds[run]
            self._told.pop(run, None)
        unfit = [entry for at, entry in enumerate(running) if not self._fits(entry, running, at)]
        return [entry for entry in unfit if not entry.stop]

    def _fits(self, entry: Entry, running: Sequence[Entry], at: int) -> bool:
        """True if it fits beside earlier runs; tells the run a changed step time."""
        near = [
            (i, self._known(other)[0])
            for i, other in enumerate(running)
            if i != at and set(other.devices) & set(entry.devices)
        ]
        if self._pace_s(entry, [kind for i, kind in near if i < at]) == math.inf:
            return False
        beside = tuple(sorted(kind for _, kind in near))
        if beside != self._told.get(entry.run):
            self._set_pace(entry, beside)
        return True

    def _set_pace(self, entry: Entry, beside: tuple[str, ...]) -> None:
        step_s = self._pace_s(entry, beside)
        try:
            if step_s is not None and math.isfinite(step_s):
                self._runtime.set_pace(entry.run, step_s)
        except OSError as error:  # a full disk, say: the next look tries again
            logger.warning("%s is not told its pace: %s", entry.run.name, error)
            return
        self._told[entry.run] = beside

    def _pace_s(self, entry: Entry, beside: Sequence[str]) -> float | None:
        kind, gpus = self._known(entry)
        return self._devices.shared_pace_s(kind, gpus, beside)

    def _known(self, entry: Entry) -> tuple[str, int]:
        """Its kind, and the GPUs of its job: those of all ranks where it is one of a gang."""
        if entry.run not in self._kinds:
            spec = self._runtime.spec(entry.run)
            kind, gang_gpus = (spec.kind_name, spec.gang_gpus) if spec else ("", 0)
            self._kinds[entry.run] = kind, max(len(entry.devices), gang_gpus)
        return self._kinds[entry.run]
