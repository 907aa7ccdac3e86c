"""Offers of a round: where each job could be, how long it would take there, and its worth.

A gang may be on one node, over nodes of one type, and, if it may mix types, over nodes of several:
its slowest worker sets the pace, so of the types of a mixed gang only the slowest counts. Over
nodes the speed is what was measured there, else the project's estimate (`spread_rates`): that is
the cost of communication. A running job has one place more: it may stay, without a launch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from policies.contract.plan import training_run
from policies.contract.snapshot import Floats, Ints
from policies.contract.views import MOST_DOUBLINGS
from policies.hadar.prices import FREE, PriceRange, TypePrices
from policies.hadar.selection import Market, without_beaten
from policies.hadar.utilities import SHORTEST_S, JobFacts, worth_of
from policies.placement.from_snapshot import may_stay
from policies.placement.layout import DEVICES, Allocation, NodeSet, Request, lowest
from policies.placement.plan_builder import PlanBuilder
from policies.placement.priced_options import GroupingKey

MOST_SPLITS = 64
"""Ways to split a mixed gang over its types that are offers of their own."""


class Place(NamedTuple):
    """Place of a job: GPUs of these types, the slowest last, on one node or over nodes.

    `splits`: vectors of GPUs by type of the cluster, one of which it takes. `stays`: the
    allocation of a running job that stays; else the planner finds one by `request` on `nodes`.
    """

    types: tuple[str, ...]
    gpus: int
    steps_per_s: float
    is_spread: bool
    splits: tuple[tuple[int, ...], ...]
    request: Request | None = None
    nodes: NodeSet = 0
    stays: Allocation | None = None


@dataclass(frozen=True, slots=True)
class Offers:
    """Places of the jobs about which a round decides, with their times and worths.

    `rows`: of the J jobs that could run on some open node; `places`: P in all, those of job j are
    `first[j]` .. `first[j + 1]` - 1; `run_s`, `worth` float64[P]: seconds to the end there, a
    launch included, and the worth of that; `types`: in the order of vectors of counts; `ranges`:
    prices of each type.
    """

    rows: Sequence[int]
    places: Sequence[Place]
    first: Ints
    run_s: Floats
    worth: Floats
    types: tuple[str, ...]
    ranges: Mapping[str, PriceRange]

    def of(self, job: int) -> range:
        """Return the numbers of a job's places."""
        return range(int(self.first[job]), int(self.first[job + 1]))

    def density(self, place: int) -> float:
        """Return the worth per GPU of a place."""
        return float(self.worth[place]) / self.places[place].gpus

    def market(
        self,
        nodes: Mapping[str, Sequence[tuple[int, int]]],
        placed: Collection[int] = (),
        *,
        priced: bool = True,
    ) -> tuple[Market, Ints]:
        """Return the market of all splits of jobs that are not `placed`, and each offer's place.

        `nodes`: by type, (free GPUs, GPUs) of each node. Unless `priced` GPUs cost nothing.
        """
        # Of places with the same GPUs, as on one node and over nodes, only the best one counts.
        place_of: list[int] = []
        counts: list[tuple[int, ...]] = []
        first = [0]
        worth = self.worth.tolist()
        for job in range(len(self.rows)):
            best: dict[tuple[int, ...], int] = {}
            own = range(0) if job in placed else self.of(job)
            for place in own:
                for split in self.places[place].splits:
                    rival = best.get(split)
                    if rival is None or worth[place] > worth[rival]:
                        best[split] = place
                    elif worth[place] == worth[rival] and self.places[place].stays is not None:
                        best[split] = place  # a running job keeps its place unless it gains
            counts += best.keys()
            place_of += best.values()
            first.append(len(counts))
        prices = []
        for name in self.types:
            price_range = self.ranges[name] if priced else FREE
            prices.append(TypePrices.of(price_range, nodes[name]))
        chosen = np.array(place_of, dtype=np.int64)
        market = Market(
            np.array(first, dtype=np.int64),
            np.array(counts, dtype=np.int64).reshape(len(counts), len(self.types)),
            self.worth[chosen],
            prices,
        )
        market, kept = without_beaten(market)
        return market, chosen[kept]


