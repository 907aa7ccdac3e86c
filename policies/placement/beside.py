"""How fast jobs are that have a GPU together: the one rule by which policies, rounds and the
simulated world go.

Known are pairs of kinds on one GPU (`KindView.pairs`). From them follows, for a job with others on
its GPUs:

- with one GPU and one other there: what is known of the pair;
- else its speed alone times the least fraction that any of its GPUs leaves it, for a gang goes on
  as its slowest process does. A GPU leaves it the product, over those beside it, of the fractions
  that each pair keeps of the speed alone with one GPU.

Two that are not known beside each other, or do not fit into a GPU's memory together, have speed 0.
Who has no other on its GPUs is as fast as alone, whatever share of them it holds: the share says
what others may have. See ADR 0018.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from policies.contract.plan import Placement
from policies.contract.snapshot import KindView, RankSeat, Snapshot, Source

Sides: TypeAlias = tuple[float, float]
"""steps/s of one job and of the other."""

PairRates: TypeAlias = Mapping[tuple[str, str, str], Sides]
"""By kind, other kind and GPU type."""

Shared: TypeAlias = Sequence[tuple[str, Sequence[str]]]
"""Of every GPU of a job on which others are: its type, and their kinds."""

NOTHING: Sides = (0.0, 0.0)


def pair_rates_of(kinds: Iterable[KindView]) -> PairRates:
    """Every pair of kinds that is known, both ways round, the best known source of each; two jobs
    of one kind are equally fast.
    """
    found: dict[tuple[str, str, str], Sides] = {}
    rank = {source: i for i, source in enumerate(Source)}
    known = [(rank[p.source], kind.id, p) for kind in kinds for p in kind.pairs]
    for _, kind, p in sorted(known, key=lambda k: k[0]):
        own, others = p.steps_per_s, p.other_steps_per_s
        if kind == p.other:
            own = others = (own + others) / 2
        found.setdefault((kind, p.other, p.gpu_type), (own, others))
        found.setdefault((p.other, kind, p.gpu_type), (others, own))
    return found


class Beside:
    """What these kinds keep of their speed beside each other."""

    def __init__(self, kinds: Sequence[KindView]) -> None:
        self.rates = pair_rates_of(kinds)
        self._alone = {
            (k.id, t.gpu_type): t.steps_per_s
            for k in kinds
            for t in k.throughputs
            if t.gpus == 1 and not t.spread
        }

    def sides(self, kind: str, other: str, gpu_type: str) -> Sides:
        """steps/s of both on one GPU; 0 of both where either's is not known or 0."""
        found = self.rates.get((kind, other, gpu_type), NOTHING)
        return found if min(found) > 0.0 else NOTHING

    def steps_per_s(self, kind: str, alone: float, gpus: int, shared: Shared) -> float:
        """Speed of a job on so many GPUs, `alone` without others there, with those of `shared`; 0
        where it is not known.
        """
        if not shared:
            return alone
        gpu_type, others = shared[0]
        if gpus == 1 and len(others) == 1:
            return self.sides(kind, others[0], gpu_type)[0] if alone > 0.0 else 0.0
        return alone * min(self._kept(kind, of_type, beside) for of_type, beside in shared)

    def _kept(self, kind: str, gpu_type: str, others: Sequence[str]) -> float:
        """The fraction of its speed with one GPU that a GPU leaves a job."""
        alone, kept = self._alone.get((kind, gpu_type), 0.0), 1.0
        for other in others:
            kept *= self.sides(kind, other, gpu_type)[0] / alone if alone > 0.0 else 0.0
        return kept


def beside_of(snapshot: Snapshot) -> Beside:
    """What a snapshot's kinds keep beside each other; kept as long as the kinds are the same."""
    if "beside" not in snapshot.lasting:
        snapshot.lasting["beside"] = Beside(snapshot.kinds)
    found: Beside = snapshot.lasting["beside"]
    return found


class Expected:
    """How fast the jobs of a plan are, beside those that it puts on the same GPUs."""

    def __init__(self, snapshot: Snapshot, placements: Iterable[Placement]) -> None:
        self.snapshot = snapshot
        on: dict[tuple[str, str], list[Placement]] = defaultdict(list)
        for placement in placements:
            for key in devices_of(placement.ranks):
                on[key].append(placement)
        self._together = {key: holders for key, holders in on.items() if len(holders) > 1}

    def steps_per_s(self, placement: Placement, alone: float) -> float:
        """Speed of a placement that without others there is `alone`; 0 where it is not known."""
        if not self._together:
            return alone
        beside = beside_of(self.snapshot)
        return beside.steps_per_s(
            self._kind(placement), alone, placement.gpus, self._shared(placement)
        )

    def _shared(self, placement: Placement) -> Shared:
        found = []
        for node, device in devices_of(placement.ranks):
            others = [p for p in self._together.get((node, device), ()) if p.key != placement.key]
            if others:
                found.append(
                    (self.snapshot.node_by_id[node].gpu_type, [self._kind(p) for p in others])
                )
        return found

    def _kind(self, placement: Placement) -> str:
        row = self.snapshot.jobs.position.get(placement.job)
        return "" if row is None else self.snapshot.jobs.columns.kinds[row]


def devices_of(ranks: Iterable[RankSeat]) -> Iterable[tuple[str, str]]:
    """(node, device) of all seats."""
    return ((seat.node, device) for seat in ranks for device in seat.devices)
