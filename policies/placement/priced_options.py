"""Requests of jobs, and options of classes of equal jobs with their speed, power and price.

Jobs of a class (kind, GPUs, types, labels, demand) fit where any of them fits.

Changing prices count by *priced seconds*: how long a run would have to last at the reference price
to cost the same. Its energy costs watts times the integral of price(t) * PUE(t), which depends on
the run time alone, so whatever multiplies times with a cost per second prices runs rightly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import inf
from typing import Any, TypeAlias

import numpy as np

from policies.contract.labels import RUNS_GANGS
from policies.contract.plan import UNLIMITED, gpus_per_unit, seat_demand
from policies.contract.snapshot import (
    Floats,
    Ints,
    JobColumns,
    PriceInterval,
    RankPlacement,
    Running,
    Snapshot,
    frozen,
)
from policies.placement.cluster_state import ClusterState
from policies.placement.layout import (
    RESOURCES,
    Allocation,
    Layout,
    NodeSet,
    Part,
    Request,
    Span,
    lowest,
)
from policies.placement.nodes_by_type import NodesByType, counts_of_gpus
from policies.placement.speed import LaunchTimes, Speeds

SECONDS_PER_HOUR = 3600.0
WATTS_PER_KW = 1000.0
GRAMS_PER_KG = 1000.0


def with_quota(demand: Mapping[str, float], ranks: Sequence[RankPlacement]) -> Mapping[str, float]:
    """Return a process's demand with the most cores that a quota gives to any of these seats."""
    if all(seat.cpu_quota is None for seat in ranks):
        return demand
    cores = demand.get("cores", 0.0)
    most = max(cores if seat.cpu_quota is None else seat.cpu_quota for seat in ranks)
    return {**demand, "cores": most}


