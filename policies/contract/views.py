"""Rows of a snapshot: nodes and devices, kinds, jobs, prices. Frozen, plain data.

A job may be placed on nodes that have all its labels. Labels with a colon are derived from nodes
and jobs, beside those of people. Units are in the names: `_s` seconds, `_w` watts, `_gb` 10**9
bytes, `price_per_kwh` in the cluster's currency.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import inf
from typing import Annotated

from pydantic import Field

from foundation.forms import (
    Amounts,
    AtLeast0,
    Count0,
    Count1,
    Fraction,
    Unbounded,
    UnboundedAtLeast0,
)
from policies.contract.plan import Purpose, Running

SLOWEST = 1e-12
"""Steps/s below which a speed counts as unknown: a step would take 30,000 years."""

WITHOUT_GPUS = ("", 0, False)
"""GPU type, GPUs, spread: key of the speed of a kind that runs without GPUs."""

SECONDS_PER_HOUR = 3600.0
MOST_DOUBLINGS = 10
"""Steps of priority, up or down, that change the cost of a job's waiting."""

Price = Annotated[float, Field(ge=-1e9, le=1e9)]
Pue = Annotated[float, Field(ge=1, le=1e3)]
Emissions = Annotated[float, Field(ge=0, le=1e9)]


class Source(StrEnum):
    """Source of a figure of a kind, best first. ASSUMED: nothing is known; shown as unknown."""

    MEASURED = "measured"
    ESTIMATED = "estimated"
    DECLARED = "declared"
    ASSUMED = "assumed"


class NodeRole(StrEnum):
    """Role of a node. `BOTH` serves production and lends its free devices to the profiler."""

    PRODUCTION = "production"
    PROFILING = "profiling"
    BOTH = "both"


class NodeState(StrEnum):
    """READY: takes jobs; CORDONED: keeps running ones; DRAINING: empty by `drain_until_s`."""

    READY = "ready"
    CORDONED = "cordoned"
    DRAINING = "draining"
    LOST = "lost"


class JobPhase(StrEnum):
    """State of a job for a policy: waiting, running, or being profiled."""

    WAITING = "waiting"
    RUNNING = "running"
    PROFILING = "profiling"


@dataclass(frozen=True, slots=True)
class PriceInterval:
    """Prices from `from_s` to `to_s`: per kWh, PUE (facility/IT energy), g CO2 per kWh."""

    from_s: float
    to_s: Unbounded
    price_per_kwh: Price
    pue: Pue
    emissions_g_per_kwh: Emissions = 0.0


@dataclass(frozen=True, slots=True)
class PowerCapStep:
    """Limit of the IT power of all placements together from `from_s` until `to_s`."""

    from_s: float
    to_s: Unbounded
    power_cap_w: AtLeast0


@dataclass(frozen=True, slots=True)
class SlotHold:
    """Taken slot of a device: the job's copy, its purpose and share."""

    job: str
    copy: Count0 = 0
    purpose: Purpose = Purpose.TRAINING
    share: Fraction = 1.0


@dataclass(frozen=True, slots=True)
class DeviceView:
    """GPU: (node, id), never an index; `slots` > 1 lets that many placements share it."""

    id: str
    memory_gb: AtLeast0
    slots: Count1 = 1
    healthy: bool = True
    held: tuple[SlotHold, ...] = ()
    emulated: bool = False


