"""Instance of the on-line dispatching problem at a time t, all in integers.

Times count from t in grid units. Run times are rounded up: no job is reckoned shorter than it was
told. Amounts are exact: each resource is divided by the greatest common divisor of all demands, and
capacities are rounded down to it, of which no demand could use the rest. An unlimited capacity
counts as the sum of all demands.
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
        return self.source.whole_nodes > 0

    @property
    def most(self) -> int:
        """Units on one node at most."""
        return 1 if self.is_exclusive else self.source.request.most or self.units

    @property
    def node_count(self) -> int:
        """Nodes that the units must be on; 0 for any number."""
        return 0 if self.is_exclusive else self.source.request.nodes

    def total(self, r: int) -> int:
        """Return req_i,r."""
        return self.source.request.units * self.demand[r]


@dataclass(frozen=True, slots=True)
class RunningPart:
    """Part of a node that a running job uses for `left` = max(1, s_i + d_i - t)."""

    node: int
    demand: Amounts
    left: int


@dataclass(frozen=True)
class Instance:
    """Waiting jobs by priority, what runs, and the capacity cap[n, r] of nodes in use.

    `order`: these nodes; `kind`: number of each node's class and labels.
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

        If one of them is exclusive also those that running ones have.
        """
        used = [job.demand for job in self.jobs]
        if any(job.is_exclusive for job in self.jobs):
            used += [part.demand for part in self.running]
        return tuple(r for r, amounts in enumerate(zip(*used, strict=True)) if any(amounts))

    @cached_property
    def horizon(self) -> int:
        """End of the worst-case makespan, eoh - t.

        Running jobs end side by side, so the longest of them stands for the sum of all.
        """
        left = max([part.left for part in self.running], default=0)
        return left + sum(job.duration for job in self.jobs)

    def total(self, r: int) -> int:
        """Return Tcap_r = sum_n cap[n, r]."""
        return sum(amounts[r] for amounts in self.capacity.values())

    @cached_property
    def running_places(self) -> tuple[tuple[RunningPart, tuple[int, ...]], ...]:
        """Return what runs, and its first position on its node on each resource of R.

        The longest come first, so that what becomes free is next to what is free.
        """
        used = {n: [0] * len(self.resources) for n in self.order}
        found = []
        for part in sorted(self.running, key=lambda part: (-part.left, part.demand)):
            first = tuple(used[part.node])
            found.append((part, first))
            used[part.node] = [
                a + part.demand[r] for a, r in zip(first, self.resources, strict=True)
            ]
        return tuple(found)

    @cached_property
    def interchangeable(self) -> Mapping[int, int]:
        """Number of each node's class: nodes of a kind with equal capacity, used alike by jobs."""
        used: dict[int, list[tuple[int, Amounts]]] = {n: [] for n in self.order}
        for part in self.running:
            used[part.node].append((part.left, part.demand))
        numbers: dict[object, int] = {}
        keys = {n: (self.kind[n], self.capacity[n], *sorted(used[n])) for n in self.order}
        return {n: numbers.setdefault(key, len(numbers)) for n, key in keys.items()}

    @cached_property
    def blocked(self) -> Mapping[int, int]:
        """Time until which what runs longest on a node leaves no room for a unit; 0: it does."""
        longest: dict[int, RunningPart] = {}
        for part in self.running:
            if (last := longest.get(part.node)) is None or part.left > last.left:
                longest[part.node] = part
        found = dict.fromkeys(self.order, 0)
        return found | {n: part.left for n, part in longest.items() if self._is_blocked(part)}

    def _is_blocked(self, part: RunningPart) -> bool:
        """Return True if no unit of a job fits beside a part; those without demand need no room."""
        capacity = self.capacity[part.node]
        free = [a - used for a, used in zip(capacity, part.demand, strict=True)]
        return not any(
            _has(free, job.demand) for job in self.jobs if any(job.demand) and not job.is_exclusive
        )

    @cached_property
    def rates(self) -> tuple[float, ...]:
        """Growth of each job's slowdown, w_i grid / d_i, for a start that is a grid unit later."""
        of = (job.source for job in self.jobs)
        return tuple(job.weight * self.grid_s / job.run_s for job in of)

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
        """Relative error of the objective at most; 1 / (2 RESOLUTION) unless LARGEST limits K."""
        pairs = zip(self.coefficients, self.rates, strict=True)
        return max(abs(c / (self.scale * rate) - 1.0) for c, rate in pairs)

    def slowdowns(self, starts: Sequence[float]) -> float:
        """Return sum_i w_i (s_i - q_i + d_i) / d_i."""
        at_once = sum(job.source.weight * job.source.slowdown for job in self.jobs)
        return at_once + sum(r * s for r, s in zip(self.rates, starts, strict=True))


