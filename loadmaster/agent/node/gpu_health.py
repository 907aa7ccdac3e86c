"""Health of a GPU as NVML tells it: faults that take it out of use, and warnings that do not.

Any reading may be missing: consumer GPUs do not count ECC errors, older GPUs do not remap rows.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadmaster.agent.node.nvml import Nvml, NvmlError

UNCORRECTED = 1
"""NVML_MEMORY_ERROR_TYPE_UNCORRECTED."""

VOLATILE = 0
"""NVML_VOLATILE_ECC: errors since the last reset."""

RETIREMENT_CAUSES = (0, 1)
"""Causes of retired pages: several single-bit errors, and one double-bit error."""

XID_EVENT = 8
"""nvmlEventTypeXidCriticalError."""

XIDS_OF_JOBS = frozenset({13, 31, 43, 45, 68, 109})
"""Xid errors that programs cause, by NVIDIA's list: the GPU goes on working."""

EVENTS_AT_ONCE = 100
"""Most Xid errors that are read at a time."""

SLOWDOWNS = {
    0x08: "slowed down by its hardware",
    0x20: "slowed down, as it is too hot",
    0x40: "slowed down by its hardware, as it is too hot",
    0x80: "slowed down, as it gets too little power",
}
"""Warnings by bits of nvmlDeviceGetCurrentClocksEventReasons.

The bits of an idle GPU, and of one at its power cap, are no warnings.
"""

CLOCK_REASONS = (
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
)
"""Name of the function that tells why clocks are slow, and its name in older versions of NVML."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Health:
    """Health of a GPU: a `fault` takes it out of use, a `warning` does not; "": none."""

    fault: str = ""
    warning: str = ""


def health_of(nvml: Nvml, handle: Any) -> Health:
    """Read the health counters of a GPU. The first fault is kept; a failing GPU is a fault too."""
    try:
        for find_fault in (_ecc_fault, _remap_fault, _retirement_fault):
            fault = find_fault(nvml, handle)
            if fault:
                break
        return Health(fault, _warning(nvml, handle))
    except NvmlError as failure:
        return Health(str(failure))


def _ecc_fault(nvml: Nvml, handle: Any) -> str:
    count = nvml.number("nvmlDeviceGetTotalEccErrors", handle, UNCORRECTED, VOLATILE)
    if not count or count < 0:
        return ""
    return f"{count:.0f} uncorrected ECC errors since its last reset"


def _remap_fault(nvml: Nvml, handle: Any) -> str:
    """Return the fault of a GPU that remaps bad rows of its memory."""
    rows = nvml.read("nvmlDeviceGetRemappedRows", handle)
    if not isinstance(rows, (tuple, list)) or len(rows) < 4:
        return ""
    _corrected, _uncorrected, is_pending, has_failed = rows[:4]
    if has_failed:
        return "remapping a row of its memory failed"
    if is_pending:
        return "a row of its memory waits to be remapped: reset the GPU"
    return ""


def _retirement_fault(nvml: Nvml, handle: Any) -> str:
    if nvml.read("nvmlDeviceGetRetiredPagesPendingStatus", handle):
        return "a page of its memory waits to be retired: reset the GPU"
    return ""


def _warning(nvml: Nvml, handle: Any) -> str:
    """Return warnings of a GPU that works: it is slowed down, or has lost pages of its memory."""
    # 1. Reasons for slow clocks.
    warnings = []
    bits = nvml.number(CLOCK_REASONS[0], handle)
    if bits is None:
        bits = nvml.number(CLOCK_REASONS[1], handle)
    for bit, words in SLOWDOWNS.items():
        if int(bits or 0) & bit:
            warnings.append(words)

    # 2. Retired pages.
    retired = 0
    for cause in RETIREMENT_CAUSES:
        pages = nvml.read("nvmlDeviceGetRetiredPages", handle, cause)
        if isinstance(pages, (tuple, list)):
            retired += len(pages)
    if retired:
        warnings.append(f"{retired} pages of its memory are retired")
    return "; ".join(warnings)


class XidErrors:
    """Critical Xid errors of GPUs since the agent's start; none if NVML reports no events.

    NVML does not tell when a GPU has recovered from one, so an error stays until the agent starts
    again: after a reset of the GPU.
    """

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._events: Any = None
        self._watched: set[str] = set()
        self._faults: dict[str, str] = {}

    def watch(self, handles: Mapping[str, Any]) -> None:
        """Ask NVML to report the errors of these GPUs (handles by uuid) too."""
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
        """Read the errors that came since the last call, without waiting for any."""
        for _ in range(EVENTS_AT_ONCE):
            if self._events is None:
                return
            try:
                event = self._wait(self._events)
                uuid = self._nvml.text("nvmlDeviceGetUUID", event.device)
                xid = int(event.eventData)
            except (NvmlError, AttributeError, TypeError, ValueError):
                return  # a timeout: there is no other event
            self._note(uuid, xid)

    def _wait(self, events: Any) -> Any:
        """Return the next event, by the function that this version of NVML has.

        Raises NvmlError at once if there is none.
        """
        timeout_ms = 0
        try:
            return self._nvml.call("nvmlEventSetWait_v2", events, timeout_ms)
        except NvmlError as failure:
            if not failure.is_unavailable:
                raise
            return self._nvml.call("nvmlEventSetWait", events, timeout_ms)

    def _note(self, uuid: str, xid: int) -> None:
        if xid in XIDS_OF_JOBS:
            logger.info("GPU %s: Xid %d, caused by a job", uuid, xid)
            return
        self._faults[uuid] = f"Xid error {xid}"

    def fault(self, uuid: str) -> str:
        """Return the last critical error of a GPU; empty if there was none."""
        return self._faults.get(uuid, "")
