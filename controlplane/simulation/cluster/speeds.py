"""True speeds of jobs, and jobs that no node can ever run."""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

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

_SHAPE_FIELDS = attrgetter(
    "gpu_type", "cores", "memory_gb", "resources", "labels", "role", "power_w"
)

Amounts: TypeAlias = tuple[tuple[str, float], ...]
"""Amounts that a job needs of a node beside devices: cores, memory, resources; all above 0."""


class _Request(NamedTuple):
    """Request of a job with GPUs for the devices of one node; jobs of equal requests are alike."""

    kind: str
    least_gpus: int
    most_gpus: int
    types: tuple[str, ...]
    labels: tuple[str, ...]
    amounts: Amounts
    may_mix: bool


class Speeds:
    """True throughputs by kind, and the best of them by request. `cap_w`: None if unlimited."""

    def __init__(
        self,
        nodes: Iterable[NodeView],
        kinds: Iterable[KindView],
        cap_w: float | None = None,
        gpu_types: Iterable[GpuTypeView] = (),
    ) -> None:
        self.nodes = {node.id: node for node in nodes}
        self.known = KindSpeeds(kinds, self.nodes.values(), gpu_types)
        self.kinds = self.known.kinds
        self.cap_w = inf if cap_w is None else cap_w
        self._best_of_request: dict[_Request, tuple[float, str]] = {}
        self._best_of_units: dict[tuple[Any, ...], tuple[float, str]] = {}
        self._shapes = _one_of_each_shape(self.nodes.values())

    def of(self, kind: str, ranks: Sequence[RankPlacement]) -> float:
        """Return steps/s of a job of this kind on these seats; 0 if unknown."""
        return self.known.on_ranks(kind, ranks, self.nodes)

    def alone(self, columns: JobColumns, row: int, ranks: Sequence[RankPlacement]) -> float:
        """Return steps/s of a job without co-tenants on these seats; a batch job's are the same
        everywhere.
        """
        kind = columns.kinds[row]
        return self.without_gpus(kind) if columns.others["batch"][row] else self.of(kind, ranks)

    def without_gpus(self, kind: str) -> float:
        """Return steps/s of a kind that is as fast on every node; 0 if unknown."""
        return self.known.rates(kind).get(WITHOUT_GPUS, 0.0)

    def best(self, columns: JobColumns, row: int) -> tuple[float, str]:
        """Return (steps/s at the job's fastest, ""), or (0, reason why no node can ever run it)."""
        counts = columns.counts
        others = columns.others
        if others["batch"][row] or not counts["gpus_max"][row]:
            key = columns.kinds[row], columns.unit_keys[row]
            if key not in self._best_of_units:
                self._best_of_units[key] = self._find_for_units(columns, row)
            return self._best_of_units[key]
        request = _Request(
            columns.kinds[row],
            int(counts["gpus_min"][row]),
            int(counts["gpus_max"][row]),
            others["allowed_types"][row],
            others["labels"][row],
            () if columns.gpus_only else _amounts(columns, row),
            bool(others["may_mix"][row]),
        )
        best = self._best_of_request.get(request)
        if best is None:
            best = self._find(request)
            self._best_of_request[request] = best
        return best

    def _find_for_units(self, columns: JobColumns, row: int) -> tuple[float, str]:
        """Return `best` of a batch job or one without GPUs, whose units must all fit at once."""
        rate = self.without_gpus(columns.kinds[row])
        if rate <= 0.0:
            return 0.0, f"no speed of kind {columns.kinds[row]} without GPUs is known"
        resources = [name for name, _ in columns.others["resources"][row]]
        layout = Layout(tuple(self.nodes.values()), ("cores", "memory_gb", *resources))
        request = JobRequests(columns, layout).batch(row)
        empty = ClusterState(layout)
        for index, node in enumerate(layout.nodes):
            if node.role is NodeRole.PROFILING:
                empty.close(index)
        if empty.find(request) is None:
            return 0.0, "its units do not fit on the empty cluster"
        return rate, ""

    def _find(self, request: _Request) -> tuple[float, str]:
        """Return `best` of a job with GPUs."""
        if not self.nodes:
            return 0.0, "the cluster has no nodes"
        types = request.types
        labels = set(request.labels)
        nodes = [node for node in self._shapes if node.role is not NodeRole.PROFILING]
        of_type = [node for node in nodes if not types or node.gpu_type in types]
        labelled = [node for node in of_type if labels <= set(node.labels)]
        roomy = [node for node in labelled if _has(node, request.amounts)]
        if not of_type and types:
            return 0.0, f"no node for training has GPUs of type {' or '.join(types)}"
        if not of_type:
            return 0.0, "no node is for training"
        if not labelled:
            return 0.0, f"no node that suits it has {_missing_labels(request.labels, of_type)}"
        if not roomy:
            return 0.0, f"no node that suits it has {_missing_amounts(request.amounts, labelled)}"
        return self._fastest(request, roomy)

    def _fastest(self, request: _Request, nodes: Sequence[NodeView]) -> tuple[float, str]:
        """Return `best` on these nodes, which suit the job but for their numbers of devices."""
        # 1. The job must find enough devices, on one node or over several.
        least = request.least_gpus
        most = request.most_gpus
        large = [node for node in nodes if len(node.devices) >= least]
        over_nodes = self._rates_over_nodes(request, nodes, is_wide=not large)
        if not large and not over_nodes:
            largest = max(len(node.devices) for node in nodes)
            words = (
                f"it needs {least} GPUs on one node, and the largest suitable node has {largest}"
            )
            return 0.0, words

        # 2. It must have a speed there, and the cluster the power for it.
        known = self.known.rates(request.kind)
        rates = list(over_nodes)
        least_w = inf
        for node in large:
            for gpus in range(least, min(most, len(node.devices)) + 1):
                rate = known.get((node.gpu_type, gpus, False), 0.0)
                rates.append(rate)
                if rate > 0.0:
                    least_w = min(least_w, node.draw_w(gpus))
        best = max(rates, default=0.0)
        if best <= 0.0:
            return 0.0, self._unknown_speed(request, nodes)
        if self.cap_w < least_w < inf:
            limit = f"the power cap never exceeds {self.cap_w:g} W"
            return 0.0, f"it needs at least {least_w:g} W, and {limit}"
        return best, ""

    def _unknown_speed(self, request: _Request, nodes: Sequence[NodeView]) -> str:
        """Return that no speed of the job's kind is known on these nodes."""
        kind = self.kinds.get(request.kind)
        name = kind.name if kind is not None and kind.name else request.kind
        types = " or ".join(sorted({node.gpu_type for node in nodes}))
        count = f"{request.least_gpus}"
        if request.least_gpus != request.most_gpus:
            count = f"{request.least_gpus} to {request.most_gpus}"
        plural = "" if request.most_gpus == 1 else "s"
        return f"no speed of kind {name} is known on {count} GPU{plural} of {types}"

    def _rates_over_nodes(
        self, request: _Request, shapes: Sequence[NodeView], *, is_wide: bool
    ) -> list[float]:
        """Return speeds of gangs over several nodes of these shapes with enough devices.

        Gangs that may mix types have the fastest types, at the speed of their slowest. Of a gang
        that no node can hold (`is_wide`) unknown speeds are estimated.
        """
        # 1. Sizes of gangs: those with a known speed, and of a wide one the smallest and largest.
        fitting = {_shape(node) for node in shapes}
        nodes = [node for node in self.nodes.values() if _shape(node) in fitting]
        devices = Counter(node.gpu_type for node in nodes for _ in node.devices)
        sizes = {gpus for _, gpus, spread in self.known.rates(request.kind) if spread}
        if is_wide:
            sizes |= {request.least_gpus, min(request.most_gpus, devices.total())}

        # 2. The speed of each size on the fastest types that have enough devices.
        rates = []
        for gpus in sorted(sizes):
            if not request.least_gpus <= gpus <= request.most_gpus:
                continue
            rate_by_type = {
                gpu_type: self._spread_rate(request.kind, gpu_type, gpus, is_wide=is_wide)
                for gpu_type in devices
            }
            gathered = 0
            for gpu_type in sorted(devices, key=lambda name: (-rate_by_type[name], name)):
                gathered += devices[gpu_type]
                enough = gathered if request.may_mix else devices[gpu_type]
                if rate_by_type[gpu_type] > 0.0 and enough >= gpus:
                    rates.append(rate_by_type[gpu_type])
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


