"""Snapshot: an immutable, versioned picture of one cluster for policies.

Plain data without secrets or database rows; stored with its round it lets anybody replay the
decision. Jobs are kept in columns (`JobColumns`), so that 100,000 jobs cost milliseconds; a
`JobView` is a lazy row of them. Units are in the names: `_s` seconds, `_w` watts, `_gb` 10**9
bytes, `price_per_kwh` in the cluster's currency. Times count from the Unix epoch (or a simulation's
start).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from policies.contract.forms import AtLeast0, Form, PlainData
from policies.contract.plan import PROFILING, TRAINING, Purpose, RankPlacement, Running
from policies.contract.views import (
    WITHOUT_GPUS,
    DeviceView,
    GpuTypeView,
    JobPhase,
    JobView,
    KindView,
    NodeRole,
    NodeState,
    NodeView,
    PairThroughput,
    PowerCapStep,
    PriceInterval,
    ProfileRequest,
    ResourceUse,
    SlotHold,
    Source,
    TeamOrder,
    TeamView,
    Throughput,
)

__all__ = [
    "JOB_COUNTS",
    "JOB_NUMBERS",
    "PROFILING",
    "SNAPSHOT_VERSION",
    "TRAINING",
    "Bools",
    "DeviceView",
    "Floats",
    "GpuTypeView",
    "Ints",
    "JobColumns",
    "JobPhase",
    "JobView",
    "Jobs",
    "KindView",
    "NodeRole",
    "NodeState",
    "NodeView",
    "PairThroughput",
    "PowerCapStep",
    "PriceInterval",
    "ProfileRequest",
    "Purpose",
    "RankPlacement",
    "ResourceUse",
    "Running",
    "SlotHold",
    "Snapshot",
    "Source",
    "TeamOrder",
    "TeamView",
    "Throughput",
    "Trigger",
]

SNAPSHOT_VERSION = 6

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Array = TypeVar("Array", bound=np.ndarray[Any, Any])

JOB_NUMBERS = (
    "arrival_s", "remaining_steps", "due_s", "deadline_s", "walltime_s", "tardiness_weight",
    "weight", "cores",
    "memory_gb", "total_steps", "restart_cost_s",
    "min_run_s", "waiting_cost", "expected_run_s",
)  # fmt: skip
JOB_COUNTS = ("gpus_min", "gpus_max", "priority", "units", "units_per_node", "nodes")


@dataclass(frozen=True)
class JobColumns:
    """Jobs of a snapshot by column; row i of every column is job `ids[i]`.

    `numbers[name]` float64[J] for JOB_NUMBERS, `counts[name]` int64[J] for JOB_COUNTS, `kind`
    int64[J] into the snapshot's kinds; `others[name]` tuples of J values. Columns are shared
    between snapshots: never write into them.
    """

    ids: tuple[str, ...]
    kinds: tuple[str, ...]
    numbers: Mapping[str, Floats]
    counts: Mapping[str, Ints]
    others: Mapping[str, tuple[Any, ...]]
    part_of_gpus_only: bool = False
    """True for a part of columns that are known to be `gpus_only`."""

    @classmethod
    def of(cls, jobs: Sequence[JobView]) -> JobColumns:
        numbers = {
            n: frozen(np.array([getattr(j, n) for j in jobs], dtype=np.float64))
            for n in JOB_NUMBERS
        }
        counts = {
            n: frozen(np.array([getattr(j, n) for j in jobs], dtype=np.int64)) for n in JOB_COUNTS
        }
        others = {n: tuple(getattr(j, n) for j in jobs) for n in _OTHER_FIELDS}
        return cls(tuple(j.id for j in jobs), tuple(j.kind for j in jobs), numbers, counts, others)

    @cached_property
    def gpus_only(self) -> bool:
        """Return True if no job uses anything of its node but GPUs."""
        if self.part_of_gpus_only:
            return True
        plain = (self.numbers["cores"], self.numbers["memory_gb"])
        uses = any(amounts.any() for amounts in plain) or any(self.others["resources"])
        return not uses

    @cached_property
    def unit_keys(self) -> Sequence[tuple[Any, ...]]:
        """Columns that a batch job's request depends on: equal jobs fit where any of them fits."""
        asked = ("gpus_min", "units", "units_per_node", "nodes", "cores", "memory_gb")
        named = [self.listed[name] for name in asked]
        others = [self.others[n] for n in ("resources", "allowed_types", "labels", "may_mix")]
        return list(zip(*named, *others, strict=True))

    @cached_property
    def listed(self) -> Mapping[str, list[Any]]:
        """Numbers and counts as lists, which are several times as fast to read one by one."""
        return _Listed(self)

    @cached_property
    def told_run_s(self) -> list[float]:
        """Run time of each batch job as policies are told, its walltime at most; inf if unknown."""
        numbers = self.numbers
        told: list[float] = np.minimum(numbers["expected_run_s"], numbers["walltime_s"]).tolist()
        return told

    def row(self, i: int) -> JobView:
        values: dict[str, Any] = {n: float(c[i]) for n, c in self.numbers.items()}
        values.update({n: int(c[i]) for n, c in self.counts.items()})
        values.update({n: c[i] for n, c in self.others.items()})
        return JobView(id=self.ids[i], kind=self.kinds[i], **values)


