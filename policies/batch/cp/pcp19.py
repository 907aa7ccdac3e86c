"""PCP'19: starts and an optional interval per unit and node in one model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from policies.batch.cp.dispatcher import Decision, Dispatcher
from policies.batch.cp.instance import Instance
from policies.batch.plan import BatchPlan
from policies.contract.policy import SolverFailedError, parameter

if TYPE_CHECKING:
    from policies.batch.cp.optional_units import OptionalUnitsModel


@dataclass(frozen=True, slots=True)
class Pcp19(Dispatcher):
    """Least sum of slowdowns, a variable for each unit on each node (Galleguillos et al. 2019).

    The model is in `optional_units.py`. One that is too large is not built: such a decision has no
    answer.
    """

    name: ClassVar[str] = "pcp19"

    symmetry: bool = parameter(True, "break symmetries: equal units of a job are in order")
    most_variables: int = parameter(
        100_000,
        "most variables of a model; a larger model is refused",
        minimum=1,
        maximum=100_000_000,
    )

    def decide(self, instance: Instance, plan: BatchPlan) -> Decision:
        # the solver's library is large, and lists of policies need none of it
        from policies.batch.cp.optional_units import variables
        from policies.batch.cp.solver import minimised

        size = variables(instance)
        if size > self.most_variables:
            most = f"more than most_variables ({self.most_variables})"
            raise SolverFailedError(f"the model has {size} variables, {most}: choose pcp20")
        return minimised(self.model(instance), self.budget, plan.view.seed)

    def model(self, instance: Instance) -> OptionalUnitsModel:
        """Return the whole model: variables, constraints, order of the search and objective."""
        from policies.batch.cp.optional_units import OptionalUnitsModel

        model = OptionalUnitsModel(instance, symmetry=self.symmetry)
        model.cumulative()
        model.alternative()
        model.cumulative_on_nodes()
        model.units_in_order()
        model.units_on_as_many_nodes()
        model.equal_jobs_by_arrival()
        model.highest_priority_first()
        model.objective()
        if self.hint:
            model.hint()
        return model
