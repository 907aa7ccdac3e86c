"""Cost of a solution: ANDREAS' proxy f (eq. 1), as published or of whole runs."""

from dataclasses import dataclass

import numpy as np

from policies.contract.snapshot import Floats, Ints
from policies.cost_model.kernels import NONE
from policies.cost_model.problem import Problem
from policies.cost_model.solution import Solution


@dataclass(frozen=True, slots=True)
class Objective:
    """Cost f of a solution, over the jobs decided on, in the cluster's currency.

    f is the sum of

    - tardiness of placed jobs, sum_j w_j tau_j, and `rho` times the worst-case tardiness of
      postponed ones, rho * sum_j w_j tauhat_j;
    - energy. As published (`whole` False), of each node until its first end, c[n, used] *
      t_first(n). Else of whole runs, c[n, used] / used * sum_j g_j t_j, and of the cheapest run of
      every postponed job: otherwise postponing would seem to save energy. These times are priced
      seconds;
    - waiting of postponed jobs until the next round, where waiting has a price;
    - moving or stopping running jobs: `hysteresis` times the energy of the job's cheapest run.

    `own_gpus`: each job's energy is priced at c[n, g_j] (eq. 4k), not at the node's GPUs in use.
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
        if self.whole:
            cost = cost + problem.cheapest
        return cost

    def moving(self, problem: Problem) -> Floats:
        """float64[E]: cost of moving each running job; 0 for others."""
        return np.where(problem.running, self.hysteresis * problem.cheapest, 0.0)

    def value(self, problem: Problem, solution: Solution) -> float:
        """Return f of a solution, evaluated independently of the kernels."""
        jobs = solution.placed
        run_s = solution.run_times_s(problem)
        late_s = np.maximum(run_s - problem.slack_s[jobs], 0.0)
        tardiness = float((problem.column("tardiness_weight")[jobs] * late_s).sum())
        postponed = float(self.postponing(problem)[solution.node == NONE].sum())
        has_moved = solution.moved(problem)[jobs]
        moves = float(self.moving(problem)[jobs][has_moved].sum())
        return tardiness + postponed + moves + self._energy(problem, solution, run_s)

    def _energy(self, problem: Problem, solution: Solution, run_s: Floats) -> float:
        """Return the energy cost of the placed jobs, which run for `run_s` float64[placed]."""
        # 1. GPUs of each job, and all in use on its node.
        jobs = solution.placed
        nodes = solution.node[jobs]
        gpus = problem.config_gpus[solution.config[jobs]]
        used_on_node = np.bincount(nodes, gpus, len(problem.nodes)).astype(np.int64)
        used = used_on_node[nodes]

        # 2. The cost of its node during its run.
        priced_at = gpus if self.own_gpus else used
        rates = problem.cost[problem.node_class[nodes], priced_at]
        costs = rates * problem.prices.priced_s(run_s)

        # 3. Its part of that, or only one cost for each node.
        if not self.whole:
            return float(_cost_at_first_end(nodes, run_s, costs, len(problem.nodes)).sum())
        if self.own_gpus:
            return float(costs.sum())
        return float((costs * gpus / used).sum())


def _cost_at_first_end(nodes: Ints, run_s: Floats, costs: Floats, count: int) -> Floats:
    """float64[count]: cost of the job that ends first on each node, the cheapest of equal ones."""
    soonest_s = np.full(count, np.inf)
    np.minimum.at(soonest_s, nodes, run_s)
    is_first = run_s == soonest_s[nodes]
    cost = np.full(count, np.inf)
    np.minimum.at(cost, nodes[is_first], costs[is_first])
    return np.where(np.isfinite(cost), cost, 0.0)
