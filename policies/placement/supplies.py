"""Resources of nodes and watts of the cluster that are left while jobs are seated."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from policies.andreas.problem import fixed_watts
from policies.contract.validation import TOLERANCE
from policies.gavel.allocation.allocatable import Condition
from policies.gavel.allocation.observe import Observed
from policies.placement.eligibility import capacities, wants_resources
from policies.placement.staying import Stay


@dataclass(frozen=True, slots=True)
class Load:
    """What one process takes of node `node`: resources by name, and devices that nobody else
    uses.
    """

    node: int
    demand: Mapping[str, float]
    gpus: int


class Supplies:
    """`left[n]`: resources of node n by name, None where no job uses any; `watts`: None for any
    number; `used[n]`: devices in use.

    `unlimited`: neither can run out, and nothing is counted.
    """

    def __init__(self, observed: Observed) -> None:
        snapshot, allocatable = observed.snapshot, observed.allocatable
        self.nodes, self.used = allocatable.nodes, list(allocatable.busy)
        self.watts = (
            None
            if snapshot.cap_w is None
            else snapshot.cap_w - fixed_watts(snapshot, observed.outside.stay)
        )
        self.left = _resources(observed) if wants_resources(snapshot) else None
        self.unlimited = self.watts is None and self.left is None

    def take(self, loads: Iterable[Load]) -> bool:
        """Take all of this, if it is there."""
        together = _by_node(loads)
        if not all(self.has(load.node, load.demand) for load in together) or not self.has_watts(
            (a.node, a.gpus) for a in together
        ):
            return False
        for load in together:
            self._use(load)
        return True

    def has(self, n: int, demand: Mapping[str, float]) -> bool:
        """Whether node n has all these resources left."""
        if not demand or self.left is None:
            return True
        left = self.left[n]
        return all(amount <= left.get(name, 0.0) + TOLERANCE for name, amount in demand.items())

    def has_watts(self, gpus: Iterable[tuple[int, int]]) -> bool:
        """Whether so many devices more of each of these nodes can be used."""
        return (
            self.watts is None
            or sum(self.extra_w(n, more) for n, more in gpus) <= self.watts + TOLERANCE
        )

    def extra_w(self, n: int, gpus: int) -> float:
        """Watts that so many devices more in use take on node n; a node without work is closed and
        uses nothing.
        """
        return self._drawn_w(n, self.used[n] + gpus) - self._drawn_w(n, self.used[n])

    def _drawn_w(self, n: int, gpus: int) -> float:
        curve = self.nodes[n].power_w
        return curve[min(gpus, len(curve) - 1)] if gpus and curve else 0.0

    def _use(self, load: Load) -> None:
        if self.watts is not None:
            self.watts -= self.extra_w(load.node, load.gpus)
        self.used[load.node] += load.gpus
        if self.left is not None:
            left = self.left[load.node]
            for name, amount in load.demand.items():
                left[name] = left.get(name, 0.0) - amount


def _by_node(loads: Iterable[Load]) -> Sequence[Load]:
    """The same, each node once."""
    demand: dict[int, Counter[str]] = defaultdict(Counter)
    gpus: Counter[int] = Counter()
    for load in loads:
        demand[load.node].update(load.demand)
        gpus[load.node] += load.gpus
    return [Load(n, of, gpus[n]) for n, of in demand.items()]


def _resources(observed: Observed) -> list[dict[str, float]]:
    """By node, what is left of resources beside profile runs and jobs that stay outside."""
    snapshot, allocatable = observed.snapshot, observed.allocatable
    named = {name for of in snapshot.jobs.columns.others["resources"] for name, _ in of}
    names = ("cores", "memory_gb", *sorted(named))
    left = [
        dict(zip(names, row, strict=True))
        for row in capacities(snapshot, allocatable.nodes, names).tolist()
    ]
    for stay in observed.outside.stay:
        demand = _demand_of(observed, stay)
        for seat in stay.run.ranks:
            for name, amount in demand.items() if seat.node in allocatable.index else ():
                left[allocatable.index[seat.node]][name] -= amount
    return left


def _demand_of(observed: Observed, stay: Stay) -> Mapping[str, float]:
    columns, row = observed.snapshot.jobs.columns, stay.row
    amounts = (
        float(columns.numbers["cores"][row]),
        float(columns.numbers["memory_gb"][row]),
        columns.others["resources"][row],
    )
    return Condition(demand=(int(columns.counts["units"][row]), *amounts)).of_rank(
        len(stay.run.ranks)
    )
