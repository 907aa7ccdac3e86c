"""HCP'19: starts by constraint programming on pooled resources, then nodes by best fit.

Jobs that start now and find no nodes are pushed back to the next end of a job; those that find
nodes keep them. Then the schedule is made again, until all jobs that start now have nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from policies.batch.cp.dispatcher import Decision, Dispatcher
from policies.batch.cp.instance import Instance
from policies.batch.plan import BatchPlan
from policies.contract.plan import PlanStatus
from policies.contract.policy import SolverFailedError, parameter
from policies.placement.layout import Allocation

if TYPE_CHECKING:
    from policies.batch.cp.scheduling import SchedulingModel

SHARE = 0.5
"""Part of the remaining budget that a search for a schedule may use."""

LEAST_BUDGET = 0.001
"""Least budget of a search, also if nothing remains."""


@dataclass(frozen=True, slots=True)
class Hcp19(Dispatcher):
    """Least sum of slowdowns on pooled resources, then nodes by best fit (Galleguillos, 2019)."""

    name: ClassVar[str] = "hcp19"

    iterations: int = parameter(10, "most schedules made for one decision", minimum=1, maximum=1000)

    def decide(self, instance: Instance, plan: BatchPlan) -> Decision:
        """Schedule and allocate in turn. The bound is that of the first schedule."""
        # the solver's library is large, and lists of policies need none of it
        from policies.batch.cp.solver import minimised

        # 1. A schedule on pooled resources.
        seed = plan.view.seed
        first = minimised(self.model(instance), self.budget * SHARE, seed)
        latest = first
        work = first.work

        # 2. Give nodes to the jobs that start now; schedule again until all of them have some.
        best_fit = BestFit(plan, instance)
        for _ in range(self.iterations - 1):
            if best_fit.allocate(latest.starts):
                break
            model = best_fit.constrained(self.model(instance))
            budget = max(LEAST_BUDGET, (self.budget - work) * SHARE)
            try:
                latest = minimised(model, budget, seed)
            except SolverFailedError:  # the jobs that have nodes start all the same
                break
            work += latest.work
        else:
            # The last schedule allowed: jobs without nodes wait.
            best_fit.allocate(latest.starts)

        starts = best_fit.starts(latest.starts)
        objective = instance.slowdowns(starts)
        return replace(
            first,
            starts=starts,
            nodes=best_fit.units_by_node,
            status=PlanStatus.FEASIBLE,
            objective=objective,
            bound=min(objective, first.bound),
            work=work,
        )

    def model(self, instance: Instance) -> SchedulingModel:
        """Return the scheduling model."""
        from policies.batch.cp.scheduling import SchedulingModel

        model = SchedulingModel(instance)
        model.cumulative()
        model.equal_jobs_by_arrival()
        model.highest_priority_first()
        model.objective()
        if self.hint:
            model.hint()
        return model


class BestFit:
    """Allocation by best fit of the jobs that start now, on a copy of the plan.

    Jobs are numbered as in the instance. `trial`: the copy. `placed`: allocations by job.
    `refused`: jobs that found no nodes.
    """

    def __init__(self, plan: BatchPlan, instance: Instance) -> None:
        self.instance = instance
        self.trial = plan.copy()
        self.placed: dict[int, Allocation] = {}
        self.refused: set[int] = set()

    def allocate(self, starts: Sequence[int]) -> bool:
        """Give nodes to the jobs that start now; return False if more than before find none."""
        refused_before = len(self.refused)
        for number, start in enumerate(starts):
            if start > 0 or number in self.placed:
                continue
            job = self.instance.jobs[number].source
            allocation = self.trial.find(job.row, job.choice, within=job.nodes)
            if allocation is None:
                self.refused.add(number)
            else:
                self.trial.take(job.row, allocation, job.choice.run_s)
                self.placed[number] = allocation
        return len(self.refused) == refused_before

    def constrained(self, model: SchedulingModel) -> SchedulingModel:
        """Return the model in which placed jobs start now, and refused ones later."""
        for number in self.placed:
            model.start_at_once(number)
        for number in self.refused:
            model.start_later(number, self.next_end)
        return model

    @property
    def next_end(self) -> int:
        """Time to the first end of a job that runs or starts now; refused jobs start no sooner."""
        ends = [part.left for part in self.instance.running]
        ends += [self.instance.jobs[number].duration for number in self.placed]
        return min(ends, default=1)

    def starts(self, planned: Sequence[int]) -> tuple[int, ...]:
        """Return the starts of all jobs: now for placed ones, else not before the next end."""
        next_end = self.next_end
        starts = []
        for number, start in enumerate(planned):
            if number in self.placed:
                starts.append(0)
            else:
                starts.append(max(start, next_end))
        return tuple(starts)

    @property
    def units_by_node(self) -> tuple[Mapping[int, int] | None, ...]:
        """Number of units by node, for each job; None for a job without nodes."""
        units: list[Mapping[int, int] | None] = [None] * len(self.instance.jobs)
        for number, allocation in self.placed.items():
            units[number] = {part.node: part.units for part in allocation.parts}
        return tuple(units)
