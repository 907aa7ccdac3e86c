"""The shortest makespan over unlike GPUs (Gavel, section 4.2)."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from policies.contract.policy import parameter
from policies.contract.snapshot import Snapshot
from policies.gavel.allocation.observe import Observed
from policies.gavel.allocation.rates import GroupingOptions
from policies.gavel.base import Notes, SharePolicy, Solver, steps_left
from policies.gavel.solvers.finish_time import makespan


@dataclass(frozen=True, slots=True)
class Makespan(SharePolicy):
    """Time on unlike GPUs shared so that the last job ends as soon as can be (makespan).

    The plan's objective is the time in seconds from when shares were made until all steps are done,
    without launches.
    """

    name: ClassVar[str] = "makespan"

    fill: bool = parameter(
        True, meaning="give time that the makespan leaves over to the jobs that gain most"
    )

    def _grouping(self, snapshot: Snapshot) -> GroupingOptions:
        return GroupingOptions(jobs=True)

    def _solver(self, observed: Observed, notes: Notes) -> Solver:
        return partial(makespan, steps=steps_left(observed), fill=self.fill)
