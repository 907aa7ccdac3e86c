"""What a policy may know: an immutable, versioned picture of one cluster at one moment.

A snapshot is plain data. It never holds secrets, database rows or anything that is not needed to decide; stored with its
round it lets anybody replay the decision. Jobs are kept in columns (`JobColumns`), so that an event with 100,000 jobs costs
milliseconds; a `JobView` is a lazy row of them. Units are in the names: `_s` seconds, `_w` watts, `_gb` 10**9 bytes,
`price_per_kwh` in the cluster's one currency. Times count in seconds from the Unix epoch (or from the start of a simulation).

The documented JSON form is in `policies/schemas/snapshot.schema.json`; `policies.snapshot_json` reads and writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from math import inf
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

SNAPSHOT_VERSION = 1

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Array = TypeVar("Array", bound=np.ndarray[Any, Any])


class Source(StrEnum):
    """Where a number about a kind comes from, best first."""

    MEASURED = "measured"
    ESTIMATED = "estimated"
    DECLARED = "declared"


class NodeRole(StrEnum):
    """What a node is for. `BOTH` serves production and lends its free devices to the profiler."""

    PRODUCTION = "production"
    PROFILING = "profiling"
    BOTH = "both"


class NodeState(StrEnum):
    """READY takes work; CORDONED keeps what runs and takes nothing new; DRAINING must be empty by `drain_until_s`."""

    READY = "ready"
    CORDONED = "cordoned"
    DRAINING = "draining"
    LOST = "lost"


class JobPhase(StrEnum):
    """A job as a policy sees it: it waits, it runs, or its kind is still unknown and being profiled."""

    WAITING = "waiting"
    RUNNING = "running"
    PROFILING = "profiling"


class Purpose(StrEnum):
    """Why a placement exists: to do the job's work, or to measure its kind."""

    TRAINING = "training"
    PROFILING = "profiling"


@dataclass(frozen=True, slots=True)
class Trigger:
    """Why a round runs: the reasons of the coalesced events and what they touched (ids)."""

    reasons: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EnergyStep:
    """Prices that hold from `from_s` until `to_s`: price per kWh, PUE (facility/IT energy), grams of CO2 per kWh."""

    from_s: float
    to_s: float
    price_per_kwh: float
    pue: float
    emissions_g_per_kwh: float = 0.0