def instance_of(found: Candidates, jobs: Sequence[WaitingJob], grid_s: float) -> Instance:
    """Return the instance of these jobs beside all that runs."""
    state, size = found.released, RESOURCES + len(found.released.layout.resources)
    nodes = [n for n in range(len(state.free)) if state.open >> n & 1]
    free = {n: state.free[n][:size] for n in nodes}
    running = [part for part in _running(found.plan, grid_s, size) if part.node in free]
    units = [unit_demand(job.request, size) for job in jobs]
    wanted = [[job.request.units * a for a in of] for job, of in zip(jobs, units, strict=True)]
    used = [*wanted, *[part.demand for part in running if part.demand]]
    nothing = [0] * size
    most = [sum(amounts) for amounts in zip(nothing, *used, strict=True)]
    step = [gcd(*amounts) or 1 for amounts in zip(nothing, *units, *used, strict=True)]

    def scaled(amounts: Sequence[int]) -> Amounts:
        return tuple([max(0, a) // of for a, of in zip(amounts, step, strict=True)])

    capacity = {n: scaled([min(a, m) for a, m in zip(free[n], most, strict=True)]) for n in nodes}
    parts = [
        replace(part, demand=scaled(part.demand) if part.demand else capacity[part.node])
        for part in running
    ]
    first_end = min([part.left for part in parts], default=1)
    waiting = [
        Job(
            job,
            job.whole_nodes or job.request.units,
            demand,
            ceil(job.run_s / grid_s),
            0 if job.fits_now else first_end,
            tuple([n for n in nodes if job.nodes >> n & 1 and _has(capacity[n], demand)]),
        )
        for job, demand in zip(jobs, map(scaled, units), strict=True)
    ]
    return Instance(
        tuple(waiting), tuple(parts), capacity, tuple(nodes), _kinds(state.layout), grid_s
    )


def _has(capacity: Sequence[int], demand: Amounts) -> bool:
    return all(d <= a for d, a in zip(demand, capacity, strict=True))


def unit_demand(request: Request, size: int) -> Amounts:
    """Return what one unit of a request uses on its node.

    Amounts that a gang uses once on each node are left out: that is checked when it is placed.
    """
    amounts = request.amounts or (0,) * (size - RESOURCES)
    return (request.gpus, *amounts)


def _running(plan: BatchPlan, grid_s: float, size: int) -> Iterator[RunningPart]:
    """Yield what running jobs use; an exclusive one has no demand, but the whole node."""
    for stay in plan.plan.pinned:
        left = max(1, ceil(limited_s(plan.left_s[stay.row]) / grid_s))
        for node, units, devices in stay.allocation.parts:
            used = stay.allocation.request.used(units) or (0,) * (size - RESOURCES)
            amounts = () if plan.is_alone(stay.row) else (devices.bit_count(), *used)
            yield RunningPart(node, amounts, left)


def _kinds(layout: Layout) -> dict[int, int]:
    """Number the nodes by class and labels."""
    numbers: dict[object, int] = {}
    keys = [(c, frozenset(layout.nodes[n].labels)) for n, c in enumerate(layout.class_of)]
    return {n: numbers.setdefault(key, len(numbers)) for n, key in enumerate(keys)}
