"""Allocation model of PCP'19 (Galleguillos et al. 2019): an optional interval per unit and node.

u[i, n, j], j < p_i,n = min(rn_i, min_r cap_n,r / (req_i,r / rn_i)), is the presence of a unit of
job i on node n, from s_i for d_i. With the starts |Q| + sum_i sum_n p_i,n variables: they grow with
the number of nodes. Each method adds the constraint it is named after.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ortools.sat.python import cp_model

from policies.batch.cp.instance import Amounts, Instance, Job
from policies.batch.cp.list_schedule import listed
from policies.batch.cp.scheduling import SchedulingModel


@dataclass
class OptionalUnitsModel(SchedulingModel):
    """Scheduling model with u[i, n], the presences of the units of job i on node n.

    `symmetry`: the first units of a node are present before later ones, as they are equal.
    """

    symmetry: bool = True
    u: dict[tuple[int, int], list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for i, n, most in places(self.instance):
            self.u[i, n] = [self.cp.new_bool_var("") for _ in range(most)]

    def alternative(self) -> None:
        """sum_n sum_j x(u_i,n,j) = rn_i for each job."""
        for i, job in enumerate(self.instance.jobs):
            units: list[Any] = []
            for n in job.nodes:
                units += self.u.get((i, n), ())
            if units:
                self.cp.add(sum(units) == job.units)

    def cumulative_on_nodes(self) -> None:
        """cumulative([s(u_i,n,j)], [d(u_i,n,j)], [req_i,r / rn_i], cap_n,r) for each n and r."""
        # 1. The intervals of the units of each job on each node.
        intervals: dict[tuple[int, int], list[Any]] = {}
        jobs_on: dict[int, list[int]] = {n: [] for n in self.instance.order}
        for (i, n), presences in self.u.items():
            intervals[i, n] = [self._interval(i, presence) for presence in presences]
            jobs_on[n].append(i)

        # 2. A constraint for each node and resource, with what runs there. Amounts of 0 are left
        #    out.
        for n, jobs in jobs_on.items():
            if not jobs:
                continue
            running = [part for part in self.instance.running if part.node == n]
            for r in self.instance.resources:
                uses = [(self.running(part.left), part.demand[r]) for part in running]
                for i in jobs:
                    amount = used_on(self.instance, self.instance.jobs[i], n)[r]
                    uses += [(interval, amount) for interval in intervals[i, n]]
                uses = [(interval, amount) for interval, amount in uses if amount]
                self.cp.add_cumulative(
                    [interval for interval, _ in uses],
                    [amount for _, amount in uses],
                    self.instance.capacity[n][r],
                )

    def _interval(self, i: int, present: Any) -> Any:
        """Return the interval of a unit of job i, which is there if `present` is true."""
        duration = self.instance.jobs[i].duration
        return self.cp.new_optional_fixed_size_interval_var(self.s[i], duration, present, "")

    def units_in_order(self) -> None:
        """x(u_i,n,j+1) <= x(u_i,n,j): the units of a job are equal."""
        if not self.symmetry:
            return
        for units in self.u.values():
            for before, after in pairwise(units):
                self.cp.add_implication(after, before)

    def units_on_as_many_nodes(self) -> None:
        """A job that wants its units on so many nodes has them on that many."""
        for i, job in enumerate(self.instance.jobs):
            units_by_node = [self.u[i, n] for n in job.nodes if (i, n) in self.u]
            if units_by_node and job.node_count:
                used_nodes = [self._is_used(units) for units in units_by_node]
                self.cp.add(sum(used_nodes) == job.node_count)

    def _is_used(self, units: list[Any]) -> Any:
        """Return a literal: one of these units is present."""
        used = self.cp.new_bool_var("")
        self.cp.add_bool_or([*units, ~used])
        for unit in units:
            self.cp.add_implication(unit, used)
        return used

    def decide_on(self, i: int) -> None:
        """Decide on the start of a job, then on its units, on the last nodes first."""
        super().decide_on(i)
        units: list[Any] = []
        for n in reversed(self.instance.jobs[i].nodes):
            units += self.u.get((i, n), ())
        if units:
            self.cp.add_decision_strategy(units, cp_model.CHOOSE_FIRST, cp_model.SELECT_MAX_VALUE)

    def hint(self) -> None:
        """Hint at a list schedule, the job of greatest priority first."""
        schedule = listed(self.instance, [job.nodes for job in self.instance.jobs])
        self.hint_starts(schedule)
        for i, places_of_job in enumerate(schedule.places):
            units = Counter(place.node for place in places_of_job)
            for n in self.instance.jobs[i].nodes:
                for j, u in enumerate(self.u.get((i, n), ())):
                    self.cp.add_hint(u, j < units[n])

    def nodes_of(self, solver: cp_model.CpSolver, i: int) -> Mapping[int, int] | None:
        """Return the number of units of job i on each of its nodes; None if it has none."""
        units_on: dict[int, int] = {}
        for n in self.instance.jobs[i].nodes:
            units = sum(solver.boolean_value(presence) for presence in self.u.get((i, n), ()))
            if units:
                units_on[n] = units
        return units_on or None


def used_on(instance: Instance, job: Job, n: int) -> Amounts:
    """Return what a unit of a job uses of node n: all of it, if the job is exclusive."""
    return instance.capacity[n] if job.is_exclusive else job.demand


def places(instance: Instance) -> Iterator[tuple[int, int, int]]:
    """Yield (i, n, p_i,n) for jobs that ask for anything and nodes that can hold their units."""
    for i, job in enumerate(instance.jobs):
        demanded = [r for r in instance.resources if job.demand[r]]
        if not demanded and not job.is_exclusive:
            continue
        for n in job.nodes:
            units_by_resource = [instance.capacity[n][r] // job.demand[r] for r in demanded]
            yield i, n, min(job.most, job.units, *units_by_resource)


def variables(instance: Instance) -> int:
    """Return the number of variables of the model: |Q| + sum_i sum_n p_i,n."""
    return len(instance.jobs) + sum(most for _, _, most in places(instance))
