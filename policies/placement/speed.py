"""Speed of a job on its seats: the one rule of policies, predictions and both worlds.

Speed = number of workers x per-worker rate of the slowest seat. A worker is a GPU; its rate on a
type is the kind's speed on as many GPUs of that type, consolidated or spread, divided by their
number. Where others share GPUs of the job (colocation):

- with one GPU and one other job: the speed of the pair;
- else its speed alone times the least fraction that any of its GPUs leaves it, since a gang is as
  fast as its slowest process. A GPU leaves it the product, over its co-tenants, of the fractions
  that each pair keeps.

Unknown rates are 0; so are those of two that do not fit into a GPU's memory together. An unknown
rate over several nodes is estimated (`spread_rates`). A job that has its GPUs to itself is as fast
as alone, whatever its share of them. See ADR 0018, 0023.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

from policies.contract.plan import Placement
from policies.contract.snapshot import (
    GpuTypeView,
    KindView,
    NodeView,
    Purpose,
    RankPlacement,
    Snapshot,
    Source,
)
from policies.contract.views import WITHOUT_GPUS
from policies.placement.quota_speed import part_of_speed
from policies.placement.spread_rates import SpreadRates, links_of

TRAINING = Purpose.TRAINING

PairSpeed: TypeAlias = tuple[float, float]
"""steps/s of one job and of the other."""

PairRates: TypeAlias = Mapping[tuple[str, str, str], PairSpeed]
"""By kind, other kind and GPU type."""

CoTenants: TypeAlias = Sequence[tuple[str, Sequence[str]]]
"""Type and kinds of the co-tenants of every shared GPU of a job."""

UNKNOWN: PairSpeed = (0.0, 0.0)


class Speeds:
    """Speeds of these kinds on these nodes."""

    def __init__(
        self,
        kinds: Iterable[KindView],
        nodes: Iterable[NodeView] = (),
        gpu_types: Iterable[GpuTypeView] = (),
    ) -> None:
        """`nodes`, `gpu_types`: from which unknown speeds over several nodes are estimated."""
        self.kinds = {kind.id: kind for kind in kinds}
        self._nodes = tuple(nodes)
        self._gpu_types = tuple(gpu_types)

    @classmethod
    def of(cls, snapshot: Snapshot) -> Speeds:
        """Return the speeds of a snapshot's kinds on its nodes."""
        return cls(snapshot.kinds, snapshot.nodes, snapshot.gpu_types)

    def rates(self, kind: str) -> Mapping[tuple[str, int, bool], float]:
        """Return the known speeds of a kind: steps/s by (GPU type, GPUs, spread)."""
        return self.kinds[kind].rates if kind in self.kinds else {}

    def alone(
        self, kind: str, gpu_types: Collection[str], gpus: int, *, spread: bool = False
    ) -> float:
        """Return the speed on `gpus` unshared GPUs of these types, or without; 0 if unknown.

        Over nodes (`spread`) an unknown speed is estimated.
        """
        if not gpus:
            return self.rates(kind).get(WITHOUT_GPUS, 0.0)
        if len(gpu_types) == 1:
            return self._on_type(kind, next(iter(gpu_types)), gpus, spread=spread)
        rates = [self._on_type(kind, gpu_type, gpus, spread=spread) for gpu_type in gpu_types]
        per_worker = [rate / gpus for rate in rates]
        return gpus * min(per_worker, default=0.0)

    def _on_type(self, kind: str, gpu_type: str, gpus: int, *, spread: bool) -> float:
        """Return the speed on GPUs of one type, known or, over several nodes, estimated."""
        known = self.rates(kind).get((gpu_type, gpus, spread), 0.0)
        if known > 0.0 or not spread:
            return known
        estimate = self.spread_rates.estimate(kind, gpu_type, gpus)
        return 0.0 if estimate is None else estimate.steps_per_s

    def on_ranks(
        self, kind: str, ranks: Sequence[RankPlacement], nodes: Mapping[str, NodeView]
    ) -> float:
        """Return the speed of a gang on these seats alone; 0 if unknown."""
        gpus = 0
        types: set[str] = set()
        for seat in ranks:
            if seat.node not in nodes:
                return 0.0
            gpus += len(seat.devices)
            types.add(nodes[seat.node].gpu_type)
        return self.alone(kind, types, gpus, spread=is_spread(ranks))

    @cached_property
    def spread_rates(self) -> SpreadRates:
        """Estimates of unknown speeds over several nodes."""
        sizes = ((node.gpu_type, len(node.devices), node.link_gbps) for node in self._nodes)
        tflops = {of_type.name: of_type.tflops for of_type in self._gpu_types}
        return SpreadRates(self.kinds.values(), links_of(sizes), tflops)

    @cached_property
    def pairs(self) -> PairRates:
        """Known pairs of kinds."""
        return pair_rates_of(self.kinds.values())

    def pair(self, kind: str, other: str, gpu_type: str) -> PairSpeed:
        """Return the speeds of both on one GPU; 0 of both where either's is unknown or 0."""
        speeds = self.pairs.get((kind, other, gpu_type), UNKNOWN)
        return speeds if min(speeds) > 0.0 else UNKNOWN

    def colocated(self, kind: str, alone: float, gpus: int, co_tenants: CoTenants) -> float:
        """Return the speed of a job on so many GPUs with others there; 0 if unknown.

        `alone`: its speed on them without others.
        """
        if not co_tenants:
            return alone
        if alone <= 0.0:
            return 0.0
        gpu_type, others = co_tenants[0]
        if gpus == 1 and len(others) == 1:
            own, _ = self.pair(kind, others[0], gpu_type)
            return own
        return alone * min(self._fraction_left(kind, *shared) for shared in co_tenants)

    def _fraction_left(self, kind: str, gpu_type: str, others: Sequence[str]) -> float:
        """Return the fraction of its speed on one GPU that `others` on a GPU leave a job."""
        alone = self.alone(kind, (gpu_type,), 1)
        if alone <= 0.0:
            return 0.0 if others else 1.0
        fraction = 1.0
        for other in others:
            own, _ = self.pair(kind, other, gpu_type)
            fraction *= own / alone
        return fraction


