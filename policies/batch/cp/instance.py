"""Instance of the on-line dispatching problem at a time t, all in integers.

Times count from t in grid units. Run times are rounded up: no job is reckoned shorter than its
prediction. Amounts are exact: each resource is divided by the greatest common divisor of all
demands. Capacities are rounded down to a multiple of it; no demand could use the rest. An unlimited
capacity counts as the sum of all demands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, gcd
from typing import TypeAlias

from policies.batch.cp.waiting import Candidates, WaitingJob, limited_s
from policies.batch.plan import BatchPlan
from policies.placement.layout import RESOURCES, Layout, Request

Amounts: TypeAlias = tuple[int, ...]
"""Amount of each resource: GPUs, then those of the layout."""

RESOLUTION = 1000
"""Least coefficient of a start in the objective, as long as the objective is below LARGEST."""

LARGEST = 2**50
"""Largest value of the objective."""


@dataclass(frozen=True, slots=True)
class Job:
    """Waiting job i: `units` (rn_i) units of `demand` (req_i,r / rn_i) for `duration` (d_i).

    `earliest`: 0 if the job fits now, else the first end of what runs. `nodes`: those that can hold
    a unit, in order. The units of an exclusive job are whole nodes.
    """

    source: WaitingJob
    units: int
    demand: Amounts
    duration: int
    earliest: int
    nodes: tuple[int, ...]

    @property
    def is_exclusive(self) -> bool:
        """True if the job has its nodes to itself."""
        return self.source.whole_nodes > 0

    @property
    def most(self) -> int:
        """Units on one node at most."""
        if self.is_exclusive:
            return 1
        return self.source.request.most or self.units

    @property
    def node_count(self) -> int:
        """Nodes that the units must be on; 0 for any number."""
        return 0 if self.is_exclusive else self.source.request.nodes

    def total(self, r: int) -> int:
        """Return req_i,r, the demand of all units together."""
        return self.source.request.units * self.demand[r]


@dataclass(frozen=True, slots=True)
class RunningPart:
    """Part of a node that a running job uses for `left` = max(1, s_i + d_i - t)."""

    node: int
    demand: Amounts
    left: int


@dataclass(frozen=True)
class Instance:
    """Waiting jobs by priority, what runs, and the capacity cap[n, r] of each open node.

    `order`: these nodes, by their numbers in the layout. `kind`: a number for each node; nodes with
    equal class and labels have the same.
    """

    jobs: tuple[Job, ...]
    running: tuple[RunningPart, ...]
    capacity: Mapping[int, Amounts]
    order: tuple[int, ...]
    kind: Mapping[int, int]
    grid_s: float

    @cached_property
    def resources(self) -> tuple[int, ...]:
        """Numbers of the resources R that waiting jobs ask for.

        If one of them is exclusive, also those that running jobs have.
        """
        demands = [job.demand for job in self.jobs]
        if any(job.is_exclusive for job in self.jobs):
            demands += [part.demand for part in self.running]
        amounts_of_resource = enumerate(zip(*demands, strict=True))
        return tuple([r for r, amounts in amounts_of_resource if any(amounts)])

    @cached_property
    def horizon(self) -> int:
        """End of the horizon, eoh - t: all waiting jobs one after another, after what runs."""
        longest_running = max([part.left for part in self.running], default=0)
        return longest_running + sum(job.duration for job in self.jobs)

    def total(self, r: int) -> int:
        """Return Tcap_r = sum_n cap[n, r]."""
        return sum(amounts[r] for amounts in self.capacity.values())

    @cached_property
    def running_places(self) -> tuple[tuple[RunningPart, tuple[int, ...]], ...]:
        """Return what runs, and its first position on its node on each resource of R.

        The longest come first, so that what becomes free is next to what is free.
        """
        next_position = {n: (0,) * len(self.resources) for n in self.order}
        places = []
        for part in sorted(self.running, key=lambda part: (-part.left, part.demand)):
            first = next_position[part.node]
            places.append((part, first))
            pairs = zip(first, self.resources, strict=True)
            next_position[part.node] = tuple([position + part.demand[r] for position, r in pairs])
        return tuple(places)

    @cached_property
    def interchangeable(self) -> Mapping[int, int]:
        """A number for each node: nodes of a kind with equal capacity and use have the same."""
        used: dict[int, list[tuple[int, Amounts]]] = {n: [] for n in self.order}
        for part in self.running:
            used[part.node].append((part.left, part.demand))
        return _numbered(
            {n: (self.kind[n], self.capacity[n], *sorted(used[n])) for n in self.order}
        )

    @cached_property
    def blocked(self) -> Mapping[int, int]:
        """Time until which what runs longest on a node leaves no room for a unit; 0: it does."""
        longest: dict[int, RunningPart] = {}
        for part in self.running:
            if part.node not in longest or part.left > longest[part.node].left:
                longest[part.node] = part
        blocked = dict.fromkeys(self.order, 0)
        for n, part in longest.items():
            if self._is_blocked(part):
                blocked[n] = part.left
        return blocked

    def _is_blocked(self, part: RunningPart) -> bool:
        """Return True if no unit of a job fits beside a part; those without demand need no room."""
        capacity = self.capacity[part.node]
        free = [amount - used for amount, used in zip(capacity, part.demand, strict=True)]
        for job in self.jobs:
            if any(job.demand) and not job.is_exclusive and _has(free, job.demand):
                return False
        return True

    @cached_property
    def rates(self) -> tuple[float, ...]:
        """Growth of each job's slowdown, w_i grid / d_i, for a start that is a grid unit later."""
        sources = [job.source for job in self.jobs]
        return tuple([job.weight * self.grid_s / job.run_s for job in sources])

    @cached_property
    def scale(self) -> float:
        """Units of the model's objective in a slowdown of 1: K."""
        largest = LARGEST / (sum(self.rates) * max(1, self.horizon))
        return min(RESOLUTION / min(self.rates), largest)

    @cached_property
    def coefficients(self) -> tuple[int, ...]:
        """Coefficients c_i of the starts in the model's objective, round(K rate_i)."""
        return tuple(max(1, round(self.scale * rate)) for rate in self.rates)

    @cached_property
    def rounding(self) -> float:
        """Largest relative error of a coefficient.

        At most 1 / (2 RESOLUTION), unless LARGEST limits K.
        """
        errors = []
        for coefficient, rate in zip(self.coefficients, self.rates, strict=True):
            errors.append(abs(coefficient / (self.scale * rate) - 1.0))
        return max(errors)

    def slowdowns(self, starts: Sequence[float]) -> float:
        """Return sum_i w_i (s_i - q_i + d_i) / d_i."""
        at_once = sum(job.source.weight * job.source.slowdown for job in self.jobs)
        by_starts = sum(rate * start for rate, start in zip(self.rates, starts, strict=True))
        return at_once + by_starts


