"""Scheduling model that PCP'19, HCP'19 and PCP'20 share (Galleguillos et al., section 2.2).

Variables: s_i, the start of each waiting job, from t (0) to eoh. tau_i: its interval, of the fixed
length d_i. Running jobs are constant intervals from t on, for what is left of them. Each method
adds the constraint it is named after.

What CP-SAT does with the order of the search: `highest_priority_first` gives it to the solver as
decision strategies, job after job, each with the least value of s_i first. CP-SAT decides by its
own statistics first and follows the strategies where these say nothing; it also learns from
conflicts and restarts. It cannot choose the job "that can start first" anew at each decision and
then change to that job's positions: here the order of the jobs is fixed before the search.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ortools.sat.python import cp_model

from policies.batch.cp.instance import Instance, Job
from policies.batch.cp.list_schedule import ListSchedule, listed


@dataclass
class SchedulingModel:
    """Variables s_i and intervals tau_i of an instance. `presolves`: CP-SAT presolves the model."""

    presolves: ClassVar[bool] = True

    instance: Instance
    cp: cp_model.CpModel = field(default_factory=cp_model.CpModel)

    def __post_init__(self) -> None:
        jobs = self.instance.jobs
        self.latest = [self.instance.horizon - job.duration for job in jobs]
        self.s = [
            self.cp.new_int_var(job.earliest, latest, "")
            for job, latest in zip(jobs, self.latest, strict=True)
        ]
        self.tau = [
            self.cp.new_fixed_size_interval_var(s, job.duration, "")
            for s, job in zip(self.s, jobs, strict=True)
        ]

    def running(self, left: int) -> Any:
        """Return the interval of what runs for `left` more grid units."""
        return self.cp.new_fixed_size_interval_var(0, left, "")

    def cumulative(self) -> None:
        """cumulative([s_i], [d_i], [req_i,r], Tcap_r) for each resource r."""
        for r in self.instance.resources:
            amounts = [job.total(r) for job in self.instance.jobs]
            uses = list(zip(self.tau, amounts, strict=True))
            for left, amount in self._running_of(r).items():
                uses.append((self.running(left), amount))
            self.cp.add_cumulative(
                [interval for interval, amount in uses if amount],
                [amount for _, amount in uses if amount],
                self.instance.total(r),
            )

    def _running_of(self, r: int) -> Mapping[int, int]:
        """Return how much of a resource is in use, by the time that is left."""
        used: dict[int, int] = {}
        for part in self.instance.running:
            used[part.left] = used.get(part.left, 0) + part.demand[r]
        return used

    def equal_jobs_by_arrival(self) -> None:
        """s_i <= s_j where j equals i but for a later arrival: they are interchangeable."""
        before: dict[object, int] = {}
        for i, job in enumerate(self.instance.jobs):
            key = _interchangeable(job)
            if key in before:
                self.cp.add(self.s[before[key]] <= self.s[i])
            before[key] = i

    def objective(self) -> None:
        """Minimise sum_i w_i (s_i - q_i + d_i) / d_i, in units of 1 / K and without constants."""
        terms = zip(self.instance.coefficients, self.s, strict=True)
        self.cp.minimize(sum(c * s for c, s in terms))

    def highest_priority_first(self) -> None:
        """Decide on the jobs by priority, each at its earliest start."""
        for i in range(len(self.s)):
            self.decide_on(i)

    def hint(self) -> None:
        """Hint at the starts of a list schedule, the job of greatest priority first."""
        self.hint_starts(listed(self.instance, [job.nodes for job in self.instance.jobs]))

    def hint_starts(self, schedule: ListSchedule) -> None:
        """Hint at the starts of a schedule, for the jobs that have one."""
        for s, start in zip(self.s, schedule.starts, strict=True):
            if start >= 0:
                self.cp.add_hint(s, start)

    def start_at_once(self, i: int) -> None:
        """s_i = t."""
        self.cp.add(self.s[i] == 0)

    def start_later(self, i: int, least: int) -> None:
        """s_i >= t + least."""
        self.cp.add(self.s[i] >= min(least, self.latest[i]))

    def decide_on(self, i: int) -> None:
        """Let the search decide on the start of job i next, at its earliest value."""
        self.cp.add_decision_strategy([self.s[i]], cp_model.CHOOSE_FIRST, cp_model.SELECT_MIN_VALUE)

    def nodes_of(self, solver: cp_model.CpSolver, i: int) -> Mapping[int, int] | None:
        """Return the units of job i by node; None where the model does not allocate."""
        return None


def _interchangeable(job: Job) -> object:
    """Return a key: jobs with equal keys differ in nothing but their arrival."""
    source = job.source
    needs = source.request, source.weight, source.run_s
    return needs, job.duration, job.nodes, job.units, job.earliest
