"""From a solution to a plan: a job that stays keeps its devices, the others get what is left, the
rest wait with a reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from policies.contract.plan import Placement, Plan, PlanStatus
from policies.contract.snapshot import Bools, Floats, Ints, RankSeat
from policies.placement.pricing import prices_of
from policies.placement.problem import Problem
from policies.placement.solution import Solution
from policies.placement.speed import Speeds
from policies.placement.staying import Stay, remaining_s
from policies.placement.waiting import waiting_of, watts_of


def plan_of(
    problem: Problem, solution: Solution, policy: str, value: float | None, message: str = ""
) -> Plan:
    """The plan of a solution: names of devices, what stays, and why the others wait."""
    return plan_with(problem, solution, _named(problem, solution), policy, value, message)


def plan_with(
    problem: Problem,
    solution: Solution,
    named: Iterable[Placement],
    policy: str,
    value: float | None,
    message: str = "",
) -> Plan:
    """The plan of placements that have their devices already, with what stays beside them, and why
    the others wait.

    `solution` says which devices are in use, for the reasons: of jobs that share some it knows but
    one.
    """
    placements = [*named, *(_staying(problem, s) for s in problem.pinned)]
    placements += _fallbacks(problem, placements)
    order = problem.snapshot.jobs.position
    placements.sort(key=lambda p: order[p.job])
    waiting = waiting_of(problem, solution, placements)
    return Plan(
        policy, PlanStatus.HEURISTIC, tuple(placements), waiting, objective=value, message=message
    )


def _named(problem: Problem, solution: Solution) -> list[Placement]:
    """Placements of the decided jobs; those that stay are named first, so that their devices are
    still free.
    """
    jobs = solution.placed
    stays = _is_home(problem, solution, jobs)
    run_s = problem.run_s[jobs, solution.config[jobs]] + np.where(
        stays, 0.0, problem.launch_s[jobs]
    )
    energy = _energy(problem, solution, run_s)
    left = [list(d) for d in problem.devices]
    placements = []
    for at in np.argsort(~stays, kind="stable"):
        job, n = int(jobs[at]), int(solution.node[jobs[at]])
        devices = _devices(problem, job, n, int(problem.config_gpus[solution.config[job]]), left[n])
        seat = RankSeat(problem.nodes[n].id, devices)
        name = problem.snapshot.jobs.columns.ids[problem.rows[job]]
        placed = Placement(
            name, (seat,), predicted_run_s=float(run_s[at]), predicted_energy_cost=float(energy[at])
        )
        placements.append(placed)
    return placements


def _is_home(problem: Problem, solution: Solution, jobs: Ints) -> Bools:
    same: Bools = (solution.node[jobs] == problem.home[jobs]) & (
        solution.config[jobs] == problem.home_config[jobs]
    )
    return same


def _devices(problem: Problem, job: int, n: int, gpus: int, left: list[str]) -> tuple[str, ...]:
    """Take devices of node n, those that the job holds now first."""
    runs = problem.snapshot.jobs.columns.others["running"][problem.rows[job]]
    now = {d for r in runs for s in r.ranks if s.node == problem.nodes[n].id for d in s.devices}
    chosen = sorted(left, key=lambda d: d not in now)[:gpus] if now else left[:gpus]
    for device in chosen:
        left.remove(device)
    return tuple(sorted(chosen, key=problem.devices[n].index))


def _energy(problem: Problem, solution: Solution, run_s: Floats) -> Floats:
    """Each job's part of its node's bill, by GPUs, while it runs beside what is placed there
    now.
    """
    jobs = solution.placed
    gpus = problem.config_gpus[solution.config[jobs]]
    nodes = solution.node[jobs]
    used = (
        problem.busy[nodes] + np.bincount(nodes, gpus, len(problem.nodes)).astype(np.int64)[nodes]
    )
    return bills(problem, nodes, gpus.astype(np.float64), used, run_s)


def bills(problem: Problem, nodes: Ints, gpus: Floats, used: Ints, run_s: Floats) -> Floats:
    """float64[n]: what runs of `run_s` on so many (parts of) GPUs of these nodes pay, each its part
    of its node's bill.

    `used` int64[n]: GPUs of the node in use; emissions are not billed.
    """
    prices = prices_of(problem.snapshot, emissions=False)
    cost = problem.power[problem.node_class[nodes], used] * prices.reference
    share: Floats = cost * gpus / used * prices.priced_s(run_s)
    return share


def _staying(problem: Problem, stay: Stay) -> Placement:
    name = problem.snapshot.jobs.columns.ids[stay.row]
    run_s = remaining_s(problem.snapshot, Speeds(problem.snapshot.kinds), stay)
    placed = Placement(
        name, stay.run.ranks, stay.run.copy, until_s=stay.until_s, steps_quota=stay.run.steps_quota
    )
    if not np.isfinite(run_s):
        return placed
    return replace(
        placed, predicted_run_s=run_s, predicted_energy_cost=_energy_of(problem, stay, run_s)
    )


def _energy_of(problem: Problem, stay: Stay, run_s: float) -> float:
    """The part of its nodes' cost by GPUs, each node as it is used now."""
    watts = 0.0
    for seat in stay.run.ranks:
        node = problem.snapshot.node_by_id[seat.node]
        used = max(len(seat.devices), sum(bool(d.held) for d in node.devices))
        watts += node.power_w[min(used, len(node.power_w) - 1)] * len(seat.devices) / used
    prices = prices_of(problem.snapshot, emissions=False)
    return float(watts * prices.reference * prices.priced_s(np.array(run_s)))


def _fallbacks(problem: Problem, placements: list[Placement]) -> list[Placement]:
    """Jobs on draining nodes for which there is no room elsewhere, as far as the watts go."""
    decided, ids = (
        {p.job for p in placements} if problem.fallback else set(),
        problem.snapshot.jobs.columns.ids,
    )
    kept: list[Placement] = []
    for row, stay in problem.fallback.items():
        if ids[row] in decided:
            continue
        candidate = _staying(problem, stay)
        cap = problem.snapshot.cap_w
        if cap is None or watts_of(problem.snapshot, [*placements, *kept, candidate]) <= cap:
            kept.append(candidate)
    return kept
