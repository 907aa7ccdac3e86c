"""A stand-in for NVML with faults: what each GPU answers can be changed at any time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class NVMLError(Exception):
    """An error of NVML with its code, as pynvml raises them."""

    WORDS = {
        3: "Not Supported",
        4: "Insufficient Permissions",
        6: "Not Found",
        9: "Driver Not Loaded",
        10: "Timeout",
        12: "NVML Shared Library Not Found",
        13: "Function Not Found",
        15: "GPU is lost",
        16: "GPU requires reset",
        18: "Driver/library version mismatch",
        999: "Unknown Error",
    }

    def __init__(self, value: int) -> None:
        super().__init__(self.WORDS[value])
        self.value = value


NOT_SUPPORTED, TIMEOUT, LOST, MISMATCH, UNKNOWN = 3, 10, 15, 18, 999


@dataclass
class Memory:
    """Memory of a GPU in bytes."""

    total: float = 80e9
    used: float = 8e9


@dataclass
class Rates:
    """Use of a GPU in percent."""

    gpu: int = 93
    memory: int = 10


@dataclass
class Event:
    """An event of NVML: a GPU and an Xid."""

    device: "FakeGpu"
    eventData: int  # noqa: N815
    eventType: int = 8  # noqa: N815


@dataclass
class FakeGpu:
    """A GPU; `fails` are codes of errors by the function's name, `answers` other answers."""

    uuid: str
    name: str | bytes = "NVIDIA A100-SXM4-80GB"
    minor: int = 0
    fails: dict[str, int] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    instances: list["FakeGpu"] | None = None
    parent: "FakeGpu | None" = None


ANSWERS: dict[str, Callable[[FakeGpu], Any]] = {
    "nvmlDeviceGetUUID": lambda gpu: gpu.uuid,
    "nvmlDeviceGetName": lambda gpu: gpu.name,
    "nvmlDeviceGetMinorNumber": lambda gpu: gpu.minor,
    "nvmlDeviceGetMemoryInfo": lambda gpu: Memory(),
    "nvmlDeviceGetUtilizationRates": lambda gpu: Rates(),
    "nvmlDeviceGetPowerUsage": lambda gpu: 250_000,
    "nvmlDeviceGetTemperature": lambda gpu: 61,
    "nvmlDeviceGetTotalEccErrors": lambda gpu: 0,
    "nvmlDeviceGetRemappedRows": lambda gpu: (0, 0, 0, 0),
    "nvmlDeviceGetRetiredPagesPendingStatus": lambda gpu: 0,
    "nvmlDeviceGetRetiredPages": lambda gpu: [],
    "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: 0,
    "nvmlDeviceGetMigMode": lambda gpu: (int(gpu.instances is not None), 0),
    "nvmlDeviceGetMaxMigDeviceCount": lambda gpu: 7,
    "nvmlDeviceRegisterEvents": lambda gpu: None,
}
PER_GPU = (*ANSWERS, "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByUUID")
"""Functions that are about one GPU, and may fail for it."""


class FakeNvml:
    """NVML with these GPUs; `fails` are codes of errors of functions about no GPU.

    `missing` functions are those that an older pynvml lacks.
    """

    NVML_TEMPERATURE_GPU = 0

    def __init__(self, *gpus: FakeGpu, missing: tuple[str, ...] = ()) -> None:
        self.gpus = list(gpus)
        self.fails: dict[str, int] = {}
        self.events: list[Event] = []
        self.missing = missing

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in self.missing or name not in ANSWERS:
            raise AttributeError(name)
        return lambda gpu, *arguments: self._answer(name, gpu, ANSWERS[name])

    def _answer(self, name: str, gpu: FakeGpu, usual: Callable[[FakeGpu], Any]) -> Any:
        if name in gpu.fails:
            raise NVMLError(gpu.fails[name])
        return gpu.answers.get(name, usual(gpu))

    def _whole(self, name: str, value: Any) -> Any:
        if name in self.fails:
            raise NVMLError(self.fails[name])
        return value

    def nvmlInit(self) -> None:
        self._whole("nvmlInit", None)

    def nvmlDeviceGetCount(self) -> int:
        return int(self._whole("nvmlDeviceGetCount", len(self.gpus)))

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        gpu = self.gpus[index]
        return self._answer("nvmlDeviceGetHandleByIndex", gpu, lambda gpu: gpu)  # type: ignore[no-any-return]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        for gpu in self.gpus:
            for one in (gpu, *(gpu.instances or ())):
                if one.uuid == uuid:
                    return self._answer("nvmlDeviceGetHandleByUUID", one, lambda gpu: gpu)  # type: ignore[no-any-return]
        raise NVMLError(6)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, index: int) -> FakeGpu:
        instances = gpu.instances or []
        if index >= len(instances):
            raise NVMLError(6)
        return instances[index]

    def nvmlEventSetCreate(self) -> object:
        return self._whole("nvmlEventSetCreate", object())

    def nvmlEventSetWait_v2(self, events: object, timeout_ms: int) -> Event:
        if not self.events:
            raise NVMLError(TIMEOUT)
        return self.events.pop(0)


def two_gpus() -> FakeNvml:
    """Two healthy GPUs, GPU-0 and GPU-1."""
    return FakeNvml(
        FakeGpu("GPU-0", minor=3), FakeGpu("GPU-1", name=b"NVIDIA A100-SXM4-80GB", minor=4)
    )