class _Listed(dict[str, list[Any]]):
    """Columns as lists, made when they are first read."""

    def __init__(self, columns: JobColumns) -> None:
        super().__init__()
        self._columns = columns

    def __missing__(self, name: str) -> list[Any]:
        of = self._columns
        column: Ints | Floats = of.counts[name] if name in JOB_COUNTS else of.numbers[name]
        made: list[Any] = column.tolist()
        self[name] = made
        return made


_OTHER_FIELDS = tuple(
    n for n in JobView.__dataclass_fields__ if n not in (*JOB_NUMBERS, *JOB_COUNTS, "id", "kind")
)  # fmt: skip


class Jobs(Sequence[JobView]):
    """Jobs of a snapshot: a sequence of lazy rows over `columns`."""

    def __init__(self, columns: JobColumns, position: Mapping[str, int] | None = None) -> None:
        """Use `position`, the rows by job id, where it is known already."""
        self.columns, self._position = columns, position

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

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        rows = handler.generate_schema(tuple[JobView, ...])
        return core_schema.no_info_after_validator_function(
            lambda given: cls(JobColumns.of(given)),
            rows,
            serialization=core_schema.plain_serializer_function_ser_schema(
                tuple, return_schema=rows
            ),
        )

    @property
    def position(self) -> Mapping[str, int]:
        if self._position is None:
            self._position = {job: i for i, job in enumerate(self.columns.ids)}
        return self._position

    def by_id(self, job: str) -> JobView:
        """Job with this id; KeyError if it is not in the snapshot."""
        return self.columns.row(self.position[job])


def frozen(array: Array) -> Array:
    """Make the array read-only and return it."""
    array.setflags(write=False)
    return array