class PlanSpeeds:
    """Speeds of a plan's placements, with their co-tenants in it."""

    def __init__(self, snapshot: Snapshot, placements: Iterable[Placement]) -> None:
        self.snapshot = snapshot
        self.speeds = Speeds.of(snapshot)
        holders_of: dict[tuple[str, str], list[Placement]] = defaultdict(list)
        for placement in placements:
            for device in devices_of(placement.ranks):
                holders_of[device].append(placement)
        self._shared = {
            device: holders for device, holders in holders_of.items() if len(holders) > 1
        }

    def of(self, placement: Placement, kind: str | None = None) -> float:
        """Return the speed of a placement; 0 if unknown. `kind`: its job's, if that is newer."""
        kind = self._kind(placement) if kind is None else kind
        alone = self.speeds.on_ranks(kind, placement.ranks, self.snapshot.node_by_id)
        under_quota = part_of_speed(placement.ranks, self._cores(placement))
        if not self._shared:
            return alone * under_quota
        co_tenants = self._co_tenants(placement)
        return self.speeds.colocated(kind, alone, placement.gpus, co_tenants) * under_quota

    def is_assumed(self, kind: str) -> bool:
        """Return True if the speed of the kind is only assumed."""
        return kind in self.speeds.kinds and self.speeds.kinds[kind].is_assumed

    def _co_tenants(self, placement: Placement) -> CoTenants:
        """Return the others in the plan on each GPU of a placement that is shared."""
        co_tenants = []
        for node, device in devices_of(placement.ranks):
            holders = self._shared.get((node, device), ())
            kinds = [self._kind(other) for other in holders if other.key != placement.key]
            if kinds:
                co_tenants.append((self.snapshot.node_by_id[node].gpu_type, kinds))
        return co_tenants

    def _cores(self, placement: Placement) -> float:
        """Return the cores of a unit of a placement's job; 0 if the snapshot does not list it."""
        jobs = self.snapshot.jobs
        row = jobs.position.get(placement.job)
        return 0.0 if row is None else float(jobs.columns.numbers["cores"][row])

    def _kind(self, placement: Placement) -> str:
        """Return the kind of a placement's job; "" if the snapshot does not list it."""
        row = self.snapshot.jobs.position.get(placement.job)
        return "" if row is None else self.snapshot.jobs.columns.kinds[row]


def pair_rates_of(kinds: Iterable[KindView]) -> PairRates:
    """Return every known pair of kinds, both ways round, by its best source."""
    # 1. All pairs, those of the best source first.
    rank = {source: i for i, source in enumerate(Source)}
    known = [(kind.id, pair) for kind in kinds for pair in kind.pairs]
    known.sort(key=lambda kind_and_pair: rank[kind_and_pair[1].source])

    # 2. The first of each counts. Two jobs of one kind are equally fast.
    rates: dict[tuple[str, str, str], PairSpeed] = {}
    for kind, pair in known:
        own = pair.steps_per_s
        others = pair.other_steps_per_s
        if kind == pair.other:
            own = others = (own + others) / 2
        rates.setdefault((kind, pair.other, pair.gpu_type), (own, others))
        rates.setdefault((pair.other, kind, pair.gpu_type), (others, own))
    return rates


class LaunchTimes:
    """Seconds from a job's launch to its first step, by row of a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._setup_s = {kind.id: kind.setup_s for kind in snapshot.kinds}
        columns = snapshot.jobs.columns
        self._kinds = columns.kinds
        self._runs = columns.others["running"]
        self._remaining_steps = columns.numbers["remaining_steps"].tolist()
        self._total_steps = columns.numbers["total_steps"].tolist()
        self._restart_s = columns.numbers["restart_cost_s"].tolist()

    def of(self, row: int) -> float:
        """Return the set-up time; of a job that has run before, at least its restart cost."""
        setup_s: float = self._setup_s[self._kinds[row]]
        restart_s: float = self._restart_s[row]
        has_run = self._remaining_steps[row] < self._total_steps[row]
        if has_run or any(run.purpose is TRAINING for run in self._runs[row]):
            return max(setup_s, restart_s)
        return max(setup_s, 0.0)


def is_spread(ranks: Sequence[RankPlacement]) -> bool:
    """Return True if the seats are on several nodes."""
    return any(seat.node != ranks[0].node for seat in ranks[1:])


def devices_of(ranks: Iterable[RankPlacement]) -> Iterable[tuple[str, str]]:
    """Yield (node, device) of all seats."""
    return ((seat.node, device) for seat in ranks for device in seat.devices)
