"""From a solution to a plan: a job that stays keeps its devices, the others get what is left."""

from __future__ import annotations

import numpy as np

from policies.andreas.problem import Problem
from policies.andreas.solution import Solution
from policies.contract.plan import Plan
from policies.placement.layout import Allocation, Part
from policies.placement.plan_builder import PlanBuilder


def to_plan(
    problem: Problem, solution: Solution, policy: str, value: float | None, message: str = ""
) -> Plan:
    """Return the plan of a solution: devices, what stays, and why the others wait."""
    plan, jobs = problem.plan.copy(), solution.placed
    stays = ~solution.moved(problem)[jobs]
    run_s = problem.run_s[jobs, solution.config[jobs]]
    run_s = run_s + np.where(stays, 0.0, problem.launch_s[jobs])
    for at in np.argsort(~stays, kind="stable").tolist():  # so that their devices are still free
        job = int(jobs[at])
        allocation = _allocation(plan, problem, solution, job)
        plan.place(int(problem.rows[job]), allocation, float(run_s[at]))
    return plan.build(policy, value, message)


def _allocation(plan: PlanBuilder, problem: Problem, solution: Solution, job: int) -> Allocation:
    """Return devices of the job's node, those that it holds now first."""
    n, row = int(problem.numbers[solution.node[job]]), int(problem.rows[job])
    gpus, layout = int(problem.config_gpus[solution.config[job]]), plan.state.layout
    request, node = plan.classes.requests.on_one_node(row, gpus), layout.nodes[n].id
    runs = problem.snapshot.jobs.columns.others["running"][row]
    now = {device for r in runs for s in r.ranks if s.node == node for device in s.devices}
    wanted = layout.bits(n, now) if now else 0
    return Allocation(request, (Part(n, 1, plan.state.devices(request, n, 1, wanted)),))
