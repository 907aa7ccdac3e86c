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
        self._runtime = runtime
        self._devices = devices
        self._shipper = shipper
        self._clock = clock
        self._contained = Containment()

    def devices(self, running: Iterable[Entry]) -> tuple[DeviceSample, ...]:
        """Sample the devices; those of running entries are busy."""
        return self._devices.samples({uuid for entry in running for uuid in entry.devices})

    def sample(self, running: Sequence[Entry], between: Callable[[], None]) -> list[Entry]:
        """Sample every running entry; return those that hold too much memory.

        `between` is called after each run, as one of many processes takes long to sample.
        """
        if not running:
            return []
        holders = Counter(uuid for entry in running for uuid in entry.devices)
        samples = {}
        for sample in self.devices(running):
            samples[sample.uuid] = per_holder(sample, holders[sample.uuid])
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
        quota = self._runtime.quota(entry.run)
        sample = usage_sample(self._clock.wall_s(), usage, devices, quota)
        self._shipper.note_usage(entry.run, sample)
        return self._is_greedy(entry, usage)

    def _is_greedy(self, entry: Entry, usage: Usage) -> bool:
        """Return True if a run holds more memory than its limit, by an exact count.

        Exact counts take long, so a run is counted only if its upper bound is above the limit.
        """
        most_gb = max(usage.memory_gb, usage.most_memory_gb)
        is_above = 0 < entry.memory_gb < most_gb
        if not is_above or entry.stop or self._runtime.limits_memory(entry.run):
            return False
        exact = self._runtime.usage(entry.run, exact=True)
        return exact is not None and exact.memory_gb > entry.memory_gb


def per_holder(sample: DeviceSample, holders: int) -> DeviceSample:
    """Return one holder's part of a device's use and watts.

    The parts are equal, as nobody knows what each holder draws.
    """
    if holders < 2:
        return sample
    gpu_fraction = sample.gpu_fraction
    power_w = sample.power_w
    return replace(
        sample,
        gpu_fraction=None if gpu_fraction is None else gpu_fraction / holders,
        power_w=None if power_w is None else power_w / holders,
    )


def usage_sample(
    at_s: float, usage: Usage, devices: Sequence[DeviceSample], quota: float | None = None
) -> UsageSample:
    """Return the sample of a run: use of its processes, mean use and total watts of its GPUs.

    `devices`: its parts of the GPUs' samples. `quota`: cores to which the kernel limits it.
    """
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
        throttled_cores=None if quota is None else usage.throttled_cores,
        cores_limit=quota,
    )


logger = logging.getLogger(__name__)


class Sharing:
    """Step times of runs that share emulated devices, by the kinds of their co-tenants.

    Only the agent knows who shares a device, so it writes a changed step time to the runs.
    """

    def __init__(self, runtime: Runtime, devices: Devices) -> None:
        self._runtime = runtime
        self._devices = devices
        self._kinds: dict[RunId, tuple[str, int]] = {}
        """Kind of each run, and the GPUs of its job."""
        self._co_tenants: dict[RunId, tuple[str, ...]] = {}
        """Kinds of the co-tenants by which each run was last told its step time."""

    def shares(self, run: RunId) -> bool:
        """Return True if others were on the run's devices at the last update."""
        return bool(self._co_tenants.get(run))

    def update_paces(self, running: Sequence[Entry]) -> list[Entry]:
        """Update the pace of runs whose co-tenants have changed; return those that do not fit.

        If two runs do not fit on a device, the later one does not fit, as on a real GPU.
        """
        gone = self._kinds.keys() - {entry.run for entry in running}
        for run in gone:
            del self._kinds[run]
            self._co_tenants.pop(run, None)
        unfit = []
        for position, entry in enumerate(running):
            if not self._fits(entry, running, position) and not entry.stop:
                unfit.append(entry)
        return unfit

    def _fits(self, entry: Entry, running: Sequence[Entry], position: int) -> bool:
        """Return True if a run fits beside the earlier ones; then write a changed step time to it.

        `position`: of the entry among the running ones.
        """
        # 1. Kinds of the runs on the same devices, and those of the earlier ones among them.
        co_tenants = []
        earlier = []
        for other_position, other in enumerate(running):
            if other_position == position or not set(other.devices) & set(entry.devices):
                continue
            kind, _ = self._kind_of(other)
            co_tenants.append(kind)
            if other_position < position:
                earlier.append(kind)

        # 2. The run has to fit beside the earlier ones; its pace depends on all.
        if self._pace_s(entry, earlier) == math.inf:
            return False
        kinds = tuple(sorted(co_tenants))
        if kinds != self._co_tenants.get(entry.run):
            self._set_pace(entry, kinds)
        return True

    def _set_pace(self, entry: Entry, beside: tuple[str, ...]) -> None:
        step_s = self._pace_s(entry, beside)
        try:
            if step_s is not None and math.isfinite(step_s):
                self._runtime.set_pace(entry.run, step_s)
        except OSError as error:  # such as a full disk: the next update tries again
            logger.warning("%s is not told its pace: %s", entry.run.name, error)
            return
        self._co_tenants[entry.run] = beside

    def _pace_s(self, entry: Entry, beside: Sequence[str]) -> float | None:
        """Return seconds per step beside runs of these kinds; inf: they do not fit."""
        kind, gpus = self._kind_of(entry)
        return self._devices.shared_pace_s(kind, gpus, beside)

    def _kind_of(self, entry: Entry) -> tuple[str, int]:
        """Return the kind of a run and the number of GPUs of its job, which may be a gang."""
        if entry.run not in self._kinds:
            kind = ""
            gpus = len(entry.devices)
            spec = self._runtime.spec(entry.run)
            if spec:
                kind = spec.kind_name
                gpus = max(gpus, spec.gang_gpus)
            self._kinds[entry.run] = kind, gpus
        return self._kinds[entry.run]
