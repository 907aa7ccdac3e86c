"""Cost of a solution: ANDREAS' proxy f (eq. 1), as published or of whole runs."""

from dataclasses import dataclass

import numpy as np

from policies.contract.snapshot import Floats, Ints
from policies.cost_model.kernels import NONE
from policies.cost_model.problem import Problem
from policies.cost_model.solution import Solution


@dataclass(frozen=True, slots=True)
class Objective:
    """f of a solution, over the jobs decided on: sum_j w_j tau_j + rho * sum_j w_j tauhat_j.

    As published (`whole` False) plus sum_n c[n, used] * t_first(n). Else plus the energy of whole
    runs, sum_n c[n, used] / used * sum_j g_j t_j, and the cheapest run of every postponed job:
    otherwise postponing would seem to save energy. t of energy is in priced seconds. A postponed
    job also pays for waiting until the next round, where waiting has a price. `hysteresis`:
    cost of moving or stopping a running job, as a fraction of its cheapest run. `own_gpus`: each
    job is priced at c[n, g_j] (eq. 4k), not at the node's GPUs in use.
    """

    rho: float
    whole: bool = False
    hysteresis: float = 0.0
    own_gpus: bool = False

    def postponing(self, problem: Problem) -> Floats:
        """float64[E]: cost of postponing each job, rho w_j max(0, T_c + H + M_j - d_j) and more."""
        late_s = np.maximum(problem.snapshot.round_s + problem.slowest_s - problem.slack_s, 0.0)
        cost: Floats = self.rho * problem.column("tardiness_weight") * late_s
        cost += self.moving(problem) + problem.column("waiting_cost") * problem.snapshot.round_s
        return cost + problem.cheapest if self.whole else cost

    def moving(self, problem: Problem) -> Floats:
        """float64[E]: cost of moving each running job; 0 for others."""
        return np.where(problem.running, self.hysteresis * problem.cheapest, 0.0)

    def value(self, problem: Problem, solution: Solution) -> float:
        """f of a solution, evaluated independently of the kernel."""
        jobs, times = solution.placed, solution.run_times_s(problem)
        late_s = np.maximum(times - problem.slack_s[jobs], 0.0)
        tardiness = float((problem.column("tardiness_weight")[jobs] * late_s).sum())
        postponed = float(self.postponing(problem)[solution.node == NONE].sum())
        moves = float(self.moving(problem)[jobs][solution.moved(problem)[jobs]].sum())
        return tardiness + postponed + moves + self._energy(problem, solution, times)

    def _energy(self, problem: Problem, solution: Solution, times: Floats) -> float:
        jobs, nodes = solution.placed, solution.node[solution.placed]
        gpus = problem.config_gpus[solution.config[jobs]]
        used = np.bincount(nodes, gpus, len(problem.nodes)).astype(np.int64)
        rates = problem.cost[problem.node_class[nodes], gpus if self.own_gpus else used[nodes]]
        costs = rates * problem.prices.priced_s(times)
        if self.whole:
            return float((costs if self.own_gpus else costs * gpus / used[nodes]).sum())
        return float(_at_first_end(nodes, times, costs, len(problem.nodes)).sum())


def _at_first_end(nodes: Ints, times: Floats, costs: Floats, count: int) -> Floats:
    """float64[count]: cost of each node's first end, the cheapest of equal ones."""
    soonest, cost = np.full(count, np.inf), np.full(count, np.inf)
    np.minimum.at(soonest, nodes, times)
    at = np.flatnonzero(times == soonest[nodes])
    np.minimum.at(cost, nodes[at], costs[at])
    return np.where(np.isfinite(cost), cost, 0.0)
