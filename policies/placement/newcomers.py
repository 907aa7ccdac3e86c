"""The baselines' packing where nothing that is shown runs: the same decisions as `build`, `pack`
and `plan_of`, in plain loops.

A round in which a job or two have come in is what most rounds are. Arrays of so few rows cost more
than they save, so that here jobs are looked at one by one, what is known of node classes and of
jobs of one shape is kept between rounds (`Snapshot.lasting`), and jobs of a shape that found no
place are not tried again. `is_plain` says where this holds: no power cap, no labels, dependencies
or profiles to wait for, and cores and memory that cannot run out before the GPUs do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from policies.contract.openings import Openings
from policies.contract.plan import Placement, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.snapshot import (
    Floats,
    Ints,
    JobColumns,
    JobPhase,
    NodeView,
    RankSeat,
    Snapshot,
)
from policies.placement.impossible import MOST_NAMED, why_impossible
from policies.placement.pricing import Prices, prices_of

Shape: TypeAlias = tuple[str, int, int, tuple[str, ...]]
"""What decides where a job may run and how fast: kind, gpus_min, gpus_max, allowed types."""

MOST_GPUS = 255
"""GPUs of a node that are told apart here: free ones are counted in bytes."""


@dataclass(frozen=True, slots=True)
class Option:
    """A configuration a shape can run in when the cluster is empty: node class, GPUs, steps/s,
    watts of a node so used.
    """

    of_class: int
    gpus: int
    steps_per_s: float
    power_w: float


@dataclass(frozen=True, slots=True)
class Queue:
    """All jobs of a snapshot, as a baseline orders them."""

    columns: JobColumns

    def column(self, name: str) -> Floats:
        """A numeric column."""
        return self.columns.numbers[name]

    def count(self, name: str) -> Ints:
        """A column of counts."""
        return self.columns.counts[name]


def is_plain(snapshot: Snapshot) -> bool:
    """Whether all jobs shown wait, may start, and can lack nothing but GPUs of the right types."""
    columns = snapshot.jobs.columns
    others = columns.others
    if (
        snapshot.power_cap_w is not None
        or snapshot.power_caps
        or any(others["running"])
        or JobPhase.PROFILING in others["phase"]
    ):
        return False
    if not columns.free_of_conditions:
        return False
    is_known = snapshot.jobs.position.keys()
    return (
        is_known.isdisjoint(snapshot.openings.holders.keys())
        and snapshot.max_gpus <= MOST_GPUS
        and _is_roomy(snapshot)
    )


def plan_newcomers(snapshot: Snapshot, policy: str, order: Ints) -> Plan:
    """The plan of a plain snapshot, its jobs placed in this order (int64[J]) as `packing.pack`
    does.
    """
    return _Packing(snapshot).plan(policy, order)


def _is_roomy(snapshot: Snapshot) -> bool:
    """Whether every node has cores and memory for one of the hungriest jobs on each of its GPUs."""
    if snapshot.jobs.columns.gpus_only:
        return True
    numbers, units = snapshot.jobs.columns.numbers, snapshot.jobs.columns.counts["units"]
    most = [float((numbers[name] * np.maximum(units, 1)).max()) for name in ("cores", "memory_gb")]
    limits = _layout(snapshot).limits
    return all(
        gpus * most[0] <= cores and gpus * most[1] <= memory_gb for gpus, cores, memory_gb in limits
    )


@dataclass(frozen=True, slots=True)
class _Layout:
    """What lasts between rounds: class of each node (-1: takes no training), a node of each class,
    options by shape.

    `is_of` uint8[C, N]: 1 where the node is of the class. `limits`: (devices, cores, memory) of the
    nodes, each different one once. `impossible`: why shapes without options must wait.
    """

    node_class: tuple[int, ...]
    members: tuple[NodeView, ...]
    is_of: NDArray[np.uint8]
    limits: frozenset[tuple[int, float, float]]
    options: dict[Shape, tuple[Option, ...]] = field(default_factory=dict)
    impossible: dict[Shape, tuple[WaitCode, tuple[str, ...]]] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot) -> _Layout:
        """Nodes of one class have the same type, devices and power curve, as in `problem.build`
        where no labels are asked for.
        """
        numbers: dict[object, int] = {}
        members: list[NodeView] = []
        of = [-1] * len(snapshot.nodes)
        training = [(i, n) for i, n in enumerate(snapshot.nodes) if n.takes_training]
        for i, node in training:
            of[i] = numbers.setdefault(
                (node.gpu_type, len(node.devices), node.power_w), len(numbers)
            )
            if of[i] == len(members):
                members.append(node)
        limits = frozenset((len(n.devices), n.cores, n.memory_gb) for _, n in training)
        is_of = np.array(of)[None, :] == np.arange(len(members))[:, None]
        return cls(tuple(of), tuple(members), is_of.astype(np.uint8), limits)

    def power_w(self, of_class: int, gpus: int) -> float:
        """Watts of a node of the class with so many GPUs in use."""
        known = self.members[of_class].power_w or (0.0,)
        return known[min(gpus, len(known) - 1)]


def _layout(snapshot: Snapshot) -> _Layout:
    found: _Layout | None = snapshot.lasting.get("newcomers")
    if found is None:
        found = snapshot.lasting["newcomers"] = _Layout.of(snapshot)
    return found


@dataclass(frozen=True, slots=True)
class _Taken:
    """A job that has a node: their rows, the option, and the run time, a launch included."""

    row: int
    node: int
    option: Option
    run_s: float


class _Room:
    """Free GPUs by class and node, and which node is taken next: best fit, of equal ones that to
    which something was given last in this round, else the last of the cluster (as the lists of
    `configuration.instance` have it).
    """

    def __init__(self, layout: _Layout, openings: Openings) -> None:
        self.nodes, self.most = len(layout.node_class), [len(n.devices) for n in layout.members]
        self.untouched = bytearray(
            (layout.is_of * np.frombuffer(bytes(openings.gpus), dtype=np.uint8)).tobytes()
        )
        self.touched: list[list[list[int]]] = [[[] for _ in range(most)] for most in self.most]
        self.free = sum(self.untouched)

    def take(self, of_class: int, gpus: int) -> int | None:
        """The node of this class that gives so many GPUs; None if none has them."""
        touched, start = self.touched[of_class], of_class * self.nodes
        for left in range(gpus, self.most[of_class] + 1):
            if left < len(touched) and touched[left]:
                node = touched[left].pop()
            elif (at := self.untouched.rfind(left, start, start + self.nodes)) >= 0:
                self.untouched[at] = 0
                node = at - start
            else:
                continue
            touched[left - gpus].append(node)
            self.free -= gpus
            return node
        return None


class _Packing:
    """One round's jobs and what is left for them."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot, self.layout, self.openings = (
            snapshot,
            _layout(snapshot),
            snapshot.openings.of,
        )
        columns = snapshot.jobs.columns
        self.ids, kinds, types = columns.ids, columns.kinds, columns.others["allowed_types"]
        least, most = columns.counts["gpus_min"].tolist(), columns.counts["gpus_max"].tolist()
        self.shapes: list[Shape] = list(zip(kinds, least, most, types, strict=True))
        self.prices = prices_of(snapshot)
        self.room = _Room(self.layout, snapshot.openings)

    def plan(self, policy: str, order: Ints) -> Plan:
        """Place what can be placed in this order; say why the others wait."""
        placements = self._named(sorted(self._take(order), key=lambda t: t.row))
        waiting = self._waiting(placements) if len(placements) < len(self.ids) else ()
        return Plan(policy, PlanStatus.HEURISTIC, tuple(placements), waiting)

    def _take(self, order: Ints) -> list[_Taken]:
        """First come, first served; jobs of a shape that found no place are passed over from then
        on.
        """
        numbers = self.snapshot.jobs.columns.numbers
        steps, total = numbers["remaining_steps"], numbers["total_steps"]
        due_s, restart_s = numbers["due_s"], numbers["restart_cost_s"]
        taken: list[_Taken] = []
        hopeless: set[Shape] = set()
        for row in order.tolist() if self.room.free else ():
            shape = self.shapes[row]
            if shape in hopeless:
                continue
            left = float(steps[row])
            launch_s = max(
                self._setup_s(shape[0]), float(restart_s[row]) if left < total[row] else 0.0
            )
            found = self._place(shape, left, launch_s, float(due_s[row]) - self.snapshot.now_s)
            if found is None:
                hopeless.add(shape)
                continue
            taken.append(_Taken(row, *found))
            if not self.room.free:
                break
        return taken

    def _setup_s(self, kind: str) -> float:
        return self.snapshot.kinds[self.snapshot.kind_index[kind]].setup_s

    def _place(
        self, shape: Shape, steps: float, launch_s: float, slack_s: float
    ) -> tuple[int, Option, float] | None:
        """(node, option, run time) in the first of the shape's options that has room: the cheapest
        in time, else the fastest.
        """
        options = self._options(shape)
        times = [steps / o.steps_per_s + launch_s for o in options]
        for _, _, number in self._ranked(options, times, slack_s):
            option = options[number]
            node = self.room.take(option.of_class, option.gpus)
            if node is not None:
                return node, option, times[number]
        return None

    def _ranked(
        self, options: Sequence[Option], times: Sequence[float], slack_s: float
    ) -> list[tuple[bool, float, int]]:
        """Places in `options` in the order of `configuration.choose`: in time by rising cost, then
        the others by rising time.
        """
        priced = times if self.prices.is_flat else self.prices.priced_s(np.array(times)).tolist()
        reference = self.prices.reference
        ranks = [
            (False, seconds * (o.power_w * reference), i) if time_s < slack_s else (True, time_s, i)
            for i, (o, time_s, seconds) in enumerate(zip(options, times, priced, strict=True))
        ]
        ranks.sort()
        return ranks

    def _options(self, shape: Shape) -> tuple[Option, ...]:
        known = self.layout.options.get(shape)
        if known is None:
            known = self.layout.options[shape] = tuple(_options(self.snapshot, self.layout, shape))
        return known

    def _named(self, taken: Sequence[_Taken]) -> list[Placement]:
        """Placements with the names of devices, in the jobs' order."""
        given: dict[int, int] = {}
        for t in taken:
            given[t.node] = given.get(t.node, 0) + t.option.gpus
        prices, placements = prices_of(self.snapshot, emissions=False), []
        next_free = dict.fromkeys(given, 0)
        for t in taken:
            gpus, opening, first = t.option.gpus, self.openings[t.node], next_free[t.node]
            next_free[t.node] = first + gpus
            seat = RankSeat(self.snapshot.nodes[t.node].id, opening.free[first : first + gpus])
            cost = self._share(prices, t, opening.held + given[t.node])
            placements.append(
                Placement(
                    self.ids[t.row], (seat,), predicted_run_s=t.run_s, predicted_energy_cost=cost
                )
            )
        return placements

    def _share(self, prices: Prices, taken: _Taken, used: int) -> float:
        """The job's part of its node's bill, by GPUs, while it runs beside what is placed there
        now; emissions are not billed.
        """
        cost = self.layout.power_w(taken.option.of_class, used) * prices.reference
        seconds = (
            taken.run_s if prices.is_flat else float(prices.priced_s(np.array([taken.run_s]))[0])
        )
        return cost * taken.option.gpus / used * seconds

    def _waiting(self, placements: Sequence[Placement]) -> tuple[Waiting, ...]:
        """One reason for each job that is not placed, in the jobs' order."""
        placed = {p.job for p in placements}
        at: dict[str, list[Placement]] = defaultdict(list)
        for p in placements:
            at[p.ranks[0].node].append(p)
        reasons: dict[Shape, tuple[WaitCode, tuple[str, ...], tuple[str, ...], float | None]] = {}
        waiting = []
        for row, (job, shape) in enumerate(zip(self.ids, self.shapes, strict=True)):
            if job not in placed:
                if shape not in reasons:
                    reasons[shape] = self._reason(row, shape, at)
                code, nodes, jobs, earliest_s = reasons[shape]
                waiting.append(Waiting(job, code, nodes, jobs, None, earliest_s))
        return tuple(waiting)

    def _reason(
        self, row: int, shape: Shape, at: Mapping[str, Sequence[Placement]]
    ) -> tuple[WaitCode, tuple[str, ...], tuple[str, ...], float | None]:
        """It can run nowhere; or there is no room, and these were given what it could have had."""
        options = self._options(shape)
        if not options:
            if shape not in self.layout.impossible:
                self.layout.impossible[shape] = why_impossible(self.snapshot, row)
            return (*self.layout.impossible[shape], (), None)
        classes = {o.of_class for o in options}
        nodes = (
            n.id
            for n, c in zip(self.snapshot.nodes, self.layout.node_class, strict=True)
            if c in classes
        )
        holders = [p for n in nodes for p in at.get(n, ())]
        ends = [p.predicted_run_s for p in holders if p.predicted_run_s is not None]
        earliest_s = self.snapshot.now_s + min(ends) if ends else None
        return (
            WaitCode.NO_CAPACITY,
            (),
            tuple(dict.fromkeys(p.job for p in holders))[:MOST_NAMED],
            earliest_s,
        )


def _options(snapshot: Snapshot, layout: _Layout, shape: Shape) -> list[Option]:
    """The shape's possible configurations, in the order of `problem.build`: by class, then by
    GPUs.
    """
    kind, least, most, types = shape
    rates, found = snapshot.throughputs[snapshot.kind_index[kind]], []
    for of_class, node in enumerate(layout.members):
        column = snapshot.type_index[node.gpu_type]
        for gpus in range(1, len(node.devices) + 1):
            rate = float(rates[column, gpus])
            if rate > 0.0 and least <= gpus <= most and (not types or node.gpu_type in types):
                found.append(Option(of_class, gpus, rate, layout.power_w(of_class, gpus)))
    return found