@dataclass(frozen=True, slots=True)
class SlotHold:
    """One slot of a device that is taken: by which job's copy, for what purpose and with which share of the device."""

    job: str
    copy: int = 0
    purpose: Purpose = Purpose.TRAINING
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A GPU. It is (node, id), never an index; `slots` > 1 lets that many placements share it."""

    id: str
    memory_gb: float
    slots: int = 1
    healthy: bool = True
    held: tuple[SlotHold, ...] = ()
    emulated: bool = False


@dataclass(frozen=True, slots=True)
class NodeView:
    """A machine with GPUs of one type.

    `cores` and `memory_gb` are allocatable: total minus what is reserved for the system. `power_w[g]` is the node's power with
    g GPUs in use, g = 0 .. number of devices (ANDREAS, P_n(g)); a node without work is closed and costs nothing there.
    """

    id: str
    name: str
    gpu_type: str
    devices: tuple[DeviceView, ...]
    power_w: tuple[float, ...]
    cores: float = inf
    memory_gb: float = inf
    resources: tuple[tuple[str, float], ...] = ()
    labels: tuple[str, ...] = ()
    role: NodeRole = NodeRole.PRODUCTION
    state: NodeState = NodeState.READY
    drain_until_s: float | None = None
    rack: str = ""
    link_gbps: float = 0.0

    @property
    def takes_training(self) -> bool:
        """Whether new production work may be placed here."""
        return self.state is NodeState.READY and self.role is not NodeRole.PROFILING

    @property
    def takes_profiling(self) -> bool:
        """Whether profile runs may be placed here."""
        return self.state is NodeState.READY and self.role is not NodeRole.PRODUCTION


@dataclass(frozen=True, slots=True)
class GpuTypeView:
    """A GPU model: peak TFLOP/s and memory, for estimates."""

    name: str
    tflops: float
    memory_gb: float


@dataclass(frozen=True, slots=True)
class Throughput:
    """Steps per second of a kind on `gpus` GPUs of one type, all on one node (`spread` False) or over several."""

    gpu_type: str
    gpus: int
    steps_per_s: float
    source: Source
    age_s: float = 0.0
    spread: bool = False


@dataclass(frozen=True, slots=True)
class PairThroughput:
    """Steps per second of two kinds that share a device of one type: (this kind's, the other's)."""

    other: str
    gpu_type: str
    steps_per_s: float
    other_steps_per_s: float
    source: Source
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """What one process of a kind uses on a GPU type: cores, memory, fraction of the GPU, watts of one GPU."""

    gpu_type: str
    cores: float
    memory_gb: float
    gpu_fraction: float
    gpu_w: float | None
    source: Source
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class KindView:
    """What is known of the jobs of one kind; `setup_s` is the time from launch to the first step."""

    id: str
    name: str = ""
    throughputs: tuple[Throughput, ...] = ()
    pairs: tuple[PairThroughput, ...] = ()
    usage: tuple[ResourceUse, ...] = ()
    setup_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RankSeat:
    """Where one process of a gang sits: a node and its devices there, with the share of them it holds."""

    node: str
    devices: tuple[str, ...]
    share: float = 1.0
    cpu_quota: float | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """A placement that is committed or runs, as the world knows it."""

    copy: int
    ranks: tuple[RankSeat, ...]
    since_s: float
    until_s: float | None = None
    steps_quota: int | None = None
    purpose: Purpose = Purpose.TRAINING


@dataclass(frozen=True, slots=True)
class JobView:
    """One job. A lazy row of `JobColumns`; also what builders and the JSON form are made of.

    `remaining_steps` counts what is left of the whole job; `due_s` is soft (inf: none), `deadline_s` hard, `walltime_s` the run
    time the user asked for (inf: none). `tardiness_weight` is cost per second after `due_s`; `weight` a fair share, `priority`
    strict (greater first). `received_s` is the device time received so far by GPU type. `restart_cost_s` is what a
    checkpoint-restart costs. An empty `allowed_types` allows every type.
    """

    id: str
    kind: str
    arrival_s: float
    remaining_steps: float
    gpus_min: int = 1
    gpus_max: int = 1
    name: str = ""
    phase: JobPhase = JobPhase.WAITING
    due_s: float = inf
    deadline_s: float = inf
    walltime_s: float = inf
    tardiness_weight: float = 0.0
    weight: float = 1.0
    priority: int = 0
    team: str = ""
    user: str = ""
    units: int = 1
    cores: float = 0.0
    memory_gb: float = 0.0
    resources: tuple[tuple[str, float], ...] = ()
    allowed_types: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    may_mix: bool = False
    may_share: bool = False
    total_steps: float = 0.0
    restart_cost_s: float = 0.0
    running: tuple[Running, ...] = ()
    received_s: tuple[tuple[str, float], ...] = ()
    dependencies: tuple[str, ...] = ()

    @property
    def scale_factor(self) -> int:
        """GPUs of a rigid gang; for an elastic one the least it runs on."""
        return self.gpus_min


JOB_NUMBERS = (
    "arrival_s", "remaining_steps", "due_s", "deadline_s", "walltime_s", "tardiness_weight", "weight", "cores",
    "memory_gb", "total_steps", "restart_cost_s",
)  # fmt: skip
JOB_COUNTS = ("gpus_min", "gpus_max", "priority", "units")


@dataclass(frozen=True)
class JobColumns:
    """All jobs of a snapshot by column; row i of every column is job `ids[i]`.

    `numbers[name]` float64[J] for each of JOB_NUMBERS, `counts[name]` int64[J] for each of JOB_COUNTS, `kind` int64[J] into the
    snapshot's kinds; `others[name]` tuples of J values for the rest. Columns are shared between snapshots (copy-on-write): never
    write into them.
    """

    ids: tuple[str, ...]
    kinds: tuple[str, ...]
    numbers: Mapping[str, Floats]
    counts: Mapping[str, Ints]
    others: Mapping[str, tuple[Any, ...]]

    @classmethod
    def of(cls, jobs: Sequence[JobView]) -> JobColumns:
        """Columns of these rows, in their order."""
        numbers = {n: _frozen(np.array([getattr(j, n) for j in jobs], dtype=np.float64)) for n in JOB_NUMBERS}
        counts = {n: _frozen(np.array([getattr(j, n) for j in jobs], dtype=np.int64)) for n in JOB_COUNTS}
        others = {n: tuple(getattr(j, n) for j in jobs) for n in _OTHER_FIELDS}
        return cls(tuple(j.id for j in jobs), tuple(j.kind for j in jobs), numbers, counts, others)

    def row(self, i: int) -> JobView:
        """Row i as a JobView."""
        values: dict[str, Any] = {n: float(c[i]) for n, c in self.numbers.items()}
        values.update({n: int(c[i]) for n, c in self.counts.items()})
        values.update({n: c[i] for n, c in self.others.items()})
        return JobView(id=self.ids[i], kind=self.kinds[i], **values)


_OTHER_FIELDS = tuple(
    n for n in JobView.__dataclass_fields__ if n not in (*JOB_NUMBERS, *JOB_COUNTS, "id", "kind")
)  # fmt: skip


class Jobs(Sequence[JobView]):
    """The jobs of a snapshot: a sequence of lazy rows over `columns`."""

    def __init__(self, columns: JobColumns) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns.ids)

    @overload
    def __getitem__(self, index: int) -> JobView: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[JobView, ...]: ...
    def __getitem__(self, index: int | slice) -> JobView | tuple[JobView, ...]:
        if isinstance(index, slice):
            return tuple(self.columns.row(i) for i in range(*index.indices(len(self))))
        return self.columns.row(range(len(self))[index])

    def __iter__(self) -> Iterator[JobView]:
        return (self.columns.row(i) for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Jobs) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # a sequence compared by value, like a list

    @cached_property
    def position(self) -> Mapping[str, int]:
        """Row of each job id."""
        return {job: i for i, job in enumerate(self.columns.ids)}

    def by_id(self, job: str) -> JobView:
        """The job with this id; KeyError if it is not in the snapshot."""
        return self.columns.row(self.position[job])


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """A measurement wanted: run `steps` steps of `job` on `gpus` GPUs of `gpu_type` on a profiling node.

    `copy` numbers the job's profile runs, so that several may run at once; `since_s` is when it was first wanted.
    """

    job: str
    kind: str
    gpu_type: str
    gpus: int
    steps: int
    copy: int
    since_s: float


@dataclass(frozen=True)
class Snapshot:
    """One cluster at `now_s`. Everything a policy needs, nothing it must not know.

    `round_s` is the time to the next periodic round (ANDREAS' H), `horizon_s` how far `energy` reaches, `seed` makes random
    policies repeatable, `power_cap_w` limits the IT power of all placements together, `memory` is what the policy asked the world
    to keep at the previous round.
    """

    cluster: str
    now_s: float
    round_s: float
    seed: int
    nodes: tuple[NodeView, ...]
    kinds: tuple[KindView, ...]
    jobs: Jobs
    gpu_types: tuple[GpuTypeView, ...] = ()
    energy: tuple[EnergyStep, ...] = ()
    currency: str = "EUR"
    power_cap_w: float | None = None
    horizon_s: float = 86_400.0
    trigger: Trigger = field(default_factory=Trigger)
    profiling: tuple[ProfileRequest, ...] = ()
    memory: Mapping[str, Any] = field(default_factory=dict)
    version: int = SNAPSHOT_VERSION

    @cached_property
    def types(self) -> tuple[str, ...]:
        """Names of the GPU types present, sorted; the column order of every dense view."""
        return tuple(sorted({n.gpu_type for n in self.nodes} | {g.name for g in self.gpu_types}))

    @cached_property
    def type_index(self) -> Mapping[str, int]:
        """Column of each GPU type."""
        return {name: i for i, name in enumerate(self.types)}

    @cached_property
    def kind_index(self) -> Mapping[str, int]:
        """Row of each kind."""
        return {k.id: i for i, k in enumerate(self.kinds)}

    @cached_property
    def node_by_id(self) -> Mapping[str, NodeView]:
        """The nodes by id."""
        return {n.id: n for n in self.nodes}

    @cached_property
    def max_gpus(self) -> int:
        """The most devices of any node, at least 1."""
        return max((len(n.devices) for n in self.nodes), default=1) or 1

    @cached_property
    def throughputs(self) -> Floats:
        """steps/s, float64[K, T, max_gpus + 1]: consolidated throughput of kind k on g GPUs of type t; 0 where unknown."""
        table = np.zeros((len(self.kinds), len(self.types), self.max_gpus + 1))
        for k, kind in enumerate(self.kinds):
            for known in kind.throughputs:
                if not known.spread and known.gpus <= self.max_gpus and known.gpu_type in self.type_index:
                    table[k, self.type_index[known.gpu_type], known.gpus] = known.steps_per_s
        return _frozen(table)

    @cached_property
    def job_kinds(self) -> Ints:
        """int64[J]: row of each job's kind."""
        return _frozen(np.array([self.kind_index[k] for k in self.jobs.columns.kinds], dtype=np.int64))

    @cached_property
    def allowed(self) -> Bools:
        """bool[J, T]: whether job j may run on type t."""
        mask = np.ones((len(self.jobs), len(self.types)), dtype=np.bool_)
        for i, names in enumerate(self.jobs.columns.others["allowed_types"]):
            if names:
                mask[i] = [t in names for t in self.types]
        return _frozen(mask)

    def energy_at(self, at_s: float) -> EnergyStep | None:
        """The prices that hold at `at_s`; the last known ones after the horizon, None where none are known."""
        for step in self.energy:
            if step.from_s <= at_s < step.to_s:
                return step
        return self.energy[-1] if self.energy else None


def _frozen(array: Array) -> Array:
    array.setflags(write=False)
    return array
