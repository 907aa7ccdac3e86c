"""Requests of jobs, and options of classes of equal jobs with their speed, power and price.

Jobs of a class (kind, GPUs, types, labels, demand) fit where any of them fits.

Changing prices count by *priced seconds*: how long a run would have to last at the reference price
to cost the same. The energy of a run costs watts times the integral of price(t) * PUE(t) over its
time. So does watts * reference price * priced seconds, as if the price never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil
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
    Free,
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
    most = 0.0
    for seat in ranks:
        cores = demand.get("cores", 0.0) if seat.cpu_quota is None else seat.cpu_quota
        most = max(most, cores)
    return {**demand, "cores": most}


class JobRequests:
    """Requests of jobs, and the allocations of running ones."""

    def __init__(self, columns: JobColumns, layout: Layout) -> None:
        self.columns = columns
        self.layout = layout
        self._request_by_key: dict[tuple[Any, ...], Request] = {}
        self._batch_request: dict[int, Request] = {}

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

        Over several types only for a job that may mix them. `types`: those to use, by default all
        that are allowed.
        """
        others = self.columns.others
        largest = max([1, *[of_class.size for of_class in self.layout.classes]])
        fewest_nodes = max(2, ceil(gpus / largest))
        requests = []
        for nodes in range(fewest_nodes, gpus + 1):
            requests.append(
                self.layout.request(
                    1,
                    {},
                    units=gpus,
                    span=Span.MIXED if others["may_mix"][row] else Span.ONE_TYPE,
                    types=others["allowed_types"][row] if types is None else types,
                    labels=(*others["labels"][row], *self.labels_of_gangs),
                    per_node=self.demand(row),
                    nodes=nodes,
                )
            )
        return requests

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
        request = self._batch_request.get(row)
        if request is not None:
            return request
        key = self.columns.unit_keys[row]
        if key not in self._request_by_key:
            self._request_by_key[key] = self._request_of_units(row)
        request = self._request_by_key[key]
        self._batch_request[row] = request
        return request

    def _request_of_units(self, row: int) -> Request:
        counts = self.columns.counts
        others = self.columns.others
        gpus = gpus_per_unit(self.columns, row)
        is_of_one_type = gpus > 0 and not others["may_mix"][row]
        return self.layout.request(
            gpus,
            self.demand(row),
            units=int(counts["units"][row]),
            span=Span.ONE_TYPE if is_of_one_type else Span.ANY,
            types=others["allowed_types"][row],
            labels=others["labels"][row],
            nodes=int(counts["nodes"][row]),
            most=int(counts["units_per_node"][row]),
        )

    def together(self, rows: Sequence[int], gpus: int = 1) -> Request:
        """Return the request of jobs that share all of their devices, each as one process.

        It fits nowhere if no GPU type is allowed for all of them.
        """
        others = self.columns.others
        demand: dict[str, float] = {}
        labels: list[str] = []
        choices_of_types: list[set[str]] = []
        for row in rows:
            for name, amount in self.demand(row).items():
                demand[name] = demand.get(name, 0.0) + amount
            labels += others["labels"][row]
            if others["allowed_types"][row]:
                choices_of_types.append(set(others["allowed_types"][row]))
        types: tuple[str, ...] = ()
        if choices_of_types:
            types = tuple(sorted(set.intersection(*choices_of_types)))
            if not types:
                gpus = UNLIMITED
        return self.layout.request(gpus, demand, types=types, labels=labels, slots=len(rows))

    def demand(self, row: int) -> dict[str, float]:
        """Return the demand of one unit of a job on its node, without zeros."""
        if self.columns.gpus_only:
            return {}
        of_unit = seat_demand(self.columns, row)
        return {name: amount for name, amount in of_unit.items() if amount > 0.0}

    def allocation_of(self, row: int, run: Running) -> Allocation | None:
        """Return the allocation of a run; None if a node or device of it is gone."""
        # 1. Its parts: batch jobs have their own units, of a gang each GPU is one.
        index = self.layout.index
        is_batch = self.columns.others["batch"][row]
        parts: list[Part] = []
        for seat in run.ranks:
            if seat.node not in index:
                return None
            n = index[seat.node]
            devices = self.layout.bits(n, seat.devices) if seat.devices else 0
            if devices.bit_count() < len(set(seat.devices)):
                return None
            units = seat.units if is_batch else devices.bit_count()
            parts.append(Part(n, units, devices))

        # 2. Its request, with the cores that it has there.
        if is_batch:
            return Allocation(self.batch(row), tuple(parts))
        if len(parts) == 1:
            request = self.on_one_node(row, parts[0].units, run.ranks)
            return Allocation(request, (parts[0]._replace(units=1),))
        request = Request(
            gpus=1,
            units=sum(part.units for part in parts),
            per_node=self.layout.amounts(with_quota(self.demand(row), run.ranks)),
            span=Span.ANY,
            nodes=len(parts),
        )
        return Allocation(request, tuple(parts))


