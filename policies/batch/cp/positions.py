"""Allocation model of PCP'20 (Galleguillos et al. 2020, section 3): positions of units.

The resources of a type r are one list, node after node. y[i, r, u] is the first position of unit u
of job i on r, for each r that the job asks for: with the starts |Q| + sum_i rn_i |R| variables,
whatever the number of nodes. A unit is a box of s_i .. s_i + d_i by y .. y + dy with dy = req_i,r /
rn_i, and what runs is a box at the positions that its node gives it. Each method adds the
constraint it is named after.

Every list leaves a gap after each node: a node begins at its number times `stride`, on all lists,
and has fewer than stride / 2 positions. This replaces the tables map_r of the paper and the
variables of element(map_r, y), with the same solutions:

- a unit lies on one node, element(map_r, y) = element(map_r, y + dy - 1) (the paper has y + dy,
  one too far): the domain of y has just these values;
- its resources are on one node, element(map_a, y_a) = element(map_b, y_b): -stride / 2 < y_a - y_b
  < stride / 2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

from ortools.sat.python import cp_model

from policies.batch.cp.instance import Job
from policies.batch.cp.list_schedule import listed
from policies.batch.cp.scheduling import SchedulingModel


class Box(NamedTuple):
    """Unit on a resource: when, where, and how long."""

    time: Any
    place: Any
    duration: int


@dataclass
class PositionsModel(SchedulingModel):
    """Scheduling model with y[i, r], the positions of the units of job i on resource r.

    `symmetry`: of solutions that differ only in the order of a job's equal units, or in nodes that
    have the same class and labels and are used alike by what runs, one is left; and only `kept`
    nodes are looked at. Presolving boxes takes minutes on a thousand nodes, outside the budget, and
    saves nothing on small clusters.
    """

    presolves: ClassVar[bool] = False
    symmetry: bool = True
    y: dict[tuple[int, int], list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for i, job in enumerate(self.instance.jobs):
            nodes = self._representatives[i] if self.symmetry else job.nodes
            for r in self.asked(job):
                domain = self._domain(job, r, nodes)
                self.y[i, r] = [
                    self.cp.new_int_var_from_domain(domain, "") for _ in range(job.units)
                ]

    def asked(self, job: Job) -> list[int]:
        """Return the resources that a job asks for; an exclusive one has all of its nodes'."""
        return [r for r in self.instance.resources if job.demand[r] or job.is_exclusive]

    @cached_property
    def size(self) -> int:
        """Most positions of a node on a list."""
        largest = 0
        for capacity in self.instance.capacity.values():
            for r in self.instance.resources:
                largest = max(largest, capacity[r])
        return largest

    @property
    def stride(self) -> int:
        """Positions from the first one of a node to the first one of the next node."""
        return 2 * self.size + 2

    @cached_property
    def first(self) -> Mapping[int, int]:
        """First position of each node, on all lists."""
        return {n: self.stride * k for k, n in enumerate(self.instance.order)}

    def height(self, job: Job, r: int) -> int:
        """Return dy, the positions of a unit; of an exclusive job all of its node's."""
        return self.size if job.is_exclusive else job.demand[r]

    def _domain(self, job: Job, r: int, nodes: tuple[int, ...]) -> cp_model.Domain:
        """Return the positions y from which a unit fits on one of these nodes."""
        intervals = []
        for n in nodes:
            first = self.first[n]
            last = first  # a unit of an exclusive job is the whole node
            if not job.is_exclusive:
                last += self.instance.capacity[n][r] - job.demand[r]
            intervals.append([first, last])
        return cp_model.Domain.from_intervals(intervals)

    @cached_property
    def kept(self) -> frozenset[int]:
        """Nodes that units have to look at.

        All units of a blocked node start after what runs there. They can move to an unused one of
        its kind that is free no later: as many are kept as there are units, the first free ones.
        """
        instance = self.instance
        kept = set(instance.order)
        if not self.symmetry:
            return frozenset(kept)
        alike: dict[object, list[int]] = {}
        for n in reversed(instance.order):
            if instance.blocked[n]:
                alike.setdefault((instance.kind[n], instance.capacity[n]), []).append(n)
        units = sum(job.units for job in instance.jobs)
        for nodes in alike.values():
            nodes.sort(key=lambda n: instance.blocked[n])
            kept.difference_update(nodes[units:])
        return frozenset(kept)

    @cached_property
    def _representatives(self) -> list[tuple[int, ...]]:
        """Nodes that each job has to look at.

        Jobs 0 .. i use no more of interchangeable nodes than they have units, and these may be the
        last ones.
        """
        number_of = self.instance.interchangeable
        nodes_of_jobs = []
        units = 0  # of jobs 0 .. i
        for job in self.instance.jobs:
            units += job.units
            left = dict.fromkeys(number_of.values(), units)
            nodes = []
            for n in reversed(job.nodes):
                if n in self.kept and left[number_of[n]] > 0:
                    left[number_of[n]] -= 1
                    nodes.append(n)
            nodes_of_jobs.append(tuple(reversed(nodes)))
        return nodes_of_jobs

    def diffn(self) -> None:
        """diffn([s_i], [d_i], [y_i,r,u], [req_i,r / rn_i]) for each resource r."""
        for r in self.instance.resources:
            boxes = [*self._boxes(r), *self._running_boxes(r)]
            self.cp.add_no_overlap_2d([box.time for box in boxes], [box.place for box in boxes])

    def cumulative_on_positions(self) -> None:
        """cumulative([y_i,r,u], [req_i,r / rn_i], [d_i], eoh) for each resource r: implied."""
        for r in self.instance.resources:
            boxes = [*self._boxes(r), *self._running_boxes(r)]
            places = [box.place for box in boxes]
            durations = [box.duration for box in boxes]
            self.cp.add_cumulative(places, durations, self.instance.horizon)

    def alldifferent(self) -> None:
        """alldifferent([y_i,r,u]) of the units of a job on each resource: implied."""
        for units in self.y.values():
            if len(units) > 1:
                self.cp.add_all_different(units)

    def one_node_for_each_unit(self) -> None:
        """element(map_a, y_i,a,u) = element(map_b, y_i,b,u) for all resources a, b of a unit."""
        for i, job in enumerate(self.instance.jobs):
            asked = self.asked(job)
            for a, b in pairwise(asked):
                for y_a, y_b in zip(self.y[i, a], self.y[i, b], strict=True):
                    self.cp.add_linear_constraint(y_a - y_b, -self.size, self.size)

    def units_in_order(self) -> None:
        """y_i,r,u + dy <= y_i,r,u+1 on the first resource of a job: its units are equal."""
        for i, job in enumerate(self.instance.jobs):
            if self.symmetry or self._counts_nodes(job):
                for before, after in pairwise(self._first_positions(i)):
                    self.cp.add(before + self.height(job, self.asked(job)[0]) <= after)

    def units_on_a_node(self) -> None:
        """Units u and u + most of a job are on two nodes; all of them on so many as it wants."""
        for i, job in enumerate(self.instance.jobs):
            y = self._first_positions(i)
            for before, after in zip(y, y[job.most :], strict=False):
                self.cp.add(after >= before + self.size)
            if y and job.node_count:
                self.cp.add(sum(map(self._is_next_node, y, y[1:])) == job.node_count - 1)

    def _is_next_node(self, before: Any, after: Any) -> Any:
        """Return a literal: these positions of two units in order are on two nodes."""
        apart = self.cp.new_bool_var("")
        self.cp.add(after >= before + self.size).only_enforce_if(apart)
        self.cp.add(after < before + self.size).only_enforce_if(~apart)
        return apart

    def _counts_nodes(self, job: Job) -> bool:
        """Return True if a job limits its units on a node, or the number of its nodes."""
        return job.most < job.units or job.node_count > 0

    def _first_positions(self, i: int) -> list[Any]:
        """Return the positions of job i's units on the first resource that it asks for."""
        asked = self.asked(self.instance.jobs[i])
        return self.y[i, asked[0]] if asked else []

    def _boxes(self, r: int) -> list[Box]:
        """Return the boxes of the waiting jobs' units on a resource."""
        boxes = []
        for i, job in enumerate(self.instance.jobs):
            for y in self.y.get((i, r), ()):
                place = self.cp.new_fixed_size_interval_var(y, self.height(job, r), "")
                boxes.append(Box(self.tau[i], place, job.duration))
        return boxes

    def _running_boxes(self, r: int) -> Iterator[Box]:
        """Yield the boxes of what runs on nodes that units look at."""
        k = self.instance.resources.index(r)
        for part, at in self.instance.running_places:
            height = part.demand[r]
            if part.node in self.kept and height:
                first = self.first[part.node] + at[k]
                place = self.cp.new_fixed_size_interval_var(first, height, "")
                yield Box(self.running(part.left), place, part.left)

    def decide_on(self, i: int) -> None:
        """Decide on the start of a job, then on its y of smallest domain, at its largest value."""
        super().decide_on(i)
        positions: list[Any] = []
        for r in self.asked(self.instance.jobs[i]):
            positions += self.y[i, r]
        if positions:
            self.cp.add_decision_strategy(
                positions, cp_model.CHOOSE_MIN_DOMAIN_SIZE, cp_model.SELECT_MAX_VALUE
            )

    def hint(self) -> None:
        """Hint at the first descent of the paper's search."""
        nodes = [job.nodes for job in self.instance.jobs]
        if self.symmetry:
            nodes = self._representatives
        schedule = listed(self.instance, nodes)
        self.hint_starts(schedule)
        for (i, r), positions in self.y.items():
            k = self.instance.resources.index(r)
            # A job without a start in the schedule has no places.
            for position, place in zip(positions, schedule.places[i], strict=False):
                self.cp.add_hint(position, self.first[place.node] + place.at[k])

    def nodes_of(self, solver: cp_model.CpSolver, i: int) -> Mapping[int, int] | None:
        """Return the number of units of job i on each of its nodes; None if it asks for nothing."""
        units_on = Counter[int]()
        for y in self._first_positions(i):
            k = solver.value(y) // self.stride
            units_on[self.instance.order[k]] += 1
        return units_on or None
