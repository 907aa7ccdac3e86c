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

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from loadmaster.protocol import DeviceReport, DeviceSample

_KNOWN = {"gpu_type", "count", "memory_gb", "idle_w", "peak_w", "power_noise", "step_s", "shared"}
OTHERS = "default"

KEPT = 0.6
"""What a kind keeps of its own speed beside another one where the file says nothing: what the
median pair of Gavel's tables that can share at all keeps (V100 0.68, P100 0.59, K80 0.54; 0.6 is
their mean). At 0.5 sharing is as good as taking turns.
"""


class EmulationError(ValueError):
    """The emulation's file says something that no device can be; the message names the field."""


@dataclass(frozen=True, slots=True)
class Emulation:
    """`count` devices of one type. `step_s` is kind -> number of GPUs -> seconds; the kind
    "default" stands for all others.

    `shared` is kind -> other kind -> what the first keeps of its own speed beside the other on one
    device, in [0, 1].
    """

    gpu_type: str
    count: int
    memory_gb: float = 16.0
    idle_w: float = 30.0
    peak_w: float = 250.0
    power_noise: float = 0.0
    step_s: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    shared: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def devices(self, node: str) -> tuple[DeviceReport, ...]:
        """The devices, with uuids stable over restarts and distinct between nodes."""
        return tuple(
            DeviceReport(f"emulated-{node}-{index}", self.gpu_type, self.memory_gb, emulated=True)
            for index in range(self.count)
        )

    def pace_s(self, kind_name: str, gpus: int) -> float | None:
        """Seconds per step on that many GPUs: entry for the most GPUs not above, or the fewest."""
        row = self.step_s.get(kind_name) or self.step_s.get(OTHERS)
        if not row:
            return None
        fitting = [count for count in row if count <= gpus]
        return row[max(fitting) if fitting else min(row)]

    def kept(self, kind_name: str, others: Iterable[str]) -> float:
        """What a kind keeps of its own speed beside these on its device, 0 where they do not fit
        beside each other.

        Of a pair it is in the table, else KEPT; beside several it is the product, each taking its
        part of what the others leave.
        """
        return math.prod(
            0.0 if not self._of_pair(other, kind_name) else self._of_pair(kind_name, other)
            for other in others
        )

    def _of_pair(self, kind: str, other: str) -> float:
        rows = (self.shared.get(name, {}) for name in (kind, OTHERS))
        found = (row[name] for row in rows for name in (other, OTHERS) if name in row)
        return next(found, KEPT)

    def power_w(self, busy: bool, noise: random.Random) -> float:
        """The modelled watts of one device: idle or peak, with a relative Gaussian noise."""
        mean_w = self.peak_w if busy else self.idle_w
        return (
            max(0.0, mean_w * (1.0 + noise.gauss(0.0, self.power_noise)))
            if self.power_noise
            else mean_w
        )

    def sample(self, uuid: str, busy: bool, noise: random.Random) -> DeviceSample:
        """Sample of one device for a heartbeat."""
        return DeviceSample(
            uuid,
            gpu_fraction=1.0 if busy else 0.0,
            power_w=self.power_w(busy, noise),
            power_source="modelled",
        )


def read_emulation(path: Path) -> Emulation:
    """The emulation a file describes; EmulationError names what is wrong in it."""
    try:
        data = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise EmulationError(f"{path} cannot be read: {error}") from error
    return parse_emulation(data)


def parse_emulation(data: Any) -> Emulation:
    """The emulation that plain data describes; EmulationError names what is wrong in it."""
    if not isinstance(data, dict):
        raise EmulationError(
            f"an emulation is a mapping with gpu_type and count, not {type(data).__name__}"
        )
    if unknown := set(data) - _KNOWN:
        raise EmulationError(
            f"unknown: {', '.join(sorted(map(str, unknown)))}; known are"
            f" {', '.join(sorted(_KNOWN))}"
        )
    gpu_type, count = data.get("gpu_type"), data.get("count", 1)
    if not isinstance(gpu_type, str) or not gpu_type:
        raise EmulationError("gpu_type: must name a GPU type, V100 say")
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= 1024:
        raise EmulationError(f"count: must be a whole number from 1 to 1024, not {count!r}")
    numbers = {
        name: _number(name, data[name])
        for name in ("memory_gb", "idle_w", "peak_w", "power_noise")
        if name in data
    }
    step_s, shared = _step_table(data.get("step_s") or {}), _shared_table(data.get("shared") or {})
    return Emulation(gpu_type, count, **numbers, step_s=step_s, shared=shared)


def _shared_table(data: Any) -> dict[str, dict[str, float]]:
    if not isinstance(data, dict) or not all(
        isinstance(row, dict) and row for row in data.values()
    ):
        raise EmulationError("shared: must map each kind to {other kind: part of its own speed}")
    return {
        str(kind): {str(other): _part(f"shared.{kind}.{other}", v) for other, v in row.items()}
        for kind, row in data.items()
    }


def _part(name: str, value: object) -> float:
    if (number := _number(name, value)) > 1:
        raise EmulationError(
            f"{name}: must be from 0 to 1, the part of its own speed, not {value!r}"
        )
    return number


def _step_table(data: Any) -> dict[str, dict[int, float]]:
    if not isinstance(data, dict) or not all(
        isinstance(row, dict) and row for row in data.values()
    ):
        raise EmulationError("step_s: must map each kind to {number of GPUs: seconds}")
    return {
        str(kind): {
            _count(kind, gpus): _positive(f"step_s.{kind}.{gpus}", value)
            for gpus, value in row.items()
        }
        for kind, row in data.items()
    }


def _count(kind: object, gpus: object) -> int:
    if not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 1:
        raise EmulationError(f"step_s.{kind}: {gpus!r} must be a number of GPUs of 1 or more")
    return gpus


def _number(name: str, value: object) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or value < 0
    ):
        raise EmulationError(f"{name}: must be a number of 0 or more, not {value!r}")
    return float(value)


def _positive(name: str, value: object) -> float:
    if (number := _number(name, value)) <= 0:
        raise EmulationError(f"{name}: must be above 0")
    return number
