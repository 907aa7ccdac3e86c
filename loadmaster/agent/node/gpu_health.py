"""Health of a GPU as NVML tells it: faults that take it out of use, and warnings that do not.

Every reading may be missing: GPUs of consumers count no ECC errors, older ones remap no rows.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from loadmaster.agent.node.nvml import Nvml, NvmlError

UNCORRECTED = 1
VOLATILE = 0
"""NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC: errors since the last reset."""

RETIREMENT_CAUSES = (0, 1)
"""Pages retired for several single-bit errors, and for a double-bit one."""

XID_EVENT = 8
"""nvmlEventTypeXidCriticalError."""

XIDS_OF_JOBS = frozenset({13, 31, 43, 45, 68, 109})
"""Xid errors that programs cause, by NVIDIA's list: the GPU goes on working."""

EVENTS_AT_ONCE = 100

SLOWDOWNS = {
    0x08: "slowed down by its hardware",
    0x20: "slowed down for its temperature",
    0x40: "slowed down for its temperature by its hardware",
    0x80: "slowed down for want of power",
}
"""Warnings by bits of nvmlDeviceGetCurrentClocksEventReasons. Idle and power caps are none."""

CLOCK_REASONS = (
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
)
"""The function's name, and that in older versions of NVML."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Health:
    """Health of a GPU: a `fault` takes it out of use, a `warning` does not; empty: none."""

    fault: str = ""
    warning: str = ""


def health_of(nvml: Nvml, handle: Any) -> Health:
    """Look at the counters of a GPU."""
    try:
        fault = _ecc_fault(nvml, handle) or _remap_fault(nvml, handle)
        fault = fault or _retirement_fault(nvml, handle)
        return Health(fault, _warning(nvml, handle))
    except NvmlError as failure:
        return Health(str(failure))


def _ecc_fault(nvml: Nvml, handle: Any) -> str:
    count = nvml.number("nvmlDeviceGetTotalEccErrors", handle, UNCORRECTED, VOLATILE)
    if not count or count < 0:
        return ""
    return f"{count:.0f} uncorrected ECC errors since its last reset"


def _remap_fault(nvml: Nvml, handle: Any) -> str:
    """Fault of a memory whose rows are remapped: (corrected, uncorrected, pending, failed)."""
    rows = nvml.read("nvmlDeviceGetRemappedRows", handle)
    if not isinstance(rows, (tuple, list)) or len(rows) < 4:
        return ""
    if rows[3]:
        return "remapping a row of its memory failed"
    if rows[2]:
        return "a row of its memory waits to be remapped: reset the GPU"
    return ""


def _retirement_fault(nvml: Nvml, handle: Any) -> str:
    if nvml.read("nvmlDeviceGetRetiredPagesPendingStatus", handle):
        return "a page of its memory waits to be retired: reset the GPU"
    return ""


def _warning(nvml: Nvml, handle: Any) -> str:
    """Warnings of a GPU that works: it is slowed down, or has lost pages of its memory."""
    warnings = []
    bits = nvml.number(CLOCK_REASONS[0], handle)
    if bits is None:
        bits = nvml.number(CLOCK_REASONS[1], handle)
    for bit, words in SLOWDOWNS.items():
        if int(bits or 0) & bit:
            warnings.append(words)
    retired = 0
    for cause in RETIREMENT_CAUSES:
        pages = nvml.read("nvmlDeviceGetRetiredPages", handle, cause)
        if isinstance(pages, (tuple, list)):
            retired += len(pages)
    if retired:
        warnings.append(f"{retired} pages of its memory are retired")
    return "; ".join(warnings)


class XidErrors:
    """Critical Xid errors of GPUs since the agent's start, by uuid; empty where NVML has no events.

    NVML never takes one back: it lasts until the agent starts again, after a reset of the GPU.
    """

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._events: Any = None
        self._watched: set[str] = set()
        self._faults: dict[str, str] = {}

    def watch(self, handles: Mapping[str, Any]) -> None:
        """Ask NVML for the errors of these GPUs too, handles by uuid."""
        for uuid, handle in handles.items():
            if uuid in self._watched:
                continue
            self._watched.add(uuid)
            try:
                if self._events is None:
                    self._events = self._nvml.call("nvmlEventSetCreate")
                self._nvml.call("nvmlDeviceRegisterEvents", handle, XID_EVENT, self._events)
            except NvmlError as failure:
                logger.info("GPU %s: NVML reports no Xid errors: %s", uuid, failure)

    def collect(self) -> None:
        """Take in the errors that came since the last call, without waiting for any."""
        for _ in range(EVENTS_AT_ONCE):
            if self._events is None:
                return
            try:
                event = self._wait(self._events)
                uuid = self._nvml.text("nvmlDeviceGetUUID", event.device)
                xid = int(event.eventData)
            except (NvmlError, AttributeError, TypeError, ValueError):
                return  # the time of the wait is over: there is none
            self._note(uuid, xid)

    def _wait(self, events: Any) -> Any:
        wait: Callable[..., Any] = self._nvml.call
        try:
            return wait("nvmlEventSetWait_v2", events, 0)
        except NvmlError as failure:
            if not failure.is_unavailable:
                raise
            return wait("nvmlEventSetWait", events, 0)

    def _note(self, uuid: str, xid: int) -> None:
        if xid in XIDS_OF_JOBS:
            logger.info("GPU %s: Xid %d, caused by a job", uuid, xid)
            return
        self._faults[uuid] = f"Xid error {xid}"

    def fault(self, uuid: str) -> str:
        """Return the last critical error of a GPU; empty if there was none."""
        return self._faults.get(uuid, "")
