"""GPUs of a machine: those that NVML lists, MIG instances, and those that it cannot reach.

GPUs that were found are kept in the agent's state folder. A GPU that is lost when the agent starts
does not tell its uuid, so it is known from the last time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loadmaster.agent.node.nvml import Nvml, NvmlError, printable
from loadmaster.files import write_whole
from loadmaster.protocol import UNIDENTIFIED, DeviceReport
from loadmaster.wire import Many, WireError, dumps, loads

GB = 1e9
MB = 1e6
MIG_ON = 1
"""NVML_DEVICE_MIG_ENABLE."""

LONGEST_PROFILE = 50

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GpuList:
    """Offered GPUs. `trouble`, in NVML's words: why GPUs may be missing from them; "": none are."""

    reports: tuple[DeviceReport, ...] = ()
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class KnownGpus:
    """GPUs that NVML listed when it last could, by their index as text."""

    by_index: dict[str, Many[DeviceReport]] = field(default_factory=dict)


def read_known(path: Path | None) -> KnownGpus:
    """Read the GPUs that were found before; none if there is no file that can be read."""
    if path is None or not path.exists():
        return KnownGpus()
    try:
        return loads(KnownGpus, path.read_bytes())
    except (OSError, WireError) as error:
        logger.warning("%s cannot be read, and is written anew: %s", path, error)
        return KnownGpus()


def write_known(path: Path | None, known: KnownGpus) -> None:
    """Keep the GPUs that were found; without room on the disk they are kept the next time."""
    if path is None:
        return
    try:
        write_whole(path, dumps(known))
    except OSError as error:
        logger.warning("%s cannot be written: %s", path, error)


def list_gpus(nvml: Nvml, known: KnownGpus, memory_gb: float) -> tuple[GpuList, KnownGpus]:
    """Return the GPUs that are offered, and those that are known from now on.

    A GPU that fails is in the list as unhealthy: under its uuid if it was known before, else under
    one that names its index. `memory_gb`: the machine's memory, which is also that of GPUs with
    unified memory. Raises NvmlError if NVML itself fails.
    """
    count = int(nvml.call("nvmlDeviceGetCount"))

    # 1. Ask each GPU by itself: one that fails leaves the others as they are.
    answers: dict[str, tuple[DeviceReport, ...]] = {}
    failures: dict[str, str] = {}
    troubles: list[str] = []
    for number in range(count):
        index = str(number)
        try:
            answers[index] = _gpu_at(nvml, number, memory_gb)
        except NvmlError as failure:
            failures[index] = str(failure)
            continue
        if not answers[index]:
            troubles.append(f"GPU {index}: MIG is on, and has no instances")

    # 2. Those that failed take uuid and type from the last time, else from index and neighbours.
    present_uuids = set()
    types = []
    for reports in answers.values():
        for report in reports:
            present_uuids.add(report.uuid)
            types.append(report.gpu_type)
    listed = dict(answers)
    for index, words in failures.items():
        before = []
        for report in known.by_index.get(index, ()):
            # One of a type that the machine no longer has was replaced.
            is_replaced = bool(types) and report.gpu_type not in types
            if report.uuid not in present_uuids and not is_replaced:
                before.append(report)
        listed[index] = _failed(index, words, before, types)
        if not listed[index]:
            troubles.append(f"GPU {index}: {words}")

    # 3. Keep the GPUs that answered, and the known ones at the indices that failed.
    kept = {index: reports for index, reports in known.by_index.items() if index in failures}
    for index, reports in answers.items():
        kept[index] = tuple(replace(report, healthy=True, trouble="") for report in reports)
    offered: list[DeviceReport] = []
    for index in sorted(listed, key=int):
        offered += listed[index]
    return GpuList(tuple(offered), printable("; ".join(troubles))), KnownGpus(kept)


def unreachable(known: KnownGpus, words: str) -> GpuList:
    """Return the GPUs of the last time, all unhealthy: NVML itself fails with these words."""
    reports = []
    for index in sorted(known.by_index, key=int):
        for report in known.by_index[index]:
            reports.append(replace(report, healthy=False, trouble=words))
    return GpuList(tuple(reports), words)


