"""Real GPUs through NVML: the devices that the node offers, their health, use and watts."""

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
"""Seconds between two readings of a GPU's health counters: each takes some milliseconds."""

LIST_AGAIN_S = 10.0
"""Seconds between two listings of the GPUs: one may have gone from the bus, or be back."""

WARNING_S = 60.0
"""Seconds for which a warning stays: clocks slow down and recover within seconds."""

CAPABILITIES = Path("/proc/driver/nvidia/capabilities")
"""Folder in which the driver names the device files that open MIG instances."""

logger = logging.getLogger(__name__)


class MixedTypesError(Exception):
    """The machine has GPUs of several types, and a node has GPUs of one; the text names them."""


class NvidiaDevices(Devices):
    """GPUs of one type. A broken GPU is offered as unhealthy, with NVML's words.

    On a machine with several types only GPUs of `gpu_type` are offered; without it several types
    raise MixedTypesError. GPUs that were found are kept in the file `known_path`.
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
        self._slots = slots
        self._mps = mps
        self._gpu_type = gpu_type
        self._known_path = known_path
        self._known = gpu_list.read_known(known_path)
        self._clock_s = clock_s
        self._is_initialised = False

        # The last listing and its time, and the reports with the health of the last samples.
        self._listed = GpuList()
        self._listed_s = 0.0
        self._reports: tuple[DeviceReport, ...] = ()

        # Health by the uuid of the whole GPU, with the time at which it was read.
        self._xids = XidErrors(self.nvml)
        self._health: dict[str, tuple[float, Health]] = {}
        self._warned_s: dict[str, float] = {}
        self._logged: dict[str, str] = {}

        self._list_gpus()
        self._choose_type()
        self.samples(())  # so that the first reports have their health

    def _choose_type(self) -> None:
        """Keep to the type of the GPUs found at the start. Raises MixedTypesError."""
        types = gpu_list.types_in(self._listed.reports)
        if len(types) > 1:
            counts = ", ".join(f"{count} x {name}" for name, count in types.items())
            raise MixedTypesError(counts)
        if self._gpu_type and not types and not self._listed.trouble:
            raise MixedTypesError(f"none of type {self._gpu_type}")
        if types:
            self._gpu_type = next(iter(types))  # the only one

    def _list_gpus(self) -> None:
        """List the GPUs. NVML is initialised first if it is not yet, or if it failed."""
        # 1. Ask NVML; if it fails, the GPUs of the last time are all unhealthy.
        self._listed_s = self._clock_s()
        try:
            if not self._is_initialised:
                self.nvml.call("nvmlInit")
                self._is_initialised = True
            listed, known = gpu_list.list_gpus(self.nvml, self._known, memory_gb())
        except NvmlError as failure:
            self._is_initialised = False
            listed = gpu_list.unreachable(self._known, self._trouble_of(failure))
        else:
            if known != self._known:
                gpu_list.write_known(self._known_path, known)
            self._known = known

        # 2. Offer those of the node's type.
        reports = gpu_list.of_one_type(listed.reports, self._gpu_type)
        offered = tuple(replace(report, slots=self._slots) for report in reports)
        self._listed = replace(listed, reports=offered)
        self._log_change("NVML", self._listed.trouble)
        self._watch_xids()

    def _trouble_of(self, failure: NvmlError) -> str:
        """Return NVML's words; "" on a machine that never had GPUs, where nothing is wrong."""
        if failure.is_no_driver and not self._known.by_index and not has_nvidia_hardware():
            return ""
        return str(failure)

    def _watch_xids(self) -> None:
        """Ask for the Xid errors of all healthy GPUs; an instance's are those of its GPU."""
        handles = {}
        for report in self._listed.reports:
            uuid = report.parent_uuid or report.uuid
            if report.healthy and uuid not in handles:
                try:
                    handles[uuid] = self.nvml.call("nvmlDeviceGetHandleByUUID", uuid)
                except NvmlError:
                    continue  # its next sample reports the failure
        self._xids.watch(handles)

    @property
    def trouble(self) -> str:
        return self._listed.trouble

    def reports(self) -> tuple[DeviceReport, ...]:
        return self._reports

    def samples(self, busy: Collection[str]) -> tuple[DeviceSample, ...]:
        # 1. See which GPUs are there now, and read the driver's new Xid errors.
        if self._clock_s() >= self._listed_s + LIST_AGAIN_S:
            self._list_gpus()
        self._xids.collect()

        # 2. Measure each. Those that could not be listed stay unhealthy until they are.
        samples = []
        reports = []
        for device in self._listed.reports:
            sample = self._sample(device)
            samples.append(sample)
            reports.append(replace(device, healthy=sample.healthy, trouble=sample.trouble))
            self._log_change(device.uuid, sample.trouble)

        # 3. Offer them with their newest health.
        self._reports = tuple(reports)
        return tuple(samples)

    def _sample(self, device: DeviceReport) -> DeviceSample:
        """Measure a GPU. A failure gives an unhealthy sample, so that the others are measured."""
        unhealthy = DeviceSample(device.uuid, healthy=False, power_source="measured")
        if not device.healthy:
            return replace(unhealthy, trouble=device.trouble)
        try:
            handle = self.nvml.call("nvmlDeviceGetHandleByUUID", device.uuid)
            health = self._health_of(device, handle)
            sample = DeviceSample(
                device.uuid,
                healthy=not health.fault,
                gpu_fraction=self._gpu_fraction(handle),
                memory_used_gb=self._memory_used_gb(handle),
                power_w=self._power_w(handle),
                power_source="measured",
                temperature_c=self._temperature_c(handle),
                trouble=health.fault or health.warning,
            )
        except NvmlError as failure:
            return replace(unhealthy, trouble=str(failure))
        self._log_missing_readings(sample)
        return sample

    def _memory_used_gb(self, handle: Any) -> float | None:
        """Return the memory in use in GB, None if the GPU does not tell it.

        Raises NvmlError for any other failure, which is a fault of the GPU.
        """
        try:
            return float(self.nvml.call("nvmlDeviceGetMemoryInfo", handle).used) / GB
        except NvmlError as failure:
            if failure.is_unavailable:
                return None
            raise

    def _gpu_fraction(self, handle: Any) -> float | None:
        """Return the fraction of time in which a kernel ran, None if the GPU does not tell it."""
        rates = self.nvml.read("nvmlDeviceGetUtilizationRates", handle)
        percent = getattr(rates, "gpu", None)
        if percent is None:
            return None
        return float(percent) / 100.0

    def _power_w(self, handle: Any) -> float | None:
        milliwatts = self.nvml.number("nvmlDeviceGetPowerUsage", handle)
        if milliwatts is None:
            return None
        return milliwatts / 1000.0

    def _temperature_c(self, handle: Any) -> float | None:
        sensor = getattr(self.nvml.library, "NVML_TEMPERATURE_GPU", 0)
        return self.nvml.number("nvmlDeviceGetTemperature", handle, sensor)

    def _health_of(self, device: DeviceReport, handle: Any) -> Health:
        """Return a GPU's health, of counters at most HEALTH_S old. A MIG instance has its GPU's."""
        now_s = self._clock_s()
        uuid = device.parent_uuid or device.uuid
        read_s, health = self._health.get(uuid, (-math.inf, Health()))
        if now_s >= read_s + HEALTH_S:
            whole_gpu = handle
            if device.parent_uuid:
                whole_gpu = self.nvml.call("nvmlDeviceGetHandleByUUID", device.parent_uuid)
            health = self._with_lasting_warning(uuid, health, health_of(self.nvml, whole_gpu))
            self._health[uuid] = now_s, health

        # An Xid error is newer than the counters.
        xid_fault = self._xids.fault(uuid)
        if xid_fault:
            return replace(health, fault=xid_fault)
        return health

    def _with_lasting_warning(self, uuid: str, before: Health, now: Health) -> Health:
        """Return the new health. An earlier warning stays for WARNING_S after it was last seen."""
        now_s = self._clock_s()
        if now.warning:
            self._warned_s[uuid] = now_s
        elif before.warning and now_s < self._warned_s.get(uuid, now_s) + WARNING_S:
            return replace(now, warning=before.warning)
        return now

    def _log_change(self, name: str, trouble: str) -> None:
        """Log the trouble of a GPU (by uuid) or of "NVML", if it is another one than before."""
        before = self._logged.get(name, "")
        if trouble == before:
            return
        self._logged[name] = trouble
        title = name if name == "NVML" else f"GPU {name}"
        if trouble:
            logger.warning("%s: %s", title, trouble)
        else:
            logger.info("%s: is healthy again", title)

    def _log_missing_readings(self, sample: DeviceSample) -> None:
        """Log once which readings a GPU that works does not give."""
        values = {"memory": sample.memory_used_gb, "watts": sample.power_w}
        missing = ", ".join(name for name, value in values.items() if value is None)
        name = f"{sample.uuid}: readings"
        if missing and missing != self._logged.get(name):
            self._logged[name] = missing
            logger.info("GPU %s: NVML gives no reading of its %s", sample.uuid, missing)

    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        variables = {"CUDA_VISIBLE_DEVICES": ",".join(spec.devices)}
        if self._mps:
            variables |= self._mps.environment(spec.share)
        return variables

    def files(self, spec: LaunchSpec) -> tuple[str, ...]:
        """Device files of a launch, without those of a GPU that is lost from the bus."""
        files: list[str] = []
        for uuid in spec.devices:
            try:
                files += self._files_of(uuid)
            except NvmlError:
                continue
        return tuple(dict.fromkeys(files))  # instances of one GPU share its file

    def _files_of(self, uuid: str) -> list[str]:
        """Return a GPU's file; for a MIG instance its GPU's, and those that open the instance."""
        nvml = self.nvml
        handle = nvml.call("nvmlDeviceGetHandleByUUID", uuid)
        parents = {report.uuid: report.parent_uuid for report in self._listed.reports}
        parent = parents.get(uuid)
        if not parent:
            minor = nvml.call("nvmlDeviceGetMinorNumber", handle)
            return [f"/dev/nvidia{minor}"]

        gpu = nvml.call("nvmlDeviceGetHandleByUUID", parent)
        minor = nvml.call("nvmlDeviceGetMinorNumber", gpu)
        gpu_instance = nvml.call("nvmlDeviceGetGpuInstanceId", handle)
        compute_instance = nvml.call("nvmlDeviceGetComputeInstanceId", handle)
        folder = CAPABILITIES / f"gpu{minor}" / "mig" / f"gi{gpu_instance}"
        files = [f"/dev/nvidia{minor}"]
        for access in (folder / "access", folder / f"ci{compute_instance}" / "access"):
            file = _capability_file(access)
            if file is not None:
                files.append(file)
        return files


def _capability_file(access: Path) -> str | None:
    """Return the file below /dev that a capability of the driver names; None if it names none."""
    try:
        lines = access.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, number = line.partition(":")
        if name == "DeviceFileMinor" and number.strip().isdigit():
            return f"/dev/nvidia-caps/nvidia-cap{number.strip()}"
    return None


def nvidia_devices(
    slots: int = 1, mps: Mps | None = None, *, gpu_type: str = "", known_path: Path | None = None
) -> NvidiaDevices:
    """Return the machine's NVIDIA GPUs, shared by `slots` jobs each, by MPS if `mps` is given."""
    import pynvml

    return NvidiaDevices(pynvml, slots, mps, gpu_type=gpu_type, known_path=known_path)