READY, FOR_PROFILING = NodeState.READY, NodeRole.PROFILING
"""Looked up once: class attributes of enums are slow on Python 3.11."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """Machine with GPUs of one type, or without any (`gpu_type` "").

    `cores` and `memory_gb` are without the system's reserve. `power_w[g]` is the power with g GPUs
    in use, g = 0 .. number of devices (ANDREAS, P_n(g)); a node without jobs is closed and costs
    nothing. `changes_quotas`: the cores of a seat there may change while its job runs.
    """

    id: str
    name: str
    gpu_type: str
    devices: tuple[DeviceView, ...]
    power_w: tuple[AtLeast0, ...]
    cores: UnboundedAtLeast0 = inf
    memory_gb: UnboundedAtLeast0 = inf
    resources: Amounts = ()
    labels: tuple[str, ...] = ()
    role: NodeRole = NodeRole.PRODUCTION
    state: NodeState = NodeState.READY
    drain_until_s: float | None = None
    rack: str = ""
    link_gbps: AtLeast0 = 0.0
    changes_quotas: bool = False

    @property
    def takes_training(self) -> bool:
        """Return True if new production work may be placed here."""
        return self.state is READY and self.role is not FOR_PROFILING

    @property
    def takes_profiling(self) -> bool:
        """Return True if profile runs may be placed here."""
        return self.state is READY and self.role is not NodeRole.PRODUCTION

    def draw_w(self, gpus: int, *, works: bool = False) -> float:
        """Return the power in watts with `gpus` GPUs in use; 0 if it is unknown.

        A node without a GPU in use draws power only if it `works`: some job is there.
        """
        is_off = not gpus and not works
        if is_off or not self.power_w:
            return 0.0
        return self.power_w[min(gpus, len(self.power_w) - 1)]

    def part_w(self, gpus: float, used: int, cores: float) -> float:
        """Return the part of the node's power that counts for a job, in watts.

        By its GPUs among the `used` ones; of a job without GPUs by its part of the cores, all if
        the node's are unlimited.
        """
        if gpus:
            return self.draw_w(used) * gpus / used
        if not self.power_w:
            return 0.0
        part = cores / self.cores if cores < self.cores < inf else 1.0
        return self.power_w[0] * part


class TeamOrder(StrEnum):
    """Order among a team's own jobs: by weights, or first come, first served."""

    FAIRNESS = "fairness"
    FIFO = "fifo"


@dataclass(frozen=True, slots=True)
class TeamView:
    """Team: its fair share against other teams, and the order of its own jobs.

    `max_gpus`: the most that its jobs may use together; the loop keeps to it, policies need not.
    """

    name: str
    weight: Annotated[float, Field(ge=0.001, le=1e6)] = 1.0
    order: TeamOrder = TeamOrder.FAIRNESS
    max_gpus: Count0 | None = None


@dataclass(frozen=True, slots=True)
class GpuTypeView:
    """GPU model: peak TFLOP/s and memory, and the hourly price of a GPU (0: none)."""

    name: str
    tflops: AtLeast0
    memory_gb: AtLeast0
    price_per_hour: Annotated[float, Field(ge=0, le=1e9)] = 0.0


@dataclass(frozen=True, slots=True)
class Throughput:
    """Steps/s of a kind on `gpus` GPUs of a type, on one node or (`spread`) several.

    Without GPUs the type is "", and the speed holds on every node.
    """

    gpu_type: str
    gpus: Count0
    steps_per_s: AtLeast0
    source: Source
    age_s: AtLeast0 = 0.0
    spread: bool = False

    @property
    def is_known(self) -> bool:
        """Return True for a speed at which a step ends in a lifetime."""
        return self.steps_per_s >= SLOWEST


@dataclass(frozen=True, slots=True)
class PairThroughput:
    """Steps per second of two kinds that share a device of one type: (this kind's, the other's)."""

    other: str
    gpu_type: str
    steps_per_s: AtLeast0
    other_steps_per_s: AtLeast0
    source: Source
    age_s: AtLeast0 = 0.0


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """Use of one process of a kind on a GPU type: cores, memory, fraction and watts of GPU."""

    gpu_type: str
    cores: AtLeast0
    memory_gb: AtLeast0
    gpu_fraction: AtLeast0
    gpu_w: AtLeast0 | None
    source: Source
    age_s: AtLeast0 = 0.0


@dataclass(frozen=True)
class KindView:
    """Knowledge of the jobs of one kind; `setup_s`: from launch to the first step."""

    id: str
    name: str = ""
    throughputs: tuple[Throughput, ...] = ()
    pairs: tuple[PairThroughput, ...] = ()
    usage: tuple[ResourceUse, ...] = ()
    setup_s: AtLeast0 = 0.0

    @cached_property
    def rates(self) -> Mapping[tuple[str, int, bool], float]:
        """Known speeds: steps/s by (GPU type, GPUs, spread)."""
        rates: dict[tuple[str, int, bool], float] = {}
        for speed in self.throughputs:
            if speed.is_known:
                rates[speed.gpu_type, speed.gpus, speed.spread] = speed.steps_per_s
        return rates

    @cached_property
    def is_assumed(self) -> bool:
        """True if a speed of the kind is only assumed: no run time of it may be shown."""
        return any(speed.source is Source.ASSUMED for speed in self.throughputs)


