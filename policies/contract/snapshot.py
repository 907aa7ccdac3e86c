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

SNAPSHOT_VERSION = 7


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
        unknown = given.keys() - fields.keys()
        if unknown:
            raise TypeError(f"a snapshot has no {', '.join(sorted(unknown))}")

        # 1. The fields, without `__init__`: a simulation makes many snapshots.
        own = vars(self)
        following = object.__new__(type(self))
        vars(following).update({name: own[name] for name in fields}, **given)

        # 2. Cached properties that are still right.
        still_right = []
        if "nodes" not in given and "gpu_types" not in given:
            still_right += ["types", "type_index", "max_gpus"]
        if following.kinds == self.kinds:
            still_right.append("kind_index")
            if following.types == self.types and following.max_gpus == self.max_gpus:
                still_right.append("throughputs")
        for name in still_right:
            if name in own:
                vars(following)[name] = own[name]
        return following

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
        # 1. The profile runs.
        whole = self
        if profile_runs is not None:
            nodes, columns = with_profile_runs(
                self.nodes, self.jobs.columns, self.jobs.position, profile_runs, self.now_s
            )
            whole = replace(self, nodes=nodes, jobs=Jobs(columns))
        others = tuple(held)
        if not jobs and not others:
            return whole

        # 2. Nodes beside the jobs that are left out.
        columns = whole.jobs.columns
        position = whole.jobs.position
        left_out = frozenset(jobs)
        kept = [row for row in range(len(columns.ids)) if row not in left_out]
        beside = NodesBeside(columns, position, kept, others)

        # 3. The power that nodes without a GPU in use draw for them is no longer under a cap.
        base_w = beside.base_w(whole.node_by_id)
        power_cap_w = whole.power_cap_w
        if power_cap_w is not None:
            power_cap_w = max(0.0, power_cap_w - base_w)
        power_caps = [
            replace(step, power_cap_w=max(0.0, step.power_cap_w - base_w))
            for step in whole.power_caps
        ]
        profiling = [
            request for request in whole.profiling if position[request.job] not in left_out
        ]
        return replace(
            whole,
            nodes=tuple([beside.node(node) for node in whole.nodes]),
            jobs=only_rows(columns, kept),
            power_cap_w=power_cap_w,
            power_caps=tuple(power_caps),
            profiling=tuple(profiling),
        )

    @cached_property
    def canonical_bytes(self) -> bytes:
        """Canonical JSON, stored by a round. FormError where a number has none (NaN, wrong inf)."""
        return FORM.canonical_bytes(self)

    @cached_property
    def types(self) -> tuple[str, ...]:
        """GPU types present, sorted: the column order of every dense view."""
        names = {node.gpu_type for node in self.nodes}
        names.update([gpu_type.name for gpu_type in self.gpu_types])
        return tuple(sorted(names))

    @cached_property
    def type_index(self) -> Mapping[str, int]:
        """Position in `types` by GPU type."""
        return {name: i for i, name in enumerate(self.types)}

    @cached_property
    def kind_index(self) -> Mapping[str, int]:
        """Position in `kinds` by id."""
        return {kind.id: i for i, kind in enumerate(self.kinds)}

    @cached_property
    def node_by_id(self) -> Mapping[str, NodeView]:
        """Nodes by id."""
        return {node.id: node for node in self.nodes}

    @cached_property
    def drains(self) -> Mapping[str, float]:
        """Time (s) at which each draining node that has such a time must be empty, by node."""
        ends_s: dict[str, float] = {}
        for node in self.nodes:
            if node.state is NodeState.DRAINING and node.drain_until_s is not None:
                ends_s[node.id] = node.drain_until_s
        return ends_s

    @cached_property
    def max_gpus(self) -> int:
        """Most devices of any node, at least 1."""
        return max(1, max([len(node.devices) for node in self.nodes], default=1))

    @cached_property
    def throughputs(self) -> Floats:
        """float64[K, T, max_gpus + 1]: consolidated steps/s of kind k on g GPUs of type t, or 0."""
        table = np.zeros((len(self.kinds), len(self.types), self.max_gpus + 1))
        for k, kind in enumerate(self.kinds):
            table[k, :, 0] = kind.rates.get(WITHOUT_GPUS, 0.0)
            for known in kind.throughputs:
                if known.spread or not known.is_known or not known.gpus:
                    continue
                if known.gpus <= self.max_gpus and known.gpu_type in self.type_index:
                    table[k, self.type_index[known.gpu_type], known.gpus] = known.steps_per_s
        return frozen(table)

    @cached_property
    def job_kinds(self) -> Ints:
        """int64[J]: position in `kinds` of each job's kind."""
        positions = [self.kind_index[kind] for kind in self.jobs.columns.kinds]
        return frozen(np.array(positions, dtype=np.int64))

    @cached_property
    def allowed(self) -> Bools:
        """bool[J, T]: True where job j may run on type t."""
        mask = np.ones((len(self.jobs), len(self.types)), dtype=np.bool_)
        for i, names in enumerate(self.jobs.columns.others["allowed_types"]):
            if names:
                mask[i] = [t in names for t in self.types]
        return frozen(mask)

    def energy_at(self, at_s: float) -> PriceInterval | None:
        """Return the prices at a time; None if none are known.

        Those of the first interval hold before it, too, and those of the last one after it.
        """
        for interval in self.energy:
            if at_s < interval.to_s:
                return interval
        return self.energy[-1] if self.energy else None

    def cap_at(self, at_s: float) -> float | None:
        """Return the watts that all placements together may use at a time; None if unlimited."""
        caps_w = [step.power_cap_w for step in self.power_caps if step.from_s <= at_s < step.to_s]
        if self.power_cap_w is not None:
            caps_w.append(self.power_cap_w)
        return min(caps_w, default=None)

    @cached_property
    def caps_ahead(self) -> tuple[tuple[float, float], ...]:
        """(time in s, watts): the cap now, and those up to the next periodic round, included."""
        if self.power_cap_w is None and not self.power_caps:
            return ()
        next_round_s = self.now_s + self.round_s
        starts_s = {step.from_s for step in self.power_caps}
        ahead_s = sorted([start_s for start_s in starts_s if self.now_s < start_s <= next_round_s])
        caps = []
        for at_s in (self.now_s, *ahead_s):
            cap_w = self.cap_at(at_s)
            if cap_w is not None:
                caps.append((at_s, cap_w))
        return tuple(caps)

    @cached_property
    def cap_w(self) -> float | None:
        """Lowest cap in watts from now to the next periodic round; None if unlimited."""
        return min((cap_w for _, cap_w in self.caps_ahead), default=None)


FORM = Form(Snapshot, "snapshot")


def profile_runs(snapshot: Snapshot) -> Iterator[tuple[str, Running]]:
    """Yield (job, run) of every profile run under way."""
    ids = snapshot.jobs.columns.ids
    for row, runs in enumerate(snapshot.jobs.columns.others["running"]):
        for run in runs:
            if run.purpose is PROFILING:
                yield ids[row], run
