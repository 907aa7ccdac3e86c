"""GPUs of a machine: those that NVML lists, MIG instances, and those that it cannot reach.

What was found is kept in the agent's state folder: a GPU that is lost when the agent starts does
not tell its uuid, and is known from the last time.
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

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GpuList:
    """Offered GPUs; `trouble`: why there may be more than these, in NVML's words."""

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
    """List the GPUs, and what is known of them now.

    A GPU that fails is in the list as unhealthy: under its uuid if it was known before, else under
    one that names its index. `memory_gb` is the machine's, which unified memory shares. Raises
    NvmlError if NVML itself fails.
    """
    count = int(nvml.call("nvmlDeviceGetCount"))

    # 1. Ask each GPU by itself: one that fails leaves the others as they are.
    found: dict[str, tuple[DeviceReport, ...]] = {}
    failures: dict[str, str] = {}
    empty: list[str] = []
    for index in range(count):
        name = str(index)
        try:
            found[name] = _gpu_at(nvml, index, memory_gb)
        except NvmlError as failure:
            failures[name] = str(failure)
            continue
        if not found[name]:
            empty.append(f"GPU {index}: MIG is on, and has no instances")

    # 2. Those that failed take their names from the last time, or from their index.
    present = {report.uuid for reports in found.values() for report in reports}
    types = [report.gpu_type for reports in found.values() for report in reports]
    listed = dict(found)
    for name, words in failures.items():
        before = [r for r in known.by_index.get(name, ()) if r.uuid not in present]
        if types:  # GPUs of another type were there before, and are replaced
            before = [report for report in before if report.gpu_type in types]
        listed[name] = _failed(name, words, before, types)
        if not listed[name]:
            empty.append(f"GPU {name}: {words}")

    # 3. Keep what was found, and what is still known of those that failed.
    kept = {name: reports for name, reports in known.by_index.items() if name in failures}
    for name, reports in found.items():
        kept[name] = tuple(replace(report, healthy=True, trouble="") for report in reports)
    offered: list[DeviceReport] = []
    for name in sorted(listed, key=int):
        offered += listed[name]
    return GpuList(tuple(offered), printable("; ".join(empty))), KnownGpus(kept)


def unreachable(known: KnownGpus, words: str) -> GpuList:
    """List the GPUs of the last time, all unhealthy as NVML itself fails with these words."""
    reports = [
        replace(report, healthy=False, trouble=words)
        for name in sorted(known.by_index, key=int)
        for report in known.by_index[name]
    ]
    return GpuList(tuple(reports), words)


def _failed(
    index: str, words: str, before: Sequence[DeviceReport], types: Sequence[str]
) -> tuple[DeviceReport, ...]:
    """Reports of a GPU that cannot be asked; none if not even its type can be told."""
    if before:
        return tuple(replace(report, healthy=False, trouble=words) for report in before)
    if not types:
        return ()
    report = DeviceReport(
        f"{UNIDENTIFIED}{index}", types[0], memory_gb=0.0, healthy=False, trouble=words
    )
    return (report,)


def _gpu_at(nvml: Nvml, index: int, memory_gb: float) -> tuple[DeviceReport, ...]:
    """The GPU of an index, or its MIG instances where it has any. Raises NvmlError."""
    handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
    uuid = nvml.text("nvmlDeviceGetUUID", handle)
    gpu_type = gpu_type_of(nvml.text("nvmlDeviceGetName", handle))
    if not _is_divided(nvml, handle):
        gb, trouble = memory_of(nvml, handle, memory_gb)
        return (DeviceReport(uuid, gpu_type, gb, healthy=not trouble, trouble=trouble),)
    return _instances(nvml, handle, DeviceReport(uuid, gpu_type, 0.0))


def memory_of(nvml: Nvml, handle: Any, unified_gb: float) -> tuple[float, str]:
    """Memory of a GPU in GB, and NVML's words if it is broken.

    A GPU that does not tell its memory shares the machine's.
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
    """MIG instances of a GPU, each a device whose type is NVML's name of it."""
    found = []
    for number in range(int(nvml.number("nvmlDeviceGetMaxMigDeviceCount", gpu) or 0)):
        try:
            handle = nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", gpu, number)
            uuid = nvml.text("nvmlDeviceGetUUID", handle)
        except NvmlError as failure:
            if failure.is_broken:
                raise
            continue  # there is no instance of this number
        gb, trouble = memory_of(nvml, handle, 0.0)
        profile = _profile(nvml, handle, gb)
        found.append(
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
    return tuple(found)


def _profile(nvml: Nvml, handle: Any, memory_gb: float) -> str:
    """Profile of an instance: 1g.5gb, from its name, or from its slices and memory."""
    name = nvml.read("nvmlDeviceGetName", handle)
    text = name.decode(errors="replace") if isinstance(name, bytes) else str(name or "")
    _, mig, profile = text.partition("MIG ")
    if mig and profile.strip():
        return profile.strip()[:50]
    attributes = nvml.read("nvmlDeviceGetAttributes", handle)
    slices = getattr(attributes, "gpuInstanceSliceCount", 0)
    size_mb = getattr(attributes, "memorySizeMB", memory_gb * GB / MB)
    return f"{slices}g.{round(size_mb / 1024)}gb"


def gpu_type_of(name: str) -> str:
    """A GPU's product name as a type: without the maker and words that all have."""
    words = name.replace("NVIDIA", "").replace("GeForce", "").replace("Tesla", "").split()
    return " ".join(words) or name


def of_one_type(reports: Sequence[DeviceReport], gpu_type: str) -> tuple[DeviceReport, ...]:
    """Those of one type; all where none is named."""
    return tuple(report for report in reports if gpu_type in ("", report.gpu_type))


def types_in(reports: Sequence[DeviceReport]) -> Mapping[str, int]:
    """Numbers of GPUs by type."""
    counts: dict[str, int] = {}
    for report in reports:
        counts[report.gpu_type] = counts.get(report.gpu_type, 0) + 1
    return counts