def instance_of(candidates: Candidates, jobs: Sequence[WaitingJob], grid_s: float) -> Instance:
    """Return the instance of these jobs beside all that runs."""
    # 1. Open nodes with all that they have, and what runs on them.
    state = candidates.released
    size = RESOURCES + len(state.layout.resources)
    nodes = [n for n in range(len(state.free)) if state.open >> n & 1]
    whole = {n: state.free[n][:size] for n in nodes}
    running = [part for part in _running(candidates.plan, grid_s, size) if part.node in whole]

    # 2. The unit of each resource, which divides all demands; and the sum of all demands, which
    #    limits capacities.
    nothing = (0,) * size
    unit_demands = [unit_demand(job.request, size) for job in jobs]
    totals = [part.demand for part in running if part.demand]
    for job, demand in zip(jobs, unit_demands, strict=True):
        totals.append(tuple([job.request.units * amount for amount in demand]))
    sums = [sum(amounts) for amounts in zip(nothing, *totals, strict=True)]
    divisors = [gcd(*amounts) or 1 for amounts in zip(nothing, *unit_demands, *totals, strict=True)]

    def scaled(amounts: Sequence[int]) -> Amounts:
        """Return amounts in units of the resources, rounded down."""
        pairs = zip(amounts, divisors, strict=True)
        return tuple([max(0, amount) // divisor for amount, divisor in pairs])

    # 3. Nodes, what runs, and jobs in these units.
    capacity = {n: scaled(list(map(min, whole[n], sums))) for n in nodes}
    parts = []
    for part in running:
        is_exclusive = not part.demand
        demand = capacity[part.node] if is_exclusive else scaled(part.demand)
        parts.append(replace(part, demand=demand))
    first_end = min([part.left for part in parts], default=1)
    waiting = []
    for job, demand in zip(jobs, map(scaled, unit_demands), strict=True):
        waiting.append(
            Job(
                source=job,
                units=job.whole_nodes or job.request.units,
                demand=demand,
                duration=ceil(job.run_s / grid_s),
                earliest=0 if job.fits_now else first_end,
                nodes=tuple([n for n in nodes if job.nodes >> n & 1 and _has(capacity[n], demand)]),
            )
        )
    return Instance(
        jobs=tuple(waiting),
        running=tuple(parts),
        capacity=capacity,
        order=tuple(nodes),
        kind=_kinds(state.layout),
        grid_s=grid_s,
    )


def _has(capacity: Sequence[int], demand: Amounts) -> bool:
    """Return True if a capacity is enough for a demand."""
    return all(wanted <= amount for wanted, amount in zip(demand, capacity, strict=True))


def unit_demand(request: Request, size: int) -> Amounts:
    """Return what one unit of a request uses on its node.

    Amounts that a gang uses once on each node are left out: that is checked when it is placed.
    """
    amounts = request.amounts or (0,) * (size - RESOURCES)
    return (request.gpus, *amounts)


def _running(plan: BatchPlan, grid_s: float, size: int) -> Iterator[RunningPart]:
    """Yield what running jobs use. An exclusive one has the demand (): it uses the whole node."""
    for stay in plan.builder.pinned:
        left = max(1, ceil(limited_s(plan.left_s[stay.row]) / grid_s))
        for node, units, devices in stay.allocation.parts:
            demand: Amounts = ()
            if not plan.is_alone(stay.row):
                used = stay.allocation.request.used(units) or (0,) * (size - RESOURCES)
                demand = devices.bit_count(), *used
            yield RunningPart(node, demand, left)


def _kinds(layout: Layout) -> dict[int, int]:
    """Return a number for each node: nodes with equal class and labels have the same."""
    keys: dict[int, object] = {}
    for n, c in enumerate(layout.class_of):
        keys[n] = c, frozenset(layout.nodes[n].labels)
    return _numbered(keys)


def _numbered(keys: Mapping[int, object]) -> dict[int, int]:
    """Return a number for each node: nodes with equal keys have the same, from 0 up."""
    numbers: dict[object, int] = {}
    return {n: numbers.setdefault(key, len(numbers)) for n, key in keys.items()}