def _failed(
    index: str, words: str, before: Sequence[DeviceReport], types: Sequence[str]
) -> tuple[DeviceReport, ...]:
    """Return unhealthy reports of a GPU that fails with these words.

    `before`: its reports of the last time. Without them it gets the type of the machine's other
    GPUs; without those nothing can be reported, as a report needs a type.
    """
    if before:
        return tuple(replace(report, healthy=False, trouble=words) for report in before)
    if not types:
        return ()
    report = DeviceReport(
        f"{UNIDENTIFIED}{index}", types[0], memory_gb=0.0, healthy=False, trouble=words
    )
    return (report,)


def _gpu_at(nvml: Nvml, index: int, memory_gb: float) -> tuple[DeviceReport, ...]:
    """Return the GPU of an index; if MIG is on, its instances instead. Raises NvmlError."""
    handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
    uuid = nvml.text("nvmlDeviceGetUUID", handle)
    gpu_type = gpu_type_of(nvml.text("nvmlDeviceGetName", handle))
    if not _is_divided(nvml, handle):
        gb, trouble = memory_of(nvml, handle, memory_gb)
        return (DeviceReport(uuid, gpu_type, gb, healthy=not trouble, trouble=trouble),)
    return _instances(nvml, handle, DeviceReport(uuid, gpu_type, 0.0))


def memory_of(nvml: Nvml, handle: Any, unified_gb: float) -> tuple[float, str]:
    """Return the memory of a GPU in GB, and the trouble if it is broken.

    A GPU that does not tell its memory shares the machine's, `unified_gb`.
    """
    try:
        return float(nvml.call("nvmlDeviceGetMemoryInfo", handle).total) / GB, ""
    except NvmlError as failure:
        if failure.is_unavailable:
            return unified_gb, ""
        return 0.0, f"its memory cannot be read: {failure}"


def _is_divided(nvml: Nvml, handle: Any) -> bool:
    """Return True if MIG is on: then programs cannot use the GPU as a whole."""
    mode = nvml.read("nvmlDeviceGetMigMode", handle)
    return isinstance(mode, (tuple, list)) and bool(mode) and mode[0] == MIG_ON


def _instances(nvml: Nvml, gpu: Any, parent: DeviceReport) -> tuple[DeviceReport, ...]:
    """Return the MIG instances of a GPU; their type is the GPU's with the instance's profile."""
    instances = []
    most = int(nvml.number("nvmlDeviceGetMaxMigDeviceCount", gpu) or 0)
    for number in range(most):
        try:
            handle = nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", gpu, number)
            uuid = nvml.text("nvmlDeviceGetUUID", handle)
        except NvmlError as failure:
            if failure.is_broken:
                raise
            continue  # there is no instance of this number
        gb, trouble = memory_of(nvml, handle, 0.0)
        profile = _profile(nvml, handle, gb)
        instances.append(
            DeviceReport(
                uuid,
                f"{parent.gpu_type} MIG {profile}",
                gb,
                parent_uuid=parent.uuid,
                mig_profile=profile,
                healthy=not trouble,
                trouble=trouble,
            )
        )
    return tuple(instances)


def _profile(nvml: Nvml, handle: Any, memory_gb: float) -> str:
    """Return an instance's profile, such as 1g.5gb, by its name, or else by slices and memory."""
    name = nvml.read("nvmlDeviceGetName", handle)
    text = name.decode(errors="replace") if isinstance(name, bytes) else str(name or "")
    _, _, profile = text.partition("MIG ")  # of "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    if profile.strip():
        return profile.strip()[:LONGEST_PROFILE]
    attributes = nvml.read("nvmlDeviceGetAttributes", handle)
    slices = getattr(attributes, "gpuInstanceSliceCount", 0)
    size_mb = getattr(attributes, "memorySizeMB", memory_gb * GB / MB)
    return f"{slices}g.{round(size_mb / 1024)}gb"


def gpu_type_of(name: str) -> str:
    """Return the GPU type of a product name: the name without maker and product line."""
    words = name.replace("NVIDIA", "").replace("GeForce", "").replace("Tesla", "").split()
    return " ".join(words) or name


def of_one_type(reports: Sequence[DeviceReport], gpu_type: str) -> tuple[DeviceReport, ...]:
    """Return the reports of a GPU type; all if it is ""."""
    return tuple(report for report in reports if gpu_type in ("", report.gpu_type))


def types_in(reports: Sequence[DeviceReport]) -> Mapping[str, int]:
    """Return the number of GPUs of each type."""
    counts: dict[str, int] = {}
    for report in reports:
        counts[report.gpu_type] = counts.get(report.gpu_type, 0) + 1
    return counts
