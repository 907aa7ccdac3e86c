"""Finish-time fairness over unlike GPUs (Themis; Gavel, section 4.2)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from policies.contract.policy import parameter
from policies.contract.snapshot import Floats, Snapshot
from policies.gavel.allocation.observe import Observed
from policies.gavel.allocation.problem import AllocationProblem, Shares
from policies.gavel.allocation.rates import GroupingOptions
from policies.gavel.base import Notes, SharePolicy, Solver, steps_left
from policies.gavel.solvers.finish_time import Times, finish_time_fairness, isolated_rates


@dataclass(frozen=True, slots=True)
class FinishTimeFairness(SharePolicy):
    """Time on unlike GPUs so that no job ends much later than with 1/n of the cluster (Themis).

    The plan's objective is the highest rho_m = (t_m + steps_m / throughput(m, X)) / (t_iso_m +
    steps_m / throughput(m, X_iso)). t_m is the time since the job's arrival, t_iso_m the time of
    the steps done so far with 1/n of the cluster: added up in the plan's memory, n being the number
    of jobs when shares were made.
    """

    name: ClassVar[str] = "finish_time_fairness"

    fill: bool = parameter(
        True, meaning="give time that the highest rho leaves over to the jobs that gain most"
    )

    def _grouping(self, snapshot: Snapshot) -> GroupingOptions:
        return GroupingOptions(jobs=True)

    def _solver(self, observed: Observed, notes: Notes) -> Solver:
        steps, now_s = steps_left(observed), observed.snapshot.now_s
        elapsed_s = np.maximum(now_s - observed.number("arrival_s"), 0.0)

        def shares(problem: AllocationProblem) -> Shares:
            isolated_s = _isolated_s(observed, notes, steps, isolated_rates(problem))
            times = Times(steps, elapsed_s, isolated_s)
            return finish_time_fairness(problem, times, fill=self.fill)

        return shares


def _isolated_s(observed: Observed, notes: Notes, steps: Floats, rates: Floats) -> Floats:
    """float64[M]: t_iso_m up to now; notes by job: it, steps left, throughput(m, X_isolated)."""
    known, ids = notes.get("isolated", {}), observed.classes.keys
    new = zip(ids, observed.number("total_steps").tolist(), rates.tolist(), strict=True)
    before = [known.get(job, (0.0, *of_job)) for job, *of_job in new]
    passed_s, left, rate = (np.array([of[i] for of in before], dtype=np.float64) for i in range(3))
    isolated_s: Floats = passed_s + np.maximum(left - steps, 0.0) / rate
    noted = zip(isolated_s.tolist(), steps.tolist(), rates.tolist(), strict=True)
    notes["isolated"] = dict(zip(ids, map(list, noted), strict=True))
    return isolated_s
