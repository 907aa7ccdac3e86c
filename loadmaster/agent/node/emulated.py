"""Emulated devices: what a node offers in place of GPUs, read from a YAML file.

    gpu_type: V100
    count: 2
    memory_gb: 16
    idle_w: 40
    peak_w: 250
    power_noise: 0.03
    step_s:                      # seconds per step by kind and number of GPUs
      resnet: {1: 0.43, 2: 0.31}
      default: {1: 0.5}
    shared:                      # part of its own speed that a kind keeps beside another on one
    GPU; 0: the two do not fit
      resnet: {lstm: 0.8, default: 0.55}
      default: {default: 0.6}

An emulated device is a pacing clock: the real training step runs inside `step_s`, and inside
`step_s` over what its kind keeps while others share the device. Its watts are modelled and say so.
"""

import math
import random
from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field

from loadmaster.protocol import MOST_DEVICES, DeviceReport, DeviceSample
from loadmaster.strict_yaml import LARGEST, DocumentError, read_fields
from loadmaster.wire import WireError, from_json

OTHERS = "default"
"""The kind that stands for all others."""

NotNegative = Annotated[float, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Gpus = Annotated[int, Field(ge=1)]
T = TypeVar("T", bound=Sized)


def _filled(row: T) -> T:
    if not row:
        raise ValueError("must hold at least one entry")
    return row


Row = Annotated[T, AfterValidator(_filled)]

KEPT = 0.6
"""Default fraction of its own speed that a kind keeps beside another one: the mean of the median
pairs of Gavel's tables that can share at all (V100 0.68, P100 0.59, K80 0.54)."""


class EmulationError(ValueError):
    """The emulation's file says something that no device can be; the message names the field."""


@dataclass(frozen=True, slots=True)
class Emulation:
    """Devices of one type: seconds per step by kind and number of GPUs, speed kept when shared."""

    gpu_type: Annotated[str, Field(min_length=1)]
    count: Annotated[int, Field(ge=1, le=MOST_DEVICES)] = 1
    memory_gb: NotNegative = 16.0
    idle_w: NotNegative = 30.0
    peak_w: NotNegative = 250.0
    power_noise: NotNegative = 0.0
    step_s: Mapping[str, Row[Mapping[Gpus, Seconds]]] = field(default_factory=dict)
    shared: Mapping[str, Row[Mapping[str, Fraction]]] = field(default_factory=dict)

    def devices(self, node: str) -> tuple[DeviceReport, ...]:
        """The devices, with uuids stable over restarts and distinct between nodes."""
        return tuple(
            DeviceReport(f"emulated-{node}-{index}", self.gpu_type, self.memory_gb, emulated=True)
            for index in range(self.count)
        )

    def pace_s(self, kind_name: str, gpus: int) -> float | None:
        """Seconds per step on some GPUs: the entry for the most not above them, or the fewest."""
        row = self.step_s.get(kind_name) or self.step_s.get(OTHERS)
        if not row:
            return None
        fitting = [count for count in row if count <= gpus]
        return row[max(fitting) if fitting else min(row)]

    def kept(self, kind_name: str, others: Iterable[str]) -> float:
        """Fraction of its own speed that a kind keeps beside others on its device; 0: no fit.

        Of a pair it is in the table, else KEPT; beside several it is the product.
        """
        pairs = [(self._of_pair(kind_name, o), self._of_pair(o, kind_name)) for o in others]
        return math.prod(own if theirs else 0.0 for own, theirs in pairs)

    def _of_pair(self, kind: str, other: str) -> float:
        rows = (self.shared.get(name, {}) for name in (kind, OTHERS))
        found = (row[name] for row in rows for name in (other, OTHERS) if name in row)
        return next(found, KEPT)

    def power_w(self, busy: bool, noise: random.Random) -> float:
        """The modelled watts of one device: idle or peak, with a relative Gaussian noise."""
        mean_w = self.peak_w if busy else self.idle_w
        if not self.power_noise:
            return mean_w
        return max(0.0, mean_w * (1.0 + noise.gauss(0.0, self.power_noise)))

    def sample(self, uuid: str, busy: bool, noise: random.Random) -> DeviceSample:
        """Sample of one device for a heartbeat."""
        return DeviceSample(
            uuid,
            gpu_fraction=1.0 if busy else 0.0,
            power_w=self.power_w(busy, noise),
            power_source="modelled",
        )


def read_emulation(path: Path) -> Emulation:
    """The emulation that a file describes; EmulationError names the wrong field."""
    try:
        return parse_emulation(read_fields(path, LARGEST, example="gpu_type: V100"))
    except DocumentError as error:
        raise EmulationError(str(error)) from None


def parse_emulation(data: Any) -> Emulation:
    """The emulation that plain data describes; EmulationError names the wrong field."""
    if isinstance(data, dict):
        data = {name: value for name, value in data.items() if value is not None}
    try:
        return from_json(Emulation, data)
    except WireError as error:
        raise EmulationError(str(error)) from None
