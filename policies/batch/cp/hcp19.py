"""HCP'19: starts by constraint programming, nodes by best fit, again until both agree."""

from dataclasses import dataclass, replace
from typing import ClassVar

from policies.batch.cp.dispatcher import Decision, Dispatcher, allocation_at
from policies.batch.cp.instance import Instance
from policies.batch.plan import BatchPlan


@dataclass(frozen=True, slots=True)
class Hcp19(Dispatcher):
    """Least sum of slowdowns on pooled resources, then nodes by best fit (Galleguillos, 2019).
    """

    name: ClassVar[str] = "hcp19"

    def decide(self, instance: Instance, plan: BatchPlan) -> Decision:
        ...
