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
        steps = steps_left(observed)
        elapsed_s = np.maximum(observed.snapshot.now_s - observed.number("arrival_s"), 0.0)

        def solve(problem: AllocationProblem) -> Shares:
            isolated_s = _isolated_s(observed, notes, steps, isolated_rates(problem))
            times = Times(steps, elapsed_s, isolated_s)
            return finish_time_fairness(problem, times, fill=self.fill)

        return solve


def _isolated_s(observed: Observed, notes: Notes, steps: Floats, rates: Floats) -> Floats:
    """float64[M]: t_iso_m, the time of the steps done so far with 1/n of the cluster.

    `steps`: left now; `rates`: throughput(m, X_isolated) now. The notes keep all three by job:
    steps since then count at the rate of then.
    """
    # 1. The three as noted; a new job has done no steps.
    jobs = observed.classes.keys
    noted = notes.get("isolated", {})
    total_steps = observed.number("total_steps").tolist()
    before_s: list[float] = []
    steps_before: list[float] = []
    rates_before: list[float] = []
    for m, job in enumerate(jobs):
        isolated_s, steps_then, rate_then = noted.get(job, (0.0, total_steps[m], float(rates[m])))
        before_s.append(isolated_s)
        steps_before.append(steps_then)
        rates_before.append(rate_then)

    # 2. Add the steps done since.
    steps_done = np.maximum(np.array(steps_before, dtype=np.float64) - steps, 0.0)
    done_s = steps_done / np.array(rates_before, dtype=np.float64)
    now_s: Floats = np.array(before_s, dtype=np.float64) + done_s

    # 3. Note the three of now.
    notes["isolated"] = {}
    for m, job in enumerate(jobs):
        notes["isolated"][job] = [float(now_s[m]), float(steps[m]), float(rates[m])]
    return now_s
