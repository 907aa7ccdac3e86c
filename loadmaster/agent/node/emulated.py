"""Emulated devices, which a node offers in place of GPUs, read from a YAML file.

    gpu_type: V100
    count: 2
    memory_gb: 16
    idle_w: 40
    peak_w: 250
    power_noise: 0.03
    step_s:                      # seconds per step by kind and number of GPUs
      resnet: {1: 0.43, 2: 0.31}
      default: {1: 0.5}
    shared:                      # fraction of its speed that a kind keeps beside another kind
      resnet: {lstm: 0.8, default: 0.55}
      default: {default: 0.6}    # 0: the two do not fit on one GPU

An emulated device is a pacing clock: a step of the real training takes `step_s` seconds, and while
others share the device `step_s` over the fraction that its kind keeps. Its watts are modelled, and
its samples say so.
"""

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
"""Name in the file that stands for all kinds that it does not name."""

NotNegative = Annotated[float, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Gpus = Annotated[int, Field(ge=1)]
T = TypeVar("T", bound=Sized)


def _check_not_empty(row: T) -> T:
    if not row:
        raise ValueError("must hold at least one entry")
    return row


Row = Annotated[T, AfterValidator(_check_not_empty)]

KEPT = 0.6
"""Fraction of its speed that a kind keeps beside another one if the file does not say.

The mean of the medians over all pairs that can share a GPU in Gavel's tables: V100 0.68, P100 0.59,
K80 0.54.
"""


class EmulationError(ValueError):
    """The emulation's file describes an impossible device; the message names the field."""


@dataclass(frozen=True, slots=True)
class Emulation:
    """Emulated devices of one GPU type.

    `power_noise`: relative standard deviation of the watts. `step_s`: seconds per step by kind and
    number of GPUs. `shared`: fraction of its speed that a kind keeps, by kind and other kind.
    """

    gpu_type: Annotated[str, Field(min_length=1)]
    count: Annotated[int, Field(ge=1, le=MOST_DEVICES)] = 1
    memory_gb: NotNegative = 16.0
    idle_w: NotNegative = 30.0
    peak_w: NotNegative = 250.0
    power_noise: NotNegative = 0.0
    step_s: Mapping[str, Row[Mapping[Gpus, Seconds]]] = field(default_factory=dict)
    shared: Mapping[str, Row[Mapping[str, Fraction]]] = field(default_factory=dict)

    def devices(self, node: str) -> tuple[DeviceReport, ...]:
        """Return the devices; their uuids survive restarts and differ between nodes."""
        reports = []
        for index in range(self.count):
            uuid = f"emulated-{node}-{index}"
            reports.append(DeviceReport(uuid, self.gpu_type, self.memory_gb, emulated=True))
        return tuple(reports)

    def pace_s(self, kind_name: str, gpus: int) -> float | None:
        """Return the seconds per step on `gpus` GPUs, None if the file has none for the kind.

        Between two numbers of GPUs in the file the smaller one counts; below all, the smallest.
        """
        row = self.step_s.get(kind_name) or self.step_s.get(OTHERS)
        if not row:
            return None
        not_above = [count for count in row if count <= gpus]
        if not_above:
            return row[max(not_above)]
        return row[min(row)]

    def kept(self, kind_name: str, others: Iterable[str]) -> float:
        """Return the fraction of its speed that a kind keeps beside others on its device.

        0: they do not fit on it. Beside several others it is the product of the pairs' fractions.
        """
        fraction = 1.0
        for other in others:
            fraction *= self._kept_in_pair(kind_name, other)
            if self._kept_in_pair(other, kind_name) == 0.0:  # a pair fits for both or for none
                return 0.0
        return fraction

    def _kept_in_pair(self, kind: str, other: str) -> float:
        """Return the fraction that a kind keeps beside another one: the most specific entry."""
        for row_name in (kind, OTHERS):
            row = self.shared.get(row_name, {})
            for column_name in (other, OTHERS):
                if column_name in row:
                    return row[column_name]
        return KEPT

    def power_w(self, busy: bool, noise: random.Random) -> float:
        """Return the modelled watts of one device: idle or peak, with relative Gaussian noise."""
        mean_w = self.peak_w if busy else self.idle_w
        if not self.power_noise:
            return mean_w
        return max(0.0, mean_w * (1.0 + noise.gauss(0.0, self.power_noise)))

    def sample(self, uuid: str, busy: bool, noise: random.Random) -> DeviceSample:
        """Return the sample of one device for a heartbeat."""
        return DeviceSample(
            uuid,
            gpu_fraction=1.0 if busy else 0.0,
            power_w=self.power_w(busy, noise),
            power_source="modelled",
        )


def read_emulation(path: Path) -> Emulation:
    """Read an emulation from a YAML file. Raises EmulationError, which names the wrong field."""
    try:
        return parse_emulation(read_fields(path, LARGEST, example="gpu_type: V100"))
    except DocumentError as error:
        raise EmulationError(str(error)) from None


def parse_emulation(data: Any) -> Emulation:
    """Check an emulation in plain data. Raises EmulationError, which names the wrong field."""
    if isinstance(data, dict):
        data = {name: value for name, value in data.items() if value is not None}
    try:
        return from_json(Emulation, data)
    except WireError as error:
        raise EmulationError(str(error)) from None
