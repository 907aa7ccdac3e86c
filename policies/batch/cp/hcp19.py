"""HCP'19: starts by constraint programming on pooled resources, then nodes by best fit.

What does not fit on the nodes is pushed back to the next end of a job, what fits keeps its nodes,
and the schedule is made again, until it fits.
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
"""Part of the budget left that a search may use."""
LEAST = 0.001
"""Least budget of a search."""


@dataclass(frozen=True, slots=True)
class Hcp19(Dispatcher):
    """Least sum of slowdowns on pooled resources, then nodes by best fit (Galleguillos, 2019)."""

    name: ClassVar[str] = "hcp19"

    iterations: int = parameter(10, "most schedules made for one decision", minimum=1, maximum=1000)

    def decide(self, instance: Instance, plan: BatchPlan) -> Decision:
        """Schedule and allocate in turn. The bound is that of the first schedule."""
        # the solver's library is large, and lists of policies need none of it
        from policies.batch.cp.solver import minimised

        nodes, seed = BestFit(plan, instance), plan.view.seed
        found = first = minimised(self.model(instance), self.budget * SHARE, seed)
        work = first.work
        for _ in range(self.iterations - 1):
            if nodes.give(found.starts):
                break
            model = nodes.constrained(self.model(instance))
            try:
                found = minimised(model, max(LEAST, (self.budget - work) * SHARE), seed)
            except SolverFailedError:  # the jobs that have nodes start all the same
                break
            work += found.work
        else:
            nodes.give(found.starts)
        starts = nodes.starts(found.starts)
        objective = instance.slowdowns(starts)
        return replace(
            first,
            starts=starts,
            nodes=nodes.units,
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
    """Allocation by best fit of the jobs that start now."""

    def __init__(self, plan: BatchPlan, instance: Instance) -> None:
        self.instance, self.trial = instance, plan.copy()
        self.placed: dict[int, Allocation] = {}
        self.refused: set[int] = set()

    def give(self, starts: Sequence[int]) -> bool:
        """Give nodes to the jobs that start now; return False if some find none."""
        before = len(self.refused)
        for i, start in enumerate(starts):
            if start > 0 or i in self.placed:
                continue
            job = self.instance.jobs[i].source
            if (found := self.trial.find(job.row, job.choice, within=job.nodes)) is None:
                self.refused.add(i)
            else:
                self.trial.take(job.row, found, job.choice.run_s)
                self.placed[i] = found
        return len(self.refused) == before

    def constrained(self, model: SchedulingModel) -> SchedulingModel:
        """Return the model in which what has nodes starts now, and what found none does later."""
        for i in self.placed:
            model.start_at_once(i)
        for i in self.refused:
            model.start_later(i, self.next_end)
        return model

    @property
    def next_end(self) -> int:
        """First end of what runs or starts now: no sooner is there room for what was refused."""
        left = [part.left for part in self.instance.running]
        return min(left + [self.instance.jobs[i].duration for i in self.placed], default=1)

    def starts(self, planned: Sequence[int]) -> tuple[int, ...]:
        """Return the starts, those of refused jobs not before the next end."""
        later = self.next_end
        return tuple(
            0 if i in self.placed else max(start, later) for i, start in enumerate(planned)
        )

    @property
    def units(self) -> tuple[Mapping[int, int] | None, ...]:
        """Units of each job by node, if it has nodes."""
        found = [self.placed.get(i) for i in range(len(self.instance.jobs))]
        return tuple([of and {part.node: part.units for part in of.parts} for of in found])
