"""Most progress for the hourly price of GPUs, with or without SLOs (Gavel, section 4.2)."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import ClassVar

import numpy as np

from policies.contract.policy import parameter
from policies.contract.snapshot import Floats, Snapshot
from policies.gavel.allocation.observe import Observed
from policies.gavel.allocation.problem import AllocationProblem
from policies.gavel.allocation.rates import GroupingOptions
from policies.gavel.base import Notes, SharePolicy, Solver, steps_left
from policies.gavel.solvers.cost import CostForm, CostShares, Slos, min_cost
from policies.gavel.solvers.fairness import inverse

MOST_NAMED = 5
"""Jobs that a message names."""


@dataclass(frozen=True, slots=True)
class MinCost(SharePolicy):
    """Time on unlike GPUs for the most progress per price of a GPU hour, with floors and SLOs.

    The plan's objective is that of its form, with prices by the hour. A type without a price counts
    as the dearest; without any price all types cost 1. GPUs that are not worth their price stay
    idle. With `slos` a job's due date or earlier deadline is its SLO: it is aimed at a round early
    where all can be. One that can no longer be met beside the others' is dropped: the plan's
    message and notes name the job, which then counts as without SLO.
    """

    name: ClassVar[str] = "min_cost"

    objective: str = parameter(
        "paper",
        meaning=(
            "paper: the ratio of all progress to all cost; published: the sum of progress, each"
            " divided by its GPU's price"
        ),
        choices=tuple(form.value for form in CostForm),
    )
    floor: float = parameter(
        0.1,
        meaning=(
            "least progress of each job, as a part of its progress with 1/n of the cluster; 0: jobs"
            " may starve"
        ),
        minimum=0.0,
        maximum=1.0,
    )
    slos: bool = parameter(False, meaning="meet due dates and deadlines at any cost")
    fill: bool = parameter(
        False,
        meaning=("use GPUs that are not worth their price, if a job can; else they stay idle"),
    )

    def _grouping(self, snapshot: Snapshot) -> GroupingOptions:
        return GroupingOptions(jobs=self.slos)

    def _depend_on(self, snapshot: Snapshot) -> str:
        return repr(price_of_types(snapshot))

    def _fills(self) -> bool:
        return self.fill

    def _solver(self, observed: Observed, notes: Notes) -> Solver:
        types = observed.problem.types
        price_of = price_of_types(observed.snapshot)
        dearest = max(price_of.values(), default=1.0)
        cost = np.array([price_of.get(name, dearest) for name in types])

        def solve(problem: AllocationProblem) -> CostShares:
            shares = self._shares(observed, problem, cost)
            notes.clear()
            unpriced = [name for name in types if name not in price_of]
            if unpriced:
                notes["unpriced"] = unpriced
            if shares.dropped:
                notes["dropped"] = [observed.classes.keys[m] for m in shares.dropped]
            return shares

        return solve

    def _shares(self, observed: Observed, problem: AllocationProblem, cost: Floats) -> CostShares:
        """Return the shares of least cost, with SLOs a round early if all can be met so."""
        form = CostForm(self.objective)
        if not self.slos:
            return min_cost(problem, cost, floor=self.floor, form=form)

        # 1. Aim a round early, but not earlier than a job can end where it is fastest.
        steps = steps_left(observed)
        left_s = _left_s(observed)
        soonest_s = steps * inverse(problem.fastest_rates)
        early_s = np.maximum(left_s - observed.snapshot.round_s, np.minimum(left_s, soonest_s))
        shares = min_cost(problem, cost, floor=self.floor, form=form, slos=Slos(steps, early_s))
        if not shares.dropped:
            return shares

        # 2. Some cannot be met so: aim at the SLOs themselves.
        return min_cost(problem, cost, floor=self.floor, form=form, slos=Slos(steps, left_s))

    def _message(self, snapshot: Snapshot, notes: Notes) -> str:
        sentences = []
        unpriced = notes.get("unpriced")
        if unpriced:
            sentences.append(f"no price per hour for {', '.join(unpriced)}: counted as the dearest")
        dropped = [job for job in notes.get("dropped", ()) if job in snapshot.jobs.position]
        if dropped:
            names = ", ".join(dropped[:MOST_NAMED])
            if len(dropped) > MOST_NAMED:
                names += f" and {len(dropped) - MOST_NAMED} more"
            sentences.append(f"SLOs that can no longer be met: {names}")
        return "; ".join(sentences)


def price_of_types(snapshot: Snapshot) -> Mapping[str, float]:
    """Return the price of a GPU hour by GPU type, of types that have one."""
    price_of: dict[str, float] = {}
    for gpu_type in snapshot.gpu_types:
        if gpu_type.price_per_hour > 0.0:
            price_of[gpu_type.name] = gpu_type.price_per_hour
    return price_of


def _left_s(observed: Observed) -> Floats:
    """float64[M]: seconds until each job's SLO, inf without one."""
    ends_s = np.minimum(observed.number("due_s"), observed.number("deadline_s"))
    left_s: Floats = np.where(ends_s < inf, ends_s - observed.snapshot.now_s, inf)
    return left_s