@dataclass(frozen=True, slots=True)
class JobView:
    """Job: a row of `JobColumns`, made when it is read.

    `remaining_steps` are of the whole job. `due_s` is soft, `deadline_s` hard, and `walltime_s` the
    run time that the user expects; inf: none. `tardiness_weight` is the cost of a second after
    `due_s`, `waiting_cost` that of a second of waiting. `weight` is a fair share, `priority` strict
    (greater first). `received_s` is device time by GPU type.

    `restart_cost_s` is the time that a stop now would cost: a restart from a checkpoint, and the
    work since the last one. A job that waits after a run needs the restart alone. A launch runs for
    `min_run_s` before it is stopped, unless its node is lost or a due date or a priority requires
    it. An empty `allowed_types` allows every type.

    `cores`, `memory_gb` and `resources` are of one unit. A training job is one unit on each of its
    nodes, however many these are; without GPUs (`gpus_max` 0) it is on one node. A `batch` job
    declares no steps: it has `units` equal units, each with an equal part of its GPUs on one node,
    at most `units_per_node` on one (0: any number), on exactly `nodes` nodes (0: any number).
    `exclusive`: no other job is on its nodes. Unless `preemptible`, it is not stopped before its
    end. `expected_run_s` is the whole run time by a prediction (inf: none), from
    `expected_source`.
    """

    id: str
    kind: str
    arrival_s: float
    remaining_steps: AtLeast0
    gpus_min: Count0 = 1
    gpus_max: Count0 = 1
    name: str = ""
    phase: JobPhase = JobPhase.WAITING
    due_s: Unbounded = inf
    deadline_s: Unbounded = inf
    walltime_s: UnboundedAtLeast0 = inf
    tardiness_weight: AtLeast0 = 0.0
    weight: AtLeast0 = 1.0
    priority: int = 0
    team: str = ""
    user: str = ""
    units: Count1 = 1
    cores: AtLeast0 = 0.0
    memory_gb: AtLeast0 = 0.0
    resources: Amounts = ()
    allowed_types: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    may_mix: bool = False
    may_share: bool = False
    total_steps: AtLeast0 = 0.0
    restart_cost_s: AtLeast0 = 0.0
    min_run_s: AtLeast0 = 0.0
    waiting_cost: AtLeast0 = 0.0
    running: tuple[Running, ...] = ()
    received_s: Amounts = ()
    dependencies: tuple[str, ...] = ()
    batch: bool = False
    units_per_node: Count0 = 0
    nodes: Count0 = 0
    exclusive: bool = False
    preemptible: bool = True
    expected_run_s: UnboundedAtLeast0 = inf
    expected_source: str = ""

    @property
    def scale_factor(self) -> int:
        """GPUs of a rigid gang; for an elastic one its least."""
        return self.gpus_min


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """Measurement wanted: run `steps` steps of `job` on `gpus` GPUs of `gpu_type`.

    `copy` numbers the job's profile runs; `since_s` is the time of the first request. `beside`
    names the job (`beside_copy` its copy) to share one device with: both are placed together or not
    at all.
    """

    job: str
    kind: str
    gpu_type: str
    gpus: Count1
    steps: Count1
    copy: Count0
    since_s: float
    beside: str = ""
    beside_copy: int = 0


def waiting_cost(value_per_hour: float, team_weight: float = 1.0, priority: int = 0) -> float:
    """Return the cost of a second of a job's waiting; `value_per_hour`: cost of an hour.

    Each step of priority doubles it, up to MOST_DOUBLINGS.
    """
    steps = max(-MOST_DOUBLINGS, min(MOST_DOUBLINGS, priority))
    return float(value_per_hour / SECONDS_PER_HOUR * team_weight * 2.0**steps)