@dataclass(frozen=True, slots=True)
class Trigger:
    """Reasons of the coalesced events of a round, and what they touched (ids)."""

    reasons: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """One cluster at `now_s`: all that a policy may know.

    `round_s` is the time to the next periodic round (ANDREAS' H), `horizon_s` how far `energy`
    reaches, `seed` makes random policies repeatable, `memory` is the previous plan's. `power_cap_w`
    always limits the IT power of all placements, and each of `power_caps` while it holds; a plan
    must fit under `cap_w`. `emissions_cost_per_kg` of CO2 counts in decisions, not in bills. A team
    missing from `teams` has a weight of 1.
    """

    cluster: str
    now_s: float
    round_s: AtLeast0
    seed: int
    nodes: tuple[NodeView, ...]
    kinds: tuple[KindView, ...]
    jobs: Jobs
    gpu_types: tuple[GpuTypeView, ...] = ()
    energy: tuple[PriceInterval, ...] = ()
    currency: str = "EUR"
    power_cap_w: AtLeast0 | None = None
    horizon_s: AtLeast0 = 86_400.0
    trigger: Trigger = field(default_factory=Trigger)
    profiling: tuple[ProfileRequest, ...] = ()
    memory: PlainData = field(default_factory=dict)
    power_caps: tuple[PowerCapStep, ...] = ()
    emissions_cost_per_kg: AtLeast0 = 0.0
    teams: tuple[TeamView, ...] = ()
    version: int = SNAPSHOT_VERSION

    def following(self, **given: Any) -> Snapshot:
        """Return the next snapshot: this one with some fields changed; TypeError for unknown
        fields.

        It shares values derived from kinds, and from the types and sizes of nodes, while these are
        equal.
        """
        fields = type(self).__dataclass_fields__
        if unknown := given.keys() - fields.keys():
            raise TypeError(f"a snapshot has no {', '.join(sorted(unknown))}")
        known, after = vars(self), object.__new__(type(self))
        vars(after).update({name: known[name] for name in fields}, **given)
        replaced = not given.keys().isdisjoint(("nodes", "gpu_types"))
        shared = [] if replaced else ["types", "type_index", "max_gpus"]
        if after.kinds == self.kinds:
            shared.append("kind_index")
            if (after.types, after.max_gpus) == (self.types, self.max_gpus):
                shared.append("throughputs")
        vars(after).update({name: known[name] for name in shared if name in known})
        return after

    @cached_property
    def canonical_bytes(self) -> bytes:
        """Canonical JSON, stored by a round. FormError where a number has none (NaN, wrong inf)."""
        return FORM.canonical_bytes(self)

    @cached_property
    def types(self) -> tuple[str, ...]:
        """GPU types present, sorted: the column order of every dense view."""
        present = [n.gpu_type for n in self.nodes]
        return tuple(sorted({*present, *[g.name for g in self.gpu_types]}))

    @cached_property
    def type_index(self) -> Mapping[str, int]:
        return {name: i for i, name in enumerate(self.types)}

    @cached_property
    def kind_index(self) -> Mapping[str, int]:
        return {k.id: i for i, k in enumerate(self.kinds)}

    @cached_property
    def node_by_id(self) -> Mapping[str, NodeView]:
        return {n.id: n for n in self.nodes}

    @cached_property
    def drains(self) -> Mapping[str, float]:
        """Return when each node that drains, and has such a time, must be empty."""
        nodes = [n for n in self.nodes if n.state is NodeState.DRAINING]
        return {n.id: n.drain_until_s for n in nodes if n.drain_until_s is not None}

    @cached_property
    def max_gpus(self) -> int:
        """The most devices of any node, at least 1."""
        return max([len(n.devices) for n in self.nodes], default=1) or 1

    @cached_property
    def throughputs(self) -> Floats:
        """float64[K, T, max_gpus + 1]: consolidated steps/s of kind k on g GPUs of type t, or 0."""
        table = np.zeros((len(self.kinds), len(self.types), self.max_gpus + 1))
        of_type, most = self.type_index, self.max_gpus
        for k, kind in enumerate(self.kinds):
            table[k, :, 0] = kind.rates.get(WITHOUT_GPUS, 0.0)
            for known in kind.throughputs:
                if known.spread or not known.is_known or not known.gpus:
                    continue
                if known.gpus <= most and known.gpu_type in of_type:
                    table[k, of_type[known.gpu_type], known.gpus] = known.steps_per_s
        return frozen(table)

    @cached_property
    def job_kinds(self) -> Ints:
        """int64[J]: row of each job's kind."""
        rows = [self.kind_index[kind] for kind in self.jobs.columns.kinds]
        return frozen(np.array(rows, dtype=np.int64))

    @cached_property
    def allowed(self) -> Bools:
        """bool[J, T]: True where job j may run on type t."""
        mask = np.ones((len(self.jobs), len(self.types)), dtype=np.bool_)
        for i, names in enumerate(self.jobs.columns.others["allowed_types"]):
            if names:
                mask[i] = [t in names for t in self.types]
        return frozen(mask)

    def energy_at(self, at_s: float) -> PriceInterval | None:
        """Prices at `at_s`; the first before, the last after; None if none are known."""
        for step in self.energy:
            if at_s < step.to_s:
                return step
        return self.energy[-1] if self.energy else None

    def cap_at(self, at_s: float) -> float | None:
        """Watts that all placements together may use at `at_s`; None if unlimited."""
        caps = [s.power_cap_w for s in self.power_caps if s.from_s <= at_s < s.to_s]
        return min([*caps, *([] if self.power_cap_w is None else [self.power_cap_w])], default=None)

    @cached_property
    def caps_ahead(self) -> tuple[tuple[float, float], ...]:
        """(since, watts): the cap now, and those up to the next periodic round, included."""
        if self.power_cap_w is None and not self.power_caps:
            return ()
        starts = {
            s.from_s for s in self.power_caps if self.now_s < s.from_s <= self.now_s + self.round_s
        }
        found = ((at_s, self.cap_at(at_s)) for at_s in (self.now_s, *sorted(starts)))
        return tuple((at_s, cap) for at_s, cap in found if cap is not None)

    @cached_property
    def cap_w(self) -> float | None:
        """Lowest cap in watts from now to the next periodic round; None if unlimited."""
        return min((cap for _, cap in self.caps_ahead), default=None)


FORM = Form(Snapshot, "snapshot")


def profile_runs(snapshot: Snapshot) -> Iterator[tuple[str, Running]]:
    """Yield (job, run) of every profile run under way."""
    ids = snapshot.jobs.columns.ids
    for row, runs in enumerate(snapshot.jobs.columns.others["running"]):
        for run in runs:
            if run.purpose is PROFILING:
                yield ids[row], run
