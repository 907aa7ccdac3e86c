"""Solution of a problem as arrays, and its plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from policies.contract.plan import Expected, Plan
from policies.contract.snapshot import Bools, Floats, Ints
from policies.cost_model.kernels import NONE
from policies.cost_model.problem import Problem
from policies.placement.layout import Allocation, Part
from policies.placement.plan_builder import NO_STARTS, PlanBuilder


@dataclass(frozen=True, slots=True)
class Solution:
    """int64[E] each: node and configuration of every job of a problem, -1 where postponed."""

    node: Ints
    config: Ints

    @classmethod
    def empty(cls, problem: Problem) -> Solution:
        jobs = len(problem.rows)
        return cls(np.full(jobs, NONE, dtype=np.int64), np.full(jobs, NONE, dtype=np.int64))

    @property
    def placed(self) -> Ints:
        return np.flatnonzero(self.node != NONE)

    def moved(self, problem: Problem) -> Bools:
        """bool[E]: True for jobs that are not where and as they run now."""
        moved: Bools = (self.node != problem.current_node) | (self.config != problem.current_config)
        return moved

    def run_times_s(self, problem: Problem) -> Floats:
        """float64[placed]: run time of each placed job, with a launch unless it stays."""
        jobs, config = self.placed, self.config[self.placed]
        elsewhere = (config == problem.current_config[jobs]) & (
            self.node[jobs] != problem.current_node[jobs]
        )
        moves_s = np.where(elsewhere, problem.move_s[jobs], 0.0)
        times: Floats = problem.times_s[jobs, config] + moves_s
        return times


def to_plan(
    problem: Problem,
    solution: Solution,
    policy: str,
    value: float | None,
    message: str = "",
    expected: Mapping[int, Expected] = NO_STARTS,
) -> Plan:
    """Return the plan of a solution; jobs that stay keep their devices.

    `expected`: by row of the snapshot, starts of jobs that the solution leaves waiting.
    """
    plan, jobs = problem.plan.copy(), solution.placed
    stays = ~solution.moved(problem)[jobs]
    run_s = problem.run_s[jobs, solution.config[jobs]]
    run_s = run_s + np.where(stays, 0.0, problem.launch_s[jobs])
    for at in np.argsort(~stays, kind="stable").tolist():  # so that their devices are still free
        job = int(jobs[at])
        allocation = _allocation(plan, problem, solution, job)
        plan.place(int(problem.rows[job]), allocation, float(run_s[at]))
    return plan.build(policy, value, message, expected=expected)


def _allocation(plan: PlanBuilder, problem: Problem, solution: Solution, job: int) -> Allocation:
    n, row = int(problem.numbers[solution.node[job]]), int(problem.rows[job])
    gpus, layout = int(problem.config_gpus[solution.config[job]]), plan.state.layout
    request, node = plan.options.requests.on_one_node(row, gpus), layout.nodes[n].id
    runs = problem.snapshot.jobs.columns.others["running"][row]
    now = {device for r in runs for s in r.ranks if s.node == node for device in s.devices}
    wanted = layout.bits(n, now) if now else 0
    return Allocation(request, (Part(n, 1, plan.state.devices(request, n, 1, wanted)),))