GroupingKey: TypeAlias = tuple[Any, ...]
"""Columns by which jobs are grouped: jobs with equal keys are interchangeable for capacity."""


def grouping_keys(jobs: JobColumns) -> Sequence[GroupingKey]:
    """Return each job's key, by row: kind, least and most GPUs, then its other needs.

    These are types, labels, whether it may mix types, demand and units.
    """
    columns: list[Sequence[Any]] = [jobs.kinds]
    columns += [jobs.counts["gpus_min"].tolist(), jobs.counts["gpus_max"].tolist()]
    columns += [jobs.others["allowed_types"], jobs.others["labels"]]
    if any(jobs.others["may_mix"]):
        columns.append(jobs.others["may_mix"])
    if not jobs.gpus_only:
        columns += [jobs.numbers["cores"].tolist(), jobs.numbers["memory_gb"].tolist()]
        columns += [jobs.others["resources"], jobs.others["batch"]]
        for name in ("units", "units_per_node", "nodes"):
            columns.append(jobs.counts[name].tolist())
    return list(zip(*columns, strict=True))


@dataclass(frozen=True, slots=True)
class Option:
    """GPUs of one of these nodes, with the job's speed and the node's power.

    `power_w`: of a node on which only these GPUs are in use. `spread`: GPUs of several of these
    nodes together; `power_w` is then of as few of the largest as can be.
    """

    nodes: NodeSet
    gpus: int
    steps_per_s: float
    power_w: float
    request: Request
    spread: bool = False


