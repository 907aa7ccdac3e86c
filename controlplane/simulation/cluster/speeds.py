"""True speeds of jobs, and jobs that no node can ever run."""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple

from policies.contract.labels import worded
from policies.contract.plan import available, demanded, seat_demand
from policies.contract.snapshot import (
    GpuTypeView,
    JobColumns,
    KindView,
    NodeRole,
    NodeView,
    PowerCapStep,
    RankPlacement,
)
from policies.contract.views import WITHOUT_GPUS
from policies.placement.cluster_state import ClusterState
from policies.placement.layout import Layout
from policies.placement.priced_options import JobRequests
from policies.placement.speed import Speeds as KindSpeeds

_FIELDS = attrgetter("gpu_type", "cores", "memory_gb", "resources", "labels", "role", "power_w")


class _Asked(NamedTuple):
    kind: str
    least: int
    most: int
    types: tuple[str, ...]
    labels: tuple[str, ...]
    demand: tuple[tuple[str, float], ...]
    may_mix: bool


class Speeds:
    """True throughputs by kind, and the best of them by request."""

    def __init__(
        self,
        nodes: Iterable[NodeView],
        kinds: Iterable[KindView],
        cap_w: float | None = None,
        gpu_types: Iterable[GpuTypeView] = (),
    ) -> None:
        self.nodes = {n.id: n for n in nodes}
        self.known = KindSpeeds(kinds, self.nodes.values(), gpu_types)
        self.kinds = self.known.kinds
        self.cap_w = inf if cap_w is None else cap_w
        self._best: dict[_Asked, tuple[float, str]] = {}
        self._best_units: dict[tuple[Any, ...], tuple[float, str]] = {}
        self._shapes = _shapes(self.nodes.values())

    def of(self, kind: str, ranks: Sequence[RankPlacement]) -> float:
        """steps/s of a job of this kind on these seats; 0 if unknown."""
        return self.known.on_ranks(kind, ranks, self.nodes)

    def alone(self, columns: JobColumns, row: int, ranks: Sequence[RankPlacement]) -> float:
        """steps/s of a job without co-tenants on these seats; a batch job's are anywhere alike."""
        kind = columns.kinds[row]
        return self.without_gpus(kind) if columns.others["batch"][row] else self.of(kind, ranks)

    def without_gpus(self, kind: str) -> float:
        """steps/s of a kind that is as fast on every node; 0 if unknown."""
        return self.known.rates(kind).get(WITHOUT_GPUS, 0.0)

    def best(self, columns: JobColumns, row: int) -> tuple[float, str]:
        """Return (steps/s at the job's fastest, ""), or (0, reason why no node can ever run it)."""
        counts, others = columns.counts, columns.others
        if others["batch"][row] or not counts["gpus_max"][row]:
            return self._of_batch(columns, row)
        demand = () if columns.gpus_only else _demand(columns, row)
        asked = _Asked(
            columns.kinds[row],
            int(counts["gpus_min"][row]),
            int(counts["gpus_max"][row]),
            others["allowed_types"][row],
            others["labels"][row],
            demand,
            bool(others["may_mix"][row]),
        )
        found = self._best.get(asked)
        if found is None:
            found = self._best[asked] = self._find(asked)
        return found

    def _of_batch(self, columns: JobColumns, row: int) -> tuple[float, str]:
        """Return the same of a batch job or one without GPUs, whose units must all fit at once."""
        key = columns.kinds[row], columns.unit_keys[row]
        if key not in self._best_units:
            self._best_units[key] = self._find_units(columns, row)
        return self._best_units[key]

    def _find_units(self, columns: JobColumns, row: int) -> tuple[float, str]:
        rate = self.without_gpus(columns.kinds[row])
        if rate <= 0.0:
            return 0.0, f"no speed of kind {columns.kinds[row]} without GPUs is known"
        named = [name for name, _ in columns.others["resources"][row]]
        layout = Layout(tuple(self.nodes.values()), ("cores", "memory_gb", *named))
        request = JobRequests(columns, layout).batch(row)
        empty = ClusterState(layout)
        for n, node in enumerate(layout.nodes):
            if node.role is NodeRole.PROFILING:
                empty.close(n)
        if empty.find(request) is not None:
            return rate, ""
        return 0.0, "its units do not fit on the empty cluster"

    def _find(self, asked: _Asked) -> tuple[float, str]:
        if not self.nodes:
            return 0.0, "the cluster has no nodes"
        types = asked.types
        nodes = [n for n in self._shapes if n.role is not NodeRole.PROFILING]
        of_type = [n for n in nodes if not types or n.gpu_type in types]
        labelled = [n for n in of_type if set(asked.labels) <= set(n.labels)]
        roomy = [n for n in labelled if _has(n, asked.demand)]
        if not of_type and types:
            return 0.0, f"no node for training has GPUs of type {' or '.join(types)}"
        if not of_type:
            return 0.0, "no node is for training"
        if not labelled:
            return 0.0, f"no node that suits it has {_missing_labels(asked.labels, of_type)}"
        if not roomy:
            return 0.0, f"no node that suits it has {_missing_amounts(asked.demand, labelled)}"
        return self._fastest(asked, roomy)

    def _fastest(self, asked: _Asked, nodes: Sequence[NodeView]) -> tuple[float, str]:
        least, most = asked.least, asked.most
        large = [n for n in nodes if len(n.devices) >= least]
        spread = self._over_nodes(asked, nodes, is_wide=not large)
        if not large and not spread:
            largest = max(len(n.devices) for n in nodes)
            return (
                0.0,
                f"it needs {least} GPUs on one node, and the largest suitable node has {largest}",
            )
        known = self.known.rates(asked.kind)
        found = [
            (known.get((n.gpu_type, g, False), 0.0), n, g)
            for n in large
            for g in range(least, min(most, len(n.devices)) + 1)
        ]
        best = max([*(rate for rate, _, _ in found), *spread], default=0.0)
        if best <= 0.0:
            kind = self.kinds.get(asked.kind)
            name, types = (kind and kind.name) or asked.kind, sorted({n.gpu_type for n in nodes})
            count = f"{least}" if least == most else f"{least} to {most}"
            where = f"{count} GPU{'s' * (most != 1)} of {' or '.join(types)}"
            return 0.0, f"no speed of kind {name} is known on {where}"
        watts = min((n.draw_w(g) for rate, n, g in found if rate > 0.0), default=0.0)
        if watts > self.cap_w:
            cap = f"the power cap never exceeds {self.cap_w:g} W"
            return 0.0, f"it needs at least {watts:g} W, and {cap}"
        return best, ""

    def _over_nodes(
        self, asked: _Asked, shapes: Sequence[NodeView], *, is_wide: bool
    ) -> list[float]:
        """Return speeds of gangs over several nodes of these shapes with enough devices.

        Gangs that may mix types have the fastest types, at the speed of their slowest. Of a gang
        that no node can hold (`is_wide`) unknown speeds are estimated.
        """
        fitting = {_shape(n) for n in shapes}
        nodes = [n for n in self.nodes.values() if _shape(n) in fitting]
        devices = Counter(n.gpu_type for n in nodes for _ in n.devices)
        counts = {g for _, g, spread in self.known.rates(asked.kind) if spread}
        if is_wide:
            counts |= {asked.least, min(asked.most, devices.total())}

        rates = []
        for gpus in sorted(count for count in counts if asked.least <= count <= asked.most):
            speeds = {t: self._spread_rate(asked.kind, t, gpus, is_wide=is_wide) for t in devices}
            gathered = 0
            for gpu_type in sorted(devices, key=lambda t: (-speeds[t], t)):
                gathered += devices[gpu_type]
                enough = gathered if asked.may_mix else devices[gpu_type]
                if speeds[gpu_type] > 0.0 and enough >= gpus:
                    rates.append(speeds[gpu_type])
        return rates

    def _spread_rate(self, kind: str, gpu_type: str, gpus: int, *, is_wide: bool) -> float:
        """Return steps/s over nodes of a type, estimated for a wide gang; 0 if unknown."""
        if is_wide:
            return self.known.alone(kind, (gpu_type,), gpus, spread=True)
        return self.known.rates(kind).get((gpu_type, gpus, True), 0.0)