def offers_of(plan: PlanBuilder, utility: str, eta: float, keep: float) -> Offers:
    """Return the offers of all jobs about which nothing is decided yet.

    `keep`: how much more a running job's place is worth while GPUs are short, as a fraction.
    """
    # 1. Jobs that could run somewhere, with their places.
    finder = _Places(plan)
    rows: list[int] = []
    places: list[Place] = []
    first = [0]
    decided = plan.decided
    for row in range(len(plan.snapshot.jobs)):
        if row in decided:
            continue
        of_row = finder.of(row)
        if of_row:
            rows.append(row)
            places += of_row
            first.append(len(places))
    owner = np.repeat(np.arange(len(rows)), np.diff(first))

    # 2. Seconds to the end of each job at each of its places; who stays needs no launch.
    columns = plan.snapshot.jobs.columns
    launch_s = np.array([plan.options.launch_times.of(row) for row in rows], dtype=np.float64)
    speed = np.array([place.steps_per_s for place in places], dtype=np.float64)
    moves = np.array([place.stays is None for place in places], dtype=np.float64)
    gpus = np.array([place.gpus for place in places], dtype=np.float64)
    work_s = columns.numbers["remaining_steps"][rows][owner] / speed
    run_s = work_s + moves * launch_s[owner]

    # 3. Their worth. A stop would waste the restart's part of the next round, so who stays is worth
    #    that much more: another job must pay for it. While GPUs are short each end would set off a
    #    chain of moves, of which the next end undoes some: then who stays is worth `keep` more.
    facts = _facts(plan, rows, finder.types, places, owner, speed)
    worth = worth_of(utility, run_s, facts.of(owner)) * _importance(plan, rows)[owner]
    restart = columns.numbers["restart_cost_s"][rows] / max(plan.snapshot.round_s, SHORTEST_S)
    for_staying = restart + (keep if _are_gpus_short(plan, rows) else 0.0)
    worth = worth * (1.0 + (1.0 - moves) * for_staying[owner])

    # 4. Prices of each type, from the jobs that could have GPUs of it.
    ranges = _ranges(finder.types, places, owner, worth / gpus, eta)
    return Offers(rows, places, np.array(first, dtype=np.int64), run_s, worth, finder.types, ranges)


class OpenNode(NamedTuple):
    """Node with GPUs that takes work: its id, and how many of its GPUs are free."""

    id: str
    gpu_type: str
    free: int
    gpus: int


def open_nodes(plan: PlanBuilder) -> Iterator[OpenNode]:
    """Yield the open nodes that have GPUs, as the plan leaves them so far."""
    state = plan.state
    for n, c in enumerate(state.layout.class_of):
        of_class = state.layout.classes[c]
        if state.open >> n & 1 and of_class.size:
            free = state.free[n][DEVICES]
            gpus = of_class.capacity[DEVICES]
            yield OpenNode(state.layout.nodes[n].id, of_class.gpu_type, free, gpus)


def free_gpus(plan: PlanBuilder) -> dict[str, list[tuple[int, int]]]:
    """Return (free GPUs, GPUs) of each open node, by GPU type."""
    found: dict[str, list[tuple[int, int]]] = {}
    for node in open_nodes(plan):
        found.setdefault(node.gpu_type, []).append((node.free, node.gpus))
    return found


def _are_gpus_short(plan: PlanBuilder, rows: Sequence[int]) -> bool:
    """Return True if these jobs ask for more GPUs, each for its least number, than are open."""
    wanted = plan.snapshot.jobs.columns.counts["gpus_min"][list(rows)].sum()
    return bool(wanted > sum(node.free for node in open_nodes(plan)))