class JobOptions:
    """Options of a snapshot's jobs, found when a class of them is first asked for."""

    def __init__(self, snapshot: Snapshot, state: ClusterState, *, spreads: bool = True) -> None:
        """`spreads`: a job that no node could hold has options over several."""
        self.snapshot = snapshot
        self.columns = snapshot.jobs.columns
        self.layout = state.layout
        self.open = state.open
        self.cap_mw = state.cap_mw
        self.spreads = spreads
        self.requests = JobRequests(snapshot.jobs.columns, state.layout)
        self.speeds = Speeds.of(snapshot)
        self.prices = prices_of(snapshot)
        self._options: dict[GroupingKey, tuple[Option, ...]] = {}
        self._nodes_of_needs: dict[GroupingKey, NodesByType] = {}
        self._requests_over_nodes: dict[GroupingKey, Request] = {}

    @cached_property
    def keys(self) -> Sequence[GroupingKey]:
        """Grouping key of each job, by row."""
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
        options = self.of(row)
        steps = self.columns.listed["remaining_steps"][row]
        launch_s = self.launch_times.of(row)
        times_s = [steps / option.steps_per_s + launch_s for option in options]
        priced_s = times_s
        if not self.prices.is_flat:
            priced_s = self.prices.priced_s(np.array(times_s)).tolist()

        slack_s = self.columns.listed["due_s"][row] - self.snapshot.now_s
        reference = self.prices.reference
        turns: list[tuple[bool, float, int]] = []
        for i, option in enumerate(options):
            is_late = times_s[i] >= slack_s
            cost = priced_s[i] * (option.power_w * reference)
            turns.append((is_late, times_s[i] if is_late else cost, i))
        return [(options[i], times_s[i]) for _, _, i in sorted(turns)]

    @cached_property
    def launch_times(self) -> LaunchTimes:
        """Time from a launch to the first step of each job."""
        return LaunchTimes(self.snapshot)

    def within(self, cap_mw: float, row: int) -> list[Option]:
        """Return the options of a job on one node of the empty cluster, within this power cap.

        Nodes are grouped by type and by power with so many GPUs in use.
        """
        kind, least, most = self.keys[row][:3]
        base = self.requests.on_one_node(row, 0)

        # 1. Nodes by GPUs, type, speed and power.
        nodes_of: dict[tuple[int, str, float, float], NodeSet] = {}
        for c, nodes in self._admitting(base):
            of_class = self.layout.classes[c]
            curve_w = self.layout.nodes[lowest(self.layout.members[c])].power_w or (0.0,)
            for gpus in range(least, min(most, of_class.size) + 1):
                steps_per_s = self.speeds.alone(kind, (of_class.gpu_type,), gpus)
                if steps_per_s > 0.0 and of_class.power_at(gpus) <= cap_mw:
                    power_w = curve_w[min(gpus, len(curve_w) - 1)]
                    key = gpus, of_class.gpu_type, steps_per_s, power_w
                    nodes_of[key] = nodes_of.get(key, 0) | nodes

        # 2. An option for each of them.
        options = []
        for (gpus, _, steps_per_s, power_w), nodes in nodes_of.items():
            request = Request(gpus, base.amounts, labels=base.labels)
            options.append(Option(nodes, gpus, steps_per_s, power_w, request))
        return options

    def over_nodes(self, row: int) -> list[Option]:
        """Return the options of a job over several nodes, as `spread`; [] if one node would do."""
        return self.spread(row) if self.requests.is_wide(row) else []

    def spread(self, row: int) -> list[Option]:
        """Return the options of a job over several nodes of the empty cluster.

        Each is of one GPU type. A job that may mix types also has options of the fastest two, three
        ... types together.
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
        """Return the open nodes for gangs that suit a job."""
        needs = self.keys[row][3:]  # neither its kind nor its number of GPUs matters
        if needs not in self._nodes_of_needs:
            usable = self.open
            for label in self.requests.labels_of_gangs:
                usable &= self.layout.labelled[label]
            suitable = self.requests.suitable_classes(row)
            self._nodes_of_needs[needs] = NodesByType.of(self.layout, suitable, usable)
        return self._nodes_of_needs[needs]

    def _request_over_nodes(self, row: int, gpus: int, types: tuple[str, ...]) -> Request:
        """Return a gang's request over nodes, one for all that need the same."""
        needs = self.keys[row][3:], gpus, types
        if needs not in self._requests_over_nodes:
            request = self.requests.over_nodes(row, gpus, types)
            self._requests_over_nodes[needs] = request
        return self._requests_over_nodes[needs]

    def _choices_of_types(self, row: int, gpus: int, by_type: NodesByType) -> list[tuple[str, ...]]:
        """Return the types on which a gang could be: each by itself, then several together.

        The fastest types come first. Those with too few GPUs are left out.
        """
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

    def _admitting(self, request: Request) -> list[tuple[int, NodeSet]]:
        """Return (class, its open nodes with the labels) where the demand fits when empty."""
        classes, allowed = self.layout.admitting(request)
        admitting = []
        for c in classes:
            nodes = self.layout.members[c] & allowed & self.open
            if nodes and _has(self.layout.classes[c].capacity, request.amounts):
                admitting.append((c, nodes))
        return admitting