def _missing_amounts(wanted: Amounts, nodes: Sequence[NodeView]) -> str:
    """Return the amounts of which no node has enough, in words; all if none has them together."""
    short = []
    for need in wanted:
        if not any(_has(node, (need,)) for node in nodes):
            short.append(need)
    words = ", ".join(f"{amount:g} {name}" for name, amount in short or wanted)
    return words if short else f"{words} together"


def _one_of_each_shape(nodes: Iterable[NodeView]) -> tuple[NodeView, ...]:
    """Return the first node of each shape."""
    first: dict[tuple[Any, ...], NodeView] = {}
    for node in nodes:
        first.setdefault(_shape(node), node)
    return tuple(first.values())


def _shape(node: NodeView) -> tuple[Any, ...]:
    """Return all that matters to a job which has the node to itself."""
    return (len(node.devices), *_SHAPE_FIELDS(node))


def _amounts(columns: JobColumns, row: int) -> Amounts:
    """Return what a job needs of a node beside devices."""
    demand = seat_demand(columns, row)
    return tuple((name, amount) for name, amount in demand.items() if amount > 0.0)


def _has(node: NodeView, amounts: Amounts) -> bool:
    """Return True if an empty node has these amounts."""
    limits = {"cores": node.cores, "memory_gb": node.memory_gb, **dict(node.resources)}
    return all(demanded(amount) <= available(limits.get(name, 0.0)) for name, amount in amounts)


def highest_cap_w(power_cap_w: float | None, steps: Sequence[PowerCapStep]) -> float | None:
    """Return the most watts that the cluster may ever use; None if unlimited."""
    always_w = inf if power_cap_w is None else power_cap_w

    # The cap changes only where a step begins or ends.
    moments = {-inf}
    for step in steps:
        moments |= {step.from_s, step.to_s}
    highest_w = 0.0
    for at_s in moments - {inf}:
        caps_w = [step.power_cap_w for step in steps if step.from_s <= at_s < step.to_s]
        highest_w = max(highest_w, min([always_w, *caps_w]))
    return None if highest_w == inf else highest_w