class JobRequests:
    """Requests of jobs, and the allocations of running ones."""

    def __init__(self, columns: JobColumns, layout: Layout) -> None:
        self.columns, self.layout = columns, layout
        self._batch: dict[tuple[Any, ...], Request] = {}
        self._of_row: dict[int, Request] = {}

    def on_one_node(self, row: int, gpus: int, ranks: Sequence[RankPlacement] = ()) -> Request:
        """Return the request of a job as one process with so many devices, on its seat if given."""
        others = self.columns.others
        return self.layout.request(
            gpus,
            with_quota(self.demand(row), ranks),
            types=others["allowed_types"][row],
            labels=others["labels"][row],
        )

    def spread(self, row: int, gpus: int, types: tuple[str, ...] | None = None) -> list[Request]:
        """Return a gang's requests on 2, 3 ... nodes, for `find_first`.

        Over several types only for a job that may mix them.
        """
        others = self.columns.others
        span = Span.MIXED if others["may_mix"][row] else Span.ONE_TYPE
        types = others["allowed_types"][row] if types is None else types
        largest = max((of.size for of in self.layout.classes), default=1)
        return [
            self.layout.request(
                1,
                {},
                units=gpus,
                span=span,
                types=types,
                labels=(*others["labels"][row], *self.labels_of_gangs),
                per_node=self.demand(row),
                nodes=ranks,
            )
            for ranks in range(max(2, -(-gpus // largest)), gpus + 1)
        ]

    def over_nodes(self, row: int, gpus: int, types: tuple[str, ...]) -> Request:
        """Return a gang's request on as few nodes as there is room on, of these types in order."""
        return self.layout.request(
            1,
            {},
            units=gpus,
            span=Span.ONE_TYPE if len(types) == 1 else Span.MIXED,
            types=types,
            labels=(*self.columns.others["labels"][row], *self.labels_of_gangs),
            per_node=self.demand(row),
        )

    @cached_property
    def labels_of_gangs(self) -> tuple[str, ...]:
        """Labels that every node of a gang must have, beside those of its job."""
        return (RUNS_GANGS,) if RUNS_GANGS in self.layout.labelled else ()

    def is_wide(self, row: int) -> bool:
        """Return True if a training job needs more GPUs than any node that would suit it has.

        Lost nodes do not count; closed ones do, as they will take jobs again.
        """
        least = int(self.columns.counts["gpus_min"][row])
        if least <= max(1, self._smallest) or self.columns.others["batch"][row]:
            return False
        suitable = self.suitable_classes(row)
        return bool(suitable) and all(self.layout.classes[c].size < least for c, _ in suitable)

    @cached_property
    def _smallest(self) -> int:
        """GPUs of the smallest node that has any: no job that needs as few is a gang over nodes."""
        sizes = [of_class.size for of_class in self.layout.classes if of_class.size]
        return min(sizes, default=0)

    def suitable_classes(self, row: int) -> list[tuple[int, NodeSet]]:
        """Return (class, its nodes) of types, labels and amounts that suit one process of a job."""
        base = self.on_one_node(row, 0)
        classes, allowed = self.layout.admitting(base)
        suitable: list[tuple[int, NodeSet]] = []
        for c in classes:
            nodes = self.layout.members[c] & allowed & self.layout.lasting
            if nodes and _has(self.layout.classes[c].capacity, base.amounts):
                suitable.append((c, nodes))
        return suitable

    def batch(self, row: int) -> Request:
        """Return the request of a batch job's units, one for all jobs that ask for the same."""
        if (found := self._of_row.get(row)) is not None:
            return found
        key = self.columns.unit_keys[row]
        if key not in self._batch:
            self._batch[key] = self._units(row)
        found = self._of_row[row] = self._batch[key]
        return found

    def _units(self, row: int) -> Request:
        counts, others = self.columns.counts, self.columns.others
        gpus, may_mix = gpus_per_unit(self.columns, row), others["may_mix"][row]
        return self.layout.request(
            gpus,
            self.demand(row),
            units=int(counts["units"][row]),
            span=Span.ONE_TYPE if gpus and not may_mix else Span.ANY,
            types=others["allowed_types"][row],
            labels=others["labels"][row],
            nodes=int(counts["nodes"][row]),
            most=int(counts["units_per_node"][row]),
        )

    def together(self, rows: Sequence[int], gpus: int = 1) -> Request:
        """Return the request of jobs that share all of their devices, each as one process."""
        others, demand = self.columns.others, dict[str, float]()
        for row in rows:
            for name, amount in self.demand(row).items():
                demand[name] = demand.get(name, 0.0) + amount
        allowed = [set(others["allowed_types"][row]) for row in rows]
        asked = [types for types in allowed if types]
        types = tuple(sorted(set.intersection(*asked))) if asked else ()
        return self.layout.request(
            gpus if types or not asked else UNLIMITED,
            demand,
            types=types,
            labels=[label for row in rows for label in others["labels"][row]],
            slots=len(rows),
        )

    def demand(self, row: int) -> dict[str, float]:
        """Return the demand of one unit of a job on its node, without zeros."""
        if self.columns.gpus_only:
            return {}
        of_unit = seat_demand(self.columns, row)
        return {name: amount for name, amount in of_unit.items() if amount > 0.0}

    def allocation_of(self, row: int, run: Running) -> Allocation | None:
        """Return the allocation of a run; None if a node or device of it is gone."""
        index, parts = self.layout.index, list[Part]()
        is_batch = self.columns.others["batch"][row]
        for seat in run.ranks:
            if (n := index.get(seat.node, -1)) < 0:
                return None
            bits = self.layout.bits(n, seat.devices) if seat.devices else 0
            if seat.devices and bits.bit_count() < len(set(seat.devices)):
                return None
            parts.append(Part(n, seat.units if is_batch else bits.bit_count(), bits))
        if is_batch:
            return Allocation(self.batch(row), tuple(parts))
        if len(parts) == 1:
            request = self.on_one_node(row, parts[0].units, run.ranks)
            return Allocation(request, (parts[0]._replace(units=1),))
        gpus, ranks = sum(part.units for part in parts), len(parts)
        used = self.layout.amounts(with_quota(self.demand(row), run.ranks))
        request = Request(gpus=1, units=gpus, per_node=used, span=Span.ANY, nodes=ranks)
        return Allocation(request, tuple(parts))


GroupingKey: TypeAlias = tuple[Any, ...]
"""Columns by which jobs are grouped: jobs with equal keys are interchangeable for capacity."""


def grouping_keys(jobs: JobColumns) -> Sequence[GroupingKey]:
    """Return each job's key: kind, least and most GPUs, types, may it mix them, labels, demand."""
    counts, numbers, others = jobs.counts, jobs.numbers, jobs.others
    columns = [jobs.kinds, counts["gpus_min"].tolist(), counts["gpus_max"].tolist()]
    columns += [others["allowed_types"], others["labels"]]
    if any(others["may_mix"]):
        columns += [others["may_mix"]]
    if not jobs.gpus_only:
        columns += [numbers["cores"].tolist(), numbers["memory_gb"].tolist()]
        columns += [others["resources"], others["batch"]]
        columns += [counts[name].tolist() for name in ("units", "units_per_node", "nodes")]
    return list(zip(*columns, strict=True))


@dataclass(frozen=True, slots=True)
class Option:
    """GPUs of one of these nodes (a set), with the job's speed and the node's power.

    `power_w`: of a node on which only these GPUs are in use. `spread`: GPUs of several of these
    nodes together; `power_w` is then of as few of the largest as can be.
    """

    nodes: int
    gpus: int
    steps_per_s: float
    power_w: float
    request: Request
    spread: bool = False


class JobOptions:
    """Options of a snapshot's jobs, found when a class of them is first asked for."""

    def __init__(self, snapshot: Snapshot, state: ClusterState, *, spreads: bool = True) -> None:
        """`spreads`: a job that no node could hold has options over several."""
        self.snapshot, self.layout, self.open = snapshot, state.layout, state.open
        self.spreads = spreads
        self.columns, self.cap_mw = snapshot.jobs.columns, state.cap_mw
        self.requests = JobRequests(snapshot.jobs.columns, state.layout)
        self.speeds, self.prices = Speeds.of(snapshot), prices_of(snapshot)
        self._options: dict[GroupingKey, tuple[Option, ...]] = {}
        self._nodes_of_needs: dict[GroupingKey, NodesByType] = {}
        self._requests_over_nodes: dict[GroupingKey, Request] = {}

    @cached_property
    def keys(self) -> Sequence[GroupingKey]:
        return grouping_keys(self.columns)

    def of(self, row: int) -> tuple[Option, ...]:
        """Return the options of a job on the empty cluster, within the power cap.

        They are of one node each; of several for a job that no node could hold.
        """
        key = self.keys[row]
        if key not in self._options:
            options = self.within(self.cap_mw, row)
            if not options and self.spreads:
                options = self.over_nodes(row)
            self._options[key] = tuple(options)
        return self._options[key]

    def ranked(self, row: int) -> list[tuple[Option, float]]:
        """Return a job's options with its run time, a launch included, the best first.

        First those that meet the due date by rising energy cost, then the others by rising time.
        """
        options, (due_s, steps) = self.of(row), self._numbers[row]
        slack_s, launch_s = due_s - self.snapshot.now_s, self.launch_times.of(row)
        times_s = [steps / option.steps_per_s + launch_s for option in options]
        flat, reference = self.prices.is_flat, self.prices.reference
        priced_s = times_s if flat else self.prices.priced_s(np.array(times_s)).tolist()
        ranks = [
            (False, seconds * (o.power_w * reference), i) if time_s < slack_s else (True, time_s, i)
            for i, (o, time_s, seconds) in enumerate(zip(options, times_s, priced_s, strict=True))
        ]
        return [(options[i], times_s[i]) for _, _, i in sorted(ranks)]

    @cached_property
    def launch_times(self) -> LaunchTimes:
        """The time from a launch to the first step of each job."""
        return LaunchTimes(self.snapshot)

    @cached_property
    def _numbers(self) -> Sequence[tuple[float, float]]:
        numbers = self.columns.numbers
        due_s, steps = numbers["due_s"].tolist(), numbers["remaining_steps"].tolist()
        return list(zip(due_s, steps, strict=True))

    def within(self, cap_mw: float, row: int) -> list[Option]:
        """Return the options of a job on one node of the empty cluster, within this power cap.

        Nodes are grouped by type and by power with so many GPUs in use.
        """
        kind, least, most = self.keys[row][:3]
        base, nodes = self.requests.on_one_node(row, 0), dict[tuple[int, str, float, float], int]()
        for c, allowed in self._admitting(base):
            of_class, view = (
                self.layout.classes[c],
                self.layout.nodes[lowest(self.layout.members[c])],
            )
            curve = view.power_w or (0.0,)
            for gpus in range(least, min(most, of_class.size) + 1):
                rate = self.speeds.alone(kind, (of_class.gpu_type,), gpus)
                if rate > 0.0 and of_class.power_at(gpus) <= cap_mw:
                    power_w = curve[min(gpus, len(curve) - 1)]
                    key = gpus, of_class.gpu_type, rate, power_w
                    nodes[key] = nodes.get(key, 0) | allowed
        return [
            Option(of, gpus, rate, power_w, Request(gpus, base.amounts, labels=base.labels))
            for (gpus, _, rate, power_w), of in nodes.items()
        ]

    def over_nodes(self, row: int) -> list[Option]:
        """Return the options of a job over several nodes of the empty cluster; [] if one would do.

        As `spread`.
        """
        return self.spread(row) if self.requests.is_wide(row) else []

    def spread(self, row: int) -> list[Option]:
        """Return the options of a job over several nodes of the empty cluster.

        They are of one GPU type each; for a job that may mix types also of the fastest two, three
        ... together.
        """
        kind, least, most = self.keys[row][:3]
        by_type = self._nodes_by_type(row)
        options: list[Option] = []
        for gpus in counts_of_gpus(least, most):
            for types in self._choices_of_types(row, gpus, by_type):
                options.append(
                    Option(
                        by_type.nodes_of(types),
                        gpus,
                        self.speeds.alone(kind, types, gpus, spread=True),
                        max(by_type.power_w(gpu_type, gpus) for gpu_type in types),
                        self._request_over_nodes(row, gpus, types),
                        spread=True,
                    )
                )
        return options

    def _nodes_by_type(self, row: int) -> NodesByType:
        """Return the open nodes for gangs that suit a job; kinds do not matter."""
        needs = self.keys[row][3:]
        if needs not in self._nodes_of_needs:
            usable = self.open
            for label in self.requests.labels_of_gangs:
                usable &= self.layout.labelled[label]
            suitable = self.requests.suitable_classes(row)
            self._nodes_of_needs[needs] = NodesByType.of(self.layout, suitable, usable)
        return self._nodes_of_needs[needs]

    def _request_over_nodes(self, row: int, gpus: int, types: tuple[str, ...]) -> Request:
        """Return a gang's request over nodes; kinds do not matter."""
        needs = self.keys[row][3:], gpus, types
        if needs not in self._requests_over_nodes:
            request = self.requests.over_nodes(row, gpus, types)
            self._requests_over_nodes[needs] = request
        return self._requests_over_nodes[needs]

    def _choices_of_types(self, row: int, gpus: int, by_type: NodesByType) -> list[tuple[str, ...]]:
        """Return the types on which a gang could be, the fastest first; several together if so."""
        kind = self.columns.kinds[row]
        speeds: dict[str, float] = {}
        for gpu_type in by_type.nodes:
            speed = self.speeds.alone(kind, (gpu_type,), gpus, spread=True)
            if speed > 0.0:
                speeds[gpu_type] = speed
        fastest = sorted(speeds, key=lambda gpu_type: (-speeds[gpu_type], gpu_type))
        choices: list[tuple[str, ...]] = [(gpu_type,) for gpu_type in fastest]
        if self.columns.others["may_mix"][row]:
            choices += [tuple(fastest[:number]) for number in range(2, len(fastest) + 1)]
        return [types for types in choices if by_type.gpus_of(types) >= gpus]

    def _admitting(self, request: Request) -> list[tuple[int, int]]:
        """Return (class, its open nodes with the labels) where the demand fits when empty."""
        classes, allowed = self.layout.admitting(request)
        found = [(c, self.layout.members[c] & allowed & self.open) for c in classes]
        return [
            (c, nodes)
            for c, nodes in found
            if nodes and _has(self.layout.classes[c].capacity, request.amounts)
        ]


def _has(capacity: Sequence[int], amounts: Sequence[int]) -> bool:
    return all(amount <= capacity[i] for i, amount in enumerate(amounts, RESOURCES))


@dataclass(frozen=True)
class Prices:
    """Cost of one watt of IT power over time.

    `starts_s` float64[S]: seconds from now at which each price begins, rising, the first 0; the
    last one holds for ever. `rates` float64[S]: cost of a watt for a second, PUE included.
    """

    starts_s: Floats
    rates: Floats

    @cached_property
    def reference(self) -> float:
        """Reference of priced seconds: a flat tariff's price, else the one farthest from 0."""
        return float(self.rates[np.argmax(np.abs(self.rates))])

    @cached_property
    def is_flat(self) -> bool:
        """Return True if the price never changes."""
        return bool(np.all(self.rates == self.rates[0]))

    def priced_s(self, times_s: Floats) -> Floats:
        """Priced seconds of runs that start now and last `times_s`; inf if they never end."""
        if self.is_flat:
            return times_s
        ends = np.isfinite(times_s)
        seconds = np.where(ends, times_s, 0.0)
        step = np.searchsorted(self.starts_s, seconds, side="right") - 1
        cost = self._until_step[step] + (seconds - self.starts_s[step]) * self.rates[step]
        return np.where(ends, cost / self.reference, np.inf)

    @cached_property
    def _until_step(self) -> Floats:
        """float64[S]: cost of a watt until each price begins."""
        spent: Floats = np.concatenate([[0.0], np.cumsum(np.diff(self.starts_s) * self.rates[:-1])])
        return spent


def prices_of(snapshot: Snapshot, *, emissions: bool = True) -> Prices:
    """Return the snapshot's prices from now on; free where none are known.

    `emissions`: with the operators' weight of emissions, as in decisions; else as billed. A price
    below 0 counts as 0 in decisions: else jobs would be slowed and moved to burn paid energy.
    """
    per_kg = snapshot.emissions_cost_per_kg if emissions else 0.0
    least = 0.0 if emissions else -inf
    ahead = [s for s in snapshot.energy if s.to_s > snapshot.now_s] or list(snapshot.energy[-1:])
    if len(ahead) < 2:
        return _flat(max(least, per_watt_second(ahead[0], per_kg)) if ahead else 0.0)
    starts = np.array([s.from_s - snapshot.now_s for s in ahead])
    starts[0] = 0.0
    return Prices(starts, np.array([max(least, per_watt_second(s, per_kg)) for s in ahead]))


@lru_cache(maxsize=256)
def _flat(rate: float) -> Prices:
    return Prices(frozen(np.zeros(1)), frozen(np.array([rate])))


def per_watt_second(step: PriceInterval, emissions_cost_per_kg: float = 0.0) -> float:
    """Cost of one watt of IT power for a second: (price + emissions at their weight) * PUE."""
    per_kwh = step.price_per_kwh
    if emissions_cost_per_kg:
        per_kwh += step.emissions_g_per_kwh / GRAMS_PER_KG * emissions_cost_per_kg
    return per_kwh * step.pue / WATTS_PER_KW / SECONDS_PER_HOUR


def signatures(
    snapshot: Snapshot, rows: Ints
) -> tuple[Ints, tuple[tuple[frozenset[str], frozenset[str]], ...]]:
    """Return the number of each row's (allowed types, labels), and the distinct ones."""
    allowed, labels = (
        snapshot.jobs.columns.others["allowed_types"],
        snapshot.jobs.columns.others["labels"],
    )
    numbers: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}
    of = np.array(
        [numbers.setdefault((allowed[i], labels[i]), len(numbers)) for i in rows], dtype=np.int64
    )
    return of, tuple((frozenset(types), frozenset(wanted)) for types, wanted in numbers)


@lru_cache(maxsize=4096)
def admits(
    signature: tuple[frozenset[str], frozenset[str]], gpu_type: str, labels: frozenset[str]
) -> bool:
    """Return True if the signature admits nodes of that type and labels."""
    types, wanted = signature
    return (not types or gpu_type in types) and wanted <= labels
