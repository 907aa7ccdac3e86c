"""Snapshot: an immutable, versioned picture of one cluster for policies.

Plain data without secrets or database rows; stored with its round it lets anybody replay the
decision. Jobs are kept in columns (`JobColumns`), so that 100,000 jobs cost milliseconds; a
`JobView` is a lazy row of them. Units are in the names: `_s` seconds, `_w` watts, `_gb` 10**9
bytes, `price_per_kwh` in the cluster's currency. Times count from the Unix epoch (or a simulation's
start).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from foundation.forms import AtLeast0, Form, PlainData
from policies.contract.job_columns import (
    JOB_COUNTS,
    JOB_NUMBERS,
    Bools,
    Floats,
    Ints,
    JobColumns,
    Jobs,
    frozen,
)
from policies.contract.plan import (
    PROFILING,
    TRAINING,
    Placement,
    Purpose,
    RankPlacement,
    Running,
)
from policies.contract.residual import NodesBeside, only_rows, with_profile_runs
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
    "frozen",
]

SNAPSHOT_VERSION = 6


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

    def without(
        self,
        jobs: Collection[int],
        *,
        held: Iterable[Placement] = (),
        profile_runs: Sequence[Placement] | None = None,
    ) -> Snapshot:
        """Return the residual snapshot: without the jobs of these rows, beside `held` placements.

        The jobs that are left out are unknown in it: the GPUs of their placements are held, and
        their nodes have less of everything else. Their profile runs hold what they have. Jobs that
        leave no GPU in use on a node keep it switched on: its power is no longer under the cap.
        `profile_runs`: as if exactly these were under way, of jobs that are left in.
        """
        left = self
        if profile_runs is not None:
            nodes, columns = with_profile_runs(
                self.nodes, self.jobs.columns, self.jobs.position, profile_runs, self.now_s
            )
            left = replace(self, nodes=nodes, jobs=Jobs(columns))
        others = tuple(held)
        if not jobs and not others:
            return left
        columns, position = left.jobs.columns, left.jobs.position
        out = frozenset(jobs)
        kept = [row for row in range(len(columns.ids)) if row not in out]
        beside = NodesBeside(columns, position, kept, others)
        base_w = beside.base_w(left.node_by_id)
        caps = [
            replace(step, power_cap_w=max(0.0, step.power_cap_w - base_w))
            for step in left.power_caps
        ]
        power_cap_w = left.power_cap_w
        if power_cap_w is not None:
            power_cap_w = max(0.0, power_cap_w - base_w)
        return replace(
            left,
            nodes=tuple([beside.node(node) for node in left.nodes]),
            jobs=only_rows(columns, kept),
            power_cap_w=power_cap_w,
            power_caps=tuple(caps),
            profiling=tuple([r for r in left.profiling if position[r.job] not in out]),
        )

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
