"""Real GPUs through NVML: what the node offers, their health, use and watts."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadmaster.agent.node import gpu_list
from loadmaster.agent.node.gpu_health import Health, XidErrors, health_of
from loadmaster.agent.node.gpu_list import GB, GpuList
from loadmaster.agent.node.machine import Devices, memory_gb
from loadmaster.agent.node.mps import Mps
from loadmaster.agent.node.nvml import Nvml, NvmlError, has_nvidia_hardware
from loadmaster.protocol import DeviceReport, DeviceSample, LaunchSpec

HEALTH_S = 5.0
"""Pause between two looks at the counters of a GPU's health: each takes some milliseconds."""

LIST_AGAIN_S = 10.0
"""Pause between two listings: a GPU may have gone from the bus, or be back."""

WARNING_S = 60.0
"""Time for which a warning stays: slowing down comes and goes within seconds."""

CAPABILITIES = Path("/proc/driver/nvidia/capabilities")

logger = logging.getLogger(__name__)


class MixedTypesError(Exception):
    """The machine has GPUs of several types, and a node has GPUs of one; the text names them."""


class NvidiaDevices(Devices):
    """GPUs of one type; one that is broken is offered as unhealthy, with NVML's words.

    `gpu_type` leaves out the others of a machine with several types. `known_path` keeps the GPUs
    that were found. Raises MixedTypesError.
    """

    def __init__(
        self,
        library: Any,
        slots: int = 1,
        mps: Mps | None = None,
        *,
        gpu_type: str = "",
        known_path: Path | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.nvml = Nvml(library)
        self._slots, self._mps = slots, mps
        self._gpu_type = gpu_type
        self._known_path = known_path
        self._known = gpu_list.read_known(known_path)
        self._clock_s = clock_s
        self._is_open = False
        self._listed = GpuList()
        self._listed_s = 0.0
        self._reports: tuple[DeviceReport, ...] = ()
        self._xids = XidErrors(self.nvml)
        self._health: dict[str, tuple[float, Health]] = {}
        self._warned_s: dict[str, float] = {}
        self._logged: dict[str, str] = {}
        self._look()
        self._choose_type()
        self.samples(())  # the first reports tell the health already

    def _choose_type(self) -> None:
        """Keep to the type of the GPUs found at the start. Raises MixedTypesError."""
        types = gpu_list.types_in(self._listed.reports)
        if len(types) > 1:
            found = ", ".join(f"{count} x {name}" for name, count in types.items())
            raise MixedTypesError(found)
        if self._gpu_type and not types and not self._listed.trouble:
            raise MixedTypesError(f"none of type {self._gpu_type}")
        self._gpu_type = self._gpu_type or "".join(types)

    def _look(self) -> None:
        """List the GPUs; NVML is begun first where it has not been yet, or has failed."""
        self._listed_s = self._clock_s()
        try:
            if not self._is_open:
                self.nvml.call("nvmlInit")
                self._is_open = True
            found, known = gpu_list.list_gpus(self.nvml, self._known, memory_gb())
        except NvmlError as failure:
            self._is_open = False
            found = gpu_list.unreachable(self._known, self._trouble_of(failure))
        else:
            if known != self._known:
                gpu_list.write_known(self._known_path, known)
            self._known = known
        reports = gpu_list.of_one_type(found.reports, self._gpu_type)
        offered = tuple(replace(report, slots=self._slots) for report in reports)
        self._listed = replace(found, reports=offered)
        self._say("NVML", self._listed.trouble)
        self._watch_xids()

    def _trouble_of(self, failure: NvmlError) -> str:
        """NVML's words, or none on a machine that never had GPUs."""
        if failure.is_no_driver and not self._known.by_index and not has_nvidia_hardware():
            return ""
        return str(failure)

    def _watch_xids(self) -> None:
        handles = {}
        for report in self._listed.reports:
            uuid = report.parent_uuid or report.uuid
            if report.healthy and uuid not in handles:
                try:
                    handles[uuid] = self.nvml.call("nvmlDeviceGetHandleByUUID", uuid)
                except NvmlError:
                    continue  # its next sample says so
        self._xids.watch(handles)

    @property
    def trouble(self) -> str:
        return self._listed.trouble

    def reports(self) -> tuple[DeviceReport, ...]:
        return self._reports

    def samples(self, busy: Collection[str]) -> tuple[DeviceSample, ...]:
        # 1. See which GPUs are there now, and what the driver says of them.
        if self._clock_s() >= self._listed_s + LIST_AGAIN_S:
            self._look()
        self._xids.collect()

        # 2. Measure each. Those that could not be listed stay ill until they are.
        samples = []
        reports = []
        for device in self._listed.reports:
            sample = self._sample(device)
            samples.append(sample)
            reports.append(replace(device, healthy=sample.healthy, trouble=sample.trouble))
            self._say(device.uuid, sample.trouble)

        # 3. Offer them with their newest health.
        self._reports = tuple(reports)
        return tuple(samples)

    def _sample(self, device: DeviceReport) -> DeviceSample:
        """Measure a GPU; whatever fails, the others are measured."""
        nothing = DeviceSample(device.uuid, healthy=False, power_source="measured")
        if not device.healthy:
            return replace(nothing, trouble=device.trouble)
        nvml = self.nvml
        try:
            handle = nvml.call("nvmlDeviceGetHandleByUUID", device.uuid)
            health = self._health_of(device, handle)
            sample = DeviceSample(
                device.uuid,
                healthy=not health.fault,
                gpu_fraction=self._fraction(handle),
                memory_used_gb=self._memory_used_gb(handle),
                power_w=_scaled(nvml.number("nvmlDeviceGetPowerUsage", handle), 1000.0),
                power_source="measured",
                temperature_c=self._temperature_c(handle),
                trouble=health.fault or health.warning,
            )
        except NvmlError as failure:
            return replace(nothing, trouble=str(failure))
        self._say_missing(sample)
        return sample

    def _memory_used_gb(self, handle: Any) -> float | None:
        """Memory in use; None if the GPU does not tell. Any other failure is a fault of the GPU."""
        try:
            return float(self.nvml.call("nvmlDeviceGetMemoryInfo", handle).used) / GB
        except NvmlError as failure:
            if failure.is_unavailable:
                return None
            raise

    def _fraction(self, handle: Any) -> float | None:
        rates = self.nvml.read("nvmlDeviceGetUtilizationRates", handle)
        percent = getattr(rates, "gpu", None)
        return None if percent is None else float(percent) / 100.0

    def _temperature_c(self, handle: Any) -> float | None:
        sensor = getattr(self.nvml.library, "NVML_TEMPERATURE_GPU", 0)
        return self.nvml.number("nvmlDeviceGetTemperature", handle, sensor)

    def _health_of(self, device: DeviceReport, handle: Any) -> Health:
        """Health of a GPU, its counters at most HEALTH_S old. An instance has that of its GPU."""
        now_s = self._clock_s()
        uuid = device.parent_uuid or device.uuid
        looked_s, health = self._health.get(uuid, (-math.inf, Health()))
        if now_s >= looked_s + HEALTH_S:
            whole = handle
            if device.parent_uuid:
                whole = self.nvml.call("nvmlDeviceGetHandleByUUID", device.parent_uuid)
            health = self._with_lasting_warning(uuid, health, health_of(self.nvml, whole))
            self._health[uuid] = now_s, health
        return replace(health, fault=self._xids.fault(uuid) or health.fault)

    def _with_lasting_warning(self, uuid: str, before: Health, now: Health) -> Health:
        """The new health, with the warning before for WARNING_S after it was last seen."""
        now_s = self._clock_s()
        if now.warning:
            self._warned_s[uuid] = now_s
        elif before.warning and now_s < self._warned_s.get(uuid, now_s) + WARNING_S:
            return replace(now, warning=before.warning)
        return now

    def _say(self, name: str, trouble: str) -> None:
        """Log a change of what is wrong, once."""
        before = self._logged.get(name, "")
        if trouble == before:
            return
        self._logged[name] = trouble
        title = name if name == "NVML" else f"GPU {name}"
        if trouble:
            logger.warning("%s: %s", title, trouble)
        else:
            logger.info("%s: is well again", title)

    def _say_missing(self, sample: DeviceSample) -> None:
        """Log once which readings a GPU that works does not give."""
        values = {"memory": sample.memory_used_gb, "watts": sample.power_w}
        missing = ", ".join(name for name, value in values.items() if value is None)
        name = f"{sample.uuid}: readings"
        if missing and missing != self._logged.get(name):
            self._logged[name] = missing
            logger.info("GPU %s: NVML gives no reading of its %s", sample.uuid, missing)

    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        shared = self._mps.environment(spec.share) if self._mps else {}
        return {"CUDA_VISIBLE_DEVICES": ",".join(spec.devices), **shared}

    def files(self, spec: LaunchSpec) -> tuple[str, ...]:
        """As the driver numbers them; without one that is lost from the bus."""
        found: list[str] = []
        for uuid in spec.devices:
            try:
                found += self._files_of(uuid)
            except NvmlError:
                continue
        return tuple(dict.fromkeys(found))

    def _files_of(self, uuid: str) -> list[str]:
        """File of a GPU; of a MIG instance that of its GPU, and those that open the instance."""
        nvml = self.nvml
        gpu = handle = nvml.call("nvmlDeviceGetHandleByUUID", uuid)
        parents = {report.uuid: report.parent_uuid for report in self._listed.reports}
        if parent := parents.get(uuid):
            gpu = nvml.call("nvmlDeviceGetHandleByUUID", parent)
        minor = nvml.call("nvmlDeviceGetMinorNumber", gpu)
        files = [f"/dev/nvidia{minor}"]
        if parent:
            instance = nvml.call("nvmlDeviceGetGpuInstanceId", handle)
            part = nvml.call("nvmlDeviceGetComputeInstanceId", handle)
            folder = CAPABILITIES / f"gpu{minor}" / "mig" / f"gi{instance}"
            files += _capability(folder / "access") + _capability(folder / f"ci{part}" / "access")
        return files


def _capability(access: Path) -> list[str]:
    """File below /dev that a capability of the driver names."""
    try:
        lines = access.read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        name, _, number = line.partition(":")
        if name == "DeviceFileMinor" and number.strip().isdigit():
            return [f"/dev/nvidia-caps/nvidia-cap{number.strip()}"]
    return []


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def nvidia_devices(
    slots: int = 1, mps: Mps | None = None, *, gpu_type: str = "", known_path: Path | None = None
) -> NvidiaDevices:
    """NVIDIA GPUs with their slots (by `mps` if given); none on a machine without any."""
    import pynvml

    return NvidiaDevices(pynvml, slots, mps, gpu_type=gpu_type, known_path=known_path)
