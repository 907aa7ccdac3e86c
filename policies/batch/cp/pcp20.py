"""PCP'20: starts and positions of units in one model whose size does not grow with the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from policies.batch.cp.dispatcher import Decision, Dispatcher, budget
from policies.batch.cp.instance import Instance
from policies.batch.plan import BatchPlan
from policies.contract.policy import parameter

if TYPE_CHECKING:
    from policies.batch.cp.positions import PositionsModel


@dataclass(frozen=True, slots=True)
class Pcp20(Dispatcher):
    """Least sum of slowdowns by one model of starts and positions (Galleguillos et al. 2020).

    The model is in `positions.py`.
    """

    name: ClassVar[str] = "pcp20"

    budget: float = budget(0.1)
    symmetry: bool = parameter(
        True, "break symmetries: equal units of a job are in order, and interchangeable nodes"
    )

    def decide(self, instance: Instance, plan: BatchPlan) -> Decision:
        # the solver's library is large, and lists of policies need none of it
        from policies.batch.cp.solver import minimised

        return minimised(self.model(instance), self.budget, plan.view.seed)

    def model(self, instance: Instance) -> PositionsModel:
        """Return the whole model: variables, constraints, order of the search and objective."""
        from policies.batch.cp.positions import PositionsModel

        model = PositionsModel(instance, symmetry=self.symmetry)
        model.cumulative()
        model.diffn()
        model.cumulative_on_positions()
        model.alldifferent()
        model.one_node_for_each_unit()
        model.units_in_order()
        model.units_on_a_node()
        model.equal_jobs_by_arrival()
        model.highest_priority_first()
        model.objective()
        if self.hint:
            model.hint()
        return model
