"""Search over simulated schedules of the whole queue for the least total cost."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from policies.contract.plan import LAST_S, Expected, Plan
from policies.contract.policy import fraction, parameter
from policies.contract.snapshot import Ints, Snapshot
from policies.cost_model.kernels import NONE, nonzero_seed
from policies.cost_model.problem import Problem, build
from policies.cost_model.solution import Solution, to_plan
from policies.search.kernels.local_search import Found, search
from policies.search.rollout import orders, rents, rollout_data


@dataclass(frozen=True, slots=True)
class CostSearch:
    """Least cost of energy, tardiness and waiting by a search over rollouts of the whole queue.

    A rollout schedules all jobs in some order, each where and when it costs least after the jobs
    before it, and adds up energy, tardiness and waiting. The search starts from several orders
    (apparent tardiness cost, weight over run time, pressure, due date), with and without the
    running jobs staying, at several prices for occupied GPUs. A local search then moves jobs in the
    order, sets configurations and stops running jobs. The plan is what the best schedule starts at
    once.
    """

    moves: int = parameter(200, "most steps of the local search", minimum=0, maximum=1_000_000)
    work: int = parameter(
        20_000,
        "bound of the local search's work: steps x jobs (without running ones that stay) x nodes",
        minimum=0,
        maximum=10**9,
    )
    risk: float = parameter(
        2.0,
        "growth of a planned wait to expect from jobs still to come, as a fraction of the wait",
        minimum=0.0,
        maximum=100.0,
    )
    move_cost: float = parameter(
        0.35,
        "what moving or stopping a running job must save in addition, as a fraction of the"
        " energy of its whole run",
        minimum=0.0,
        maximum=100.0,
    )
    hysteresis: float = fraction(
        0.1, "what moving or stopping a running job must save, as a fraction of its energy"
    )
    haste: float = parameter(
        0.5,
        "if waiting has no price: cost of a second for a job without due date or tardiness"
        " weight, as a part of its energy cost per second",
        minimum=0.0,
        maximum=100.0,
    )

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Return the best schedule's first step; the objective is the whole schedule's cost."""
        problem = build(snapshot)
        solution, cost, later = self.solve(problem)
        return to_plan(problem, solution, "cost_search", cost, expected=later)

    def solve(self, problem: Problem) -> tuple[Solution, float, Mapping[int, Expected]]:
        """Return the best schedule: jobs that start at once, its cost, and later starts by row."""
        if not len(problem.rows) or not problem.nodes:
            return Solution.empty(problem), 0.0, {}
        data, nodes = rollout_data(
            problem,
            hysteresis=self.hysteresis,
            move_cost=self.move_cost,
            haste=self.haste,
            risk=self.risk,
        )
        seed = nonzero_seed(problem.snapshot.seed)
        found = search(data, orders(problem), rents(problem), self.moves, self.work, seed)
        return starting_now(nodes, found), found.cost, starting_later(problem, nodes, found)


def starting_now(nodes: Ints, found: Found) -> Solution:
    """Return the immediate starts of a schedule.

    `nodes` int64[N]: the problem's number of each node of the schedule.
    """
    starts_now = found.start_s == 0.0
    node = nodes[np.where(starts_now, found.node, 0)]
    return Solution(
        node=np.where(starts_now, node, NONE), config=np.where(starts_now, found.config, NONE)
    )


def starting_later(problem: Problem, nodes: Ints, found: Found) -> dict[int, Expected]:
    """Return, by row of the snapshot, the starts of a schedule after now; `nodes` as above."""
    later: dict[int, Expected] = {}
    for job in np.flatnonzero((found.start_s > 0.0) & np.isfinite(found.start_s)).tolist():
        config = int(found.config[job])
        start_s = problem.snapshot.now_s + float(found.start_s[job])
        if start_s > LAST_S:
            continue
        end_s = start_s + float(problem.launch_s[job]) + float(problem.run_s[job, config])
        node = problem.nodes[nodes[found.node[job]]].id
        later[int(problem.rows[job])] = Expected(
            start_s,
            end_s if end_s <= LAST_S else None,
            (node,),
            int(problem.config_gpus[config]),
        )
    return later
