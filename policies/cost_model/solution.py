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
        """Return the solution in which every job is postponed."""
        jobs = len(problem.rows)
        return cls(np.full(jobs, NONE, dtype=np.int64), np.full(jobs, NONE, dtype=np.int64))

    @property
    def placed(self) -> Ints:
        """int64[placed]: the jobs that are not postponed."""
        return np.flatnonzero(self.node != NONE)

    def moved(self, problem: Problem) -> Bools:
        """bool[E]: True for jobs that are not where and as they run now."""
        moved: Bools = (self.node != problem.current_node) | (self.config != problem.current_config)
        return moved

    def run_times_s(self, problem: Problem) -> Floats:
        """float64[placed]: run time of each placed job, with a launch unless it stays."""
        jobs = self.placed
        config = self.config[jobs]
        # The time of a job's current configuration is that of its current node: elsewhere it moves.
        is_current_config = config == problem.current_config[jobs]
        is_elsewhere = self.node[jobs] != problem.current_node[jobs]
        moves_s = np.where(is_current_config & is_elsewhere, problem.move_s[jobs], 0.0)
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
    plan = problem.plan.copy()
    jobs = solution.placed
    stays = ~solution.moved(problem)[jobs]
    run_s = problem.run_s[jobs, solution.config[jobs]]
    run_s = run_s + np.where(stays, 0.0, problem.launch_s[jobs])
    # Jobs that stay come first, while their devices are free.
    for position in np.argsort(~stays, kind="stable").tolist():
        job = int(jobs[position])
        allocation = _allocation(plan, problem, solution, job)
        plan.place(int(problem.rows[job]), allocation, float(run_s[position]))
    return plan.build(policy, value, message, expected=expected)


def _allocation(plan: PlanBuilder, problem: Problem, solution: Solution, job: int) -> Allocation:
    """Return a job's GPUs on its node: those that it has there now first."""
    # 1. What it needs, and where.
    row = int(problem.rows[job])
    number = int(problem.numbers[solution.node[job]])
    gpus = int(problem.config_gpus[solution.config[job]])
    request = plan.options.requests.on_one_node(row, gpus)

    # 2. The devices of that node on which it runs.
    layout = plan.state.layout
    current: set[str] = set()
    for run in problem.snapshot.jobs.columns.others["running"][row]:
        for seat in run.ranks:
            if seat.node == layout.nodes[number].id:
                current.update(seat.devices)
    preferred = layout.bits(number, current)
    devices = plan.state.devices(request, number, 1, preferred)
    return Allocation(request, (Part(number, 1, devices),))