def _missing_labels(wanted: Iterable[str], nodes: Iterable[NodeView]) -> str:
    """Return the labels that none of these nodes has, in words; all if none has them together."""
    there = {label for node in nodes for label in node.labels}
    missing = sorted(set(wanted) - there)
    if not missing:
        return f"{', '.join(map(worded, sorted(wanted)))} together"
    return ", ".join(map(worded, missing))


def _missing_amounts(wanted: Sequence[tuple[str, float]], nodes: Sequence[NodeView]) -> str:
    """Return the amounts of which no node has enough, in words; all if none has them together."""
    short = [of for of in wanted if not any(_has(node, (of,)) for node in nodes)]
    words = ", ".join(f"{amount:g} {name}" for name, amount in short or wanted)
    return words if short else f"{words} together"


def _shapes(nodes: Iterable[NodeView]) -> tuple[NodeView, ...]:
    found: dict[tuple[Any, ...], NodeView] = {}
    for n in nodes:
        found.setdefault(_shape(n), n)
    return tuple(found.values())


def _shape(node: NodeView) -> tuple[Any, ...]:
    return (len(node.devices), *_FIELDS(node))


def _demand(columns: JobColumns, row: int) -> tuple[tuple[str, float], ...]:
    amounts = seat_demand(columns, row).items()
    return tuple((name, amount) for name, amount in amounts if amount > 0.0)


def _has(node: NodeView, demand: tuple[tuple[str, float], ...]) -> bool:
    limits = {"cores": node.cores, "memory_gb": node.memory_gb, **dict(node.resources)}
    return all(demanded(amount) <= available(limits.get(name, 0.0)) for name, amount in demand)


def highest_cap_w(power_cap_w: float | None, steps: Sequence[PowerCapStep]) -> float | None:
    """Most watts the cluster may ever use; None if unlimited."""
    always = inf if power_cap_w is None else power_cap_w
    moments = {-inf, *(s.from_s for s in steps), *(s.to_s for s in steps)} - {inf}
    highest = max(
        min([always, *(s.power_cap_w for s in steps if s.from_s <= at < s.to_s)]) for at in moments
    )
    return None if highest == inf else highest
