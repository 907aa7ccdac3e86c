"""Samples of assignments that agents report: progress, and use of cores, memory and GPUs."""

from dataclasses import dataclass
from typing import Annotated

from loadmaster.protocol import IF_KNOWN
from loadmaster.wire import Int, Many, Text

NOT_NUMBERS = "not_numbers"
"""Event of a sample without figures: the job reported some that are no numbers (NaN, infinite)."""


@dataclass(frozen=True, slots=True)
class ProgressSample:
    """Progress and recent speed: start, progress, checkpoint, preempted, quota or end."""

    at_s: float
    event: Text
    step: Int
    launch_steps: Int
    elapsed_s: float
    steps_per_s: float | None = None
    loss: float | None = None
    overrun_fraction: float | None = None
    setup_s: float | None = None


@dataclass(frozen=True, slots=True)
class UsageSample:
    """Use of an assignment's processes: cores, memory, mean use and watts of GPUs.

    `throttled_cores`: mean cores that its quota withheld; `cores_limit`: the quota in force by the
    kernel. None: there is no quota, or it is not known.
    """

    at_s: float
    cores: float
    memory_gb: float
    gpu_fraction: float | None = None
    gpu_power_w: float | None = None
    power_source: Text = "modelled"
    throttled_cores: Annotated[float | None, IF_KNOWN] = None
    cores_limit: Annotated[float | None, IF_KNOWN] = None


@dataclass(frozen=True, slots=True)
class MetricsBatch:
    """A batch of samples of one assignment; `seq` lets the server drop replays."""

    epoch: Int
    fence: Int
    seq: Int
    progress: Many[ProgressSample] = ()
    usage: Many[UsageSample] = ()


@dataclass(frozen=True, slots=True)
class MetricsAccepted:
    """The answer to a batch of samples: false for one that was seen before."""

    new: bool