def _has(capacity: Free, amounts: Sequence[int]) -> bool:
    """Return True if an empty node has these amounts of resources."""
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
        """Return the priced seconds of runs that start now and last `times_s`.

        They are inf for a run that never ends.
        """
        if self.is_flat:
            return times_s
        is_finite = np.isfinite(times_s)
        seconds = np.where(is_finite, times_s, 0.0)
        # The price at the end of each run, and all that was paid until it began.
        last = np.searchsorted(self.starts_s, seconds, side="right") - 1
        cost = self._cost_until[last] + (seconds - self.starts_s[last]) * self.rates[last]
        return np.where(is_finite, cost / self.reference, np.inf)

    @cached_property
    def _cost_until(self) -> Floats:
        """float64[S]: cost of a watt from now until each price begins."""
        costs = np.diff(self.starts_s) * self.rates[:-1]
        cost_until: Floats = np.concatenate([[0.0], np.cumsum(costs)])
        return cost_until


def prices_of(snapshot: Snapshot, *, emissions: bool = True) -> Prices:
    """Return the snapshot's prices from now on; free where none are known.

    `emissions`: with the operators' weight of emissions, as in decisions; else as billed. A price
    below 0 counts as 0 in decisions: else jobs would be slowed and moved to burn paid energy.
    """
    # 1. The intervals from now on; the last one goes on for ever.
    ahead = [interval for interval in snapshot.energy if interval.to_s > snapshot.now_s]
    if not ahead:
        ahead = list(snapshot.energy[-1:])

    # 2. The price of each of them.
    per_kg = snapshot.emissions_cost_per_kg if emissions else 0.0
    rates = [per_watt_second(interval, per_kg) for interval in ahead]
    if emissions:
        rates = [max(0.0, rate) for rate in rates]
    if len(rates) < 2:
        return _flat(rates[0] if rates else 0.0)
    starts_s = np.array([interval.from_s - snapshot.now_s for interval in ahead])
    starts_s[0] = 0.0
    return Prices(starts_s, np.array(rates))


@lru_cache(maxsize=256)
def _flat(rate: float) -> Prices:
    """Return a price that never changes."""
    return Prices(frozen(np.zeros(1)), frozen(np.array([rate])))


def per_watt_second(interval: PriceInterval, emissions_cost_per_kg: float = 0.0) -> float:
    """Return the cost of one watt of IT power for a second.

    (price + emissions at their weight) * PUE.
    """
    per_kwh = interval.price_per_kwh
    if emissions_cost_per_kg:
        per_kwh += interval.emissions_g_per_kwh / GRAMS_PER_KG * emissions_cost_per_kg
    return per_kwh * interval.pue / WATTS_PER_KW / SECONDS_PER_HOUR


Signature: TypeAlias = tuple[frozenset[str], frozenset[str]]
"""Allowed types and labels of a job."""


def signatures(snapshot: Snapshot, rows: Ints) -> tuple[Ints, tuple[Signature, ...]]:
    """Return the number of each row's signature, and the distinct signatures by number."""
    allowed_types = snapshot.jobs.columns.others["allowed_types"]
    labels = snapshot.jobs.columns.others["labels"]
    numbers: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}
    number_of_row = []
    for row in rows:
        key = allowed_types[row], labels[row]
        number_of_row.append(numbers.setdefault(key, len(numbers)))
    distinct = tuple([(frozenset(types), frozenset(names)) for types, names in numbers])
    return np.array(number_of_row, dtype=np.int64), distinct


@lru_cache(maxsize=4096)
def admits(signature: Signature, gpu_type: str, labels: frozenset[str]) -> bool:
    """Return True if the signature admits nodes of that type and labels."""
    types, needed_labels = signature
    is_type_allowed = not types or gpu_type in types
    return is_type_allowed and needed_labels <= labels