class _Places:
    """Finder of the places of jobs; jobs of a class have the same ones."""

    def __init__(self, plan: PlanBuilder) -> None:
        self.plan = plan
        self.layout = plan.state.layout
        self.types = tuple(sorted(free_gpus(plan)))
        self._of_class: dict[GroupingKey, list[Place]] = {}

    def of(self, row: int) -> list[Place]:
        """Return the places of a job, that where it runs last."""
        key = self.plan.options.keys[row]
        if key not in self._of_class:
            self._of_class[key] = [*self._on_one_node(row), *self._over_nodes(row)]
        stays = self._where_it_runs(row)
        return self._of_class[key] if stays is None else [*self._of_class[key], stays]

    def _on_one_node(self, row: int) -> Iterator[Place]:
        for option in self.plan.options.within(self.plan.state.cap_mw, row):
            name = self._type_of(lowest(option.nodes))
            splits = (self._vector({name: option.gpus}),)
            yield Place(
                (name,), option.gpus, option.steps_per_s, False, splits, option.request,
                option.nodes,
            )  # fmt: skip

    def _over_nodes(self, row: int) -> Iterator[Place]:
        for option in self.plan.options.spread(row):
            if option.gpus < 2:
                continue
            types = option.request.types
            splits = tuple(islice(self._splits(types, option.gpus), MOST_SPLITS))
            yield Place(
                types, option.gpus, option.steps_per_s, True, splits, option.request, option.nodes
            )

    def _where_it_runs(self, row: int) -> Place | None:
        """Return the place of a running job that may stay on GPUs that nobody else has."""
        snapshot = self.plan.snapshot
        run = training_run(snapshot.jobs.columns.others["running"][row])
        if run is None or run.copy != 0 or not run.is_whole or not may_stay(snapshot, row, run):
            return None
        if any(not snapshot.node_by_id[seat.node].takes_training for seat in run.ranks):
            return None
        kind = snapshot.jobs.columns.kinds[row]
        speed = self.plan.options.speeds.on_ranks(kind, run.ranks, snapshot.node_by_id)
        allocation = self.plan.options.requests.allocation_of(row, run)
        if allocation is None or speed <= 0.0 or not self.plan.state.is_free(allocation):
            return None
        by_type: dict[str, int] = {}
        for part in allocation.parts:
            name = self._type_of(part.node)
            by_type[name] = by_type.get(name, 0) + part.devices.bit_count()
        is_spread = len(allocation.parts) > 1
        return Place(
            tuple(by_type), run.gpus, speed, is_spread, (self._vector(by_type),), stays=allocation
        )

    def _splits(self, types: Sequence[str], gpus: int) -> Iterator[tuple[int, ...]]:
        """Yield the vectors of a gang over types of which the last one, the slowest, takes part."""
        if len(types) == 1:
            yield self._vector({types[0]: gpus})
            return
        for slowest in range(1, gpus):
            for others in _compositions(gpus - slowest, len(types) - 1):
                yield self._vector(dict(zip(types, (*others, slowest), strict=True)))

    def _vector(self, by_type: Mapping[str, int]) -> tuple[int, ...]:
        return tuple([by_type.get(name, 0) for name in self.types])

    def _type_of(self, node: int) -> str:
        return self.layout.classes[self.layout.class_of[node]].gpu_type


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield the ways to write a total as a sum of so many numbers, the first one greatest first."""
    if parts == 1:
        yield (total,)
        return
    for number in range(total, -1, -1):
        for rest in _compositions(total - number, parts - 1):
            yield (number, *rest)


def _facts(
    plan: PlanBuilder,
    rows: Sequence[int],
    types: Sequence[str],
    places: Sequence[Place],
    owner: Ints,
    speed: Floats,
) -> JobFacts:
    """Return what utilities may know of these jobs."""
    columns = plan.snapshot.jobs.columns
    chosen = list(rows)
    left = columns.numbers["remaining_steps"][chosen]
    total = np.maximum(columns.numbers["total_steps"][chosen], left)
    gpus = np.maximum(columns.counts["gpus_min"][chosen], 1).astype(np.float64)
    fastest = np.zeros(len(rows))
    np.maximum.at(fastest, owner, speed)
    best_s = np.maximum(left / fastest, SHORTEST_S)
    longest_s = float(best_s.max(initial=SHORTEST_S))
    busy_s = _load_s(plan, types, places, owner, speed / fastest[owner], gpus * best_s)
    ones = np.ones(len(rows))
    return JobFacts(
        gpus=gpus,
        age_s=np.maximum(plan.snapshot.now_s - columns.numbers["arrival_s"][chosen], 0.0),
        best_s=best_s,
        whole_s=np.maximum(total / fastest, SHORTEST_S),
        shortest_s=ones * float(best_s.min(initial=longest_s)),
        horizon_s=ones * max(longest_s, busy_s),
    )


def _load_s(
    plan: PlanBuilder,
    types: Sequence[str],
    places: Sequence[Place],
    owner: Ints,
    relative_speed: Floats,
    work_s: Floats,
) -> float:
    """Return the time for all work on all GPUs at its mean speed on each type.

    `relative_speed` float64[P]: to the job's fastest place; `work_s` float64[J]: GPU time there.
    """
    total_s = float(work_s.sum())
    number = {name: t for t, name in enumerate(types)}
    of_one_type = [i for i, place in enumerate(places) if len(place.types) == 1]
    alone = np.array(of_one_type, dtype=np.int64)
    type_of = np.array([number[places[i].types[0]] for i in of_one_type], dtype=np.int64)
    speed_on = np.zeros((len(types), len(work_s)))
    np.maximum.at(speed_on, (type_of, owner[alone]), relative_speed[alone])
    free = free_gpus(plan)
    capacity = 0.0
    for t, name in enumerate(types):
        gpus = sum(free_here for free_here, _ in free[name])
        capacity += gpus * float(speed_on[t] @ work_s) / max(total_s, SHORTEST_S)
    return total_s / capacity if capacity > 0.0 else 0.0


def _importance(plan: PlanBuilder, rows: Sequence[int]) -> Floats:
    """float64[J]: weight of each job, doubled by each step of priority."""
    columns = plan.snapshot.jobs.columns
    priority = np.clip(columns.counts["priority"][list(rows)], -MOST_DOUBLINGS, MOST_DOUBLINGS)
    weight: Floats = columns.numbers["weight"][list(rows)] * 2.0**priority
    return weight


def _ranges(
    types: Sequence[str], places: Sequence[Place], owner: Ints, density: Floats, eta: float
) -> dict[str, PriceRange]:
    """Return the prices of each type; `density` float64[P]: worth per GPU of each place."""
    jobs = int(owner.max(initial=-1)) + 1
    best = np.zeros(jobs)
    worst = np.full(jobs, np.inf)
    np.maximum.at(best, owner, density)
    np.minimum.at(worst, owner, density)
    users: dict[str, set[int]] = {name: set() for name in types}
    for i, place in enumerate(places):
        for name in place.types:
            users[name].add(int(owner[i]))
    ranges: dict[str, PriceRange] = {}
    for name in types:
        chosen = sorted(users[name])
        ranges[name] = PriceRange.of(best[chosen], worst[chosen], eta)
    return ranges
