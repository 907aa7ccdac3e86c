"""ANDREAS' Randomized Greedy (Filippini et al., Algorithm 1): energy and tardiness."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from policies.andreas.configuration import choose, instance, least_gpus
from policies.andreas.kernels.greedy import CODED, PAPER, search
from policies.andreas.kernels.polish import polish
from policies.andreas.objective import Objective
from policies.contract.plan import Plan
from policies.contract.policy import fraction, parameter
from policies.contract.snapshot import Floats, Ints, Snapshot
from policies.cost_model.kernels import nonzero_seed
from policies.cost_model.problem import Problem, build
from policies.cost_model.solution import Solution, to_plan


@dataclass(frozen=True, slots=True)
class RandomizedGreedy:
    """Least energy and tardiness cost by randomised greedy construction (ANDREAS).

    Mode `coded`: as in the authors' program, with its constants, its proxy f and free moves. Mode
    `paper`: configurations are drawn among the three cheapest in inverse proportion to their cost,
    neighbours swap in inverse proportion to their weight with a halving intensity, late jobs'
    pressure counts with their weight, run times include launches, f looks past the first finish
    (`objective`), and running jobs move only where that pays (`hysteresis`). `polish` adds a local
    search beyond the paper.
    """

    mode: str = parameter(
        "paper",
        "paper: as published; coded: as the authors' program does it",
        choices=("paper", "coded"),
    )
    iterations: int = parameter(
        1000,
        "randomised constructions; coded: at most nodes x jobs x GPUs",
        minimum=0,
        maximum=1_000_000,
    )
    rho: float = parameter(
        100.0, "weight of the worst-case tardiness of a postponed job", minimum=0.0, maximum=1e9
    )
    alpha: float = fraction(
        0.05, "coded: part of the configurations that meet the due date to draw from"
    )
    pi: float = fraction(
        0.05, "coded: probability that a configuration is drawn instead of the cheapest taken"
    )
    swap: float = fraction(
        0.55,
        "coded: probability that a job swaps with a heavier next one (1 - swap with a lighter one)",
    )
    intensity: float = fraction(
        1.0,
        "paper: greatest probability of drawing a configuration, and factor of that of swapping",
    )

    objective: str = parameter(
        "whole",
        "paper: whole: f counts the energy of whole runs; first_end: of each node until its"
        " first job ends, as published",
        choices=("whole", "first_end"),
    )
    hysteresis: float = fraction(
        0.5, "paper: what moving or stopping a running job must save, as a fraction of its energy"
    )
    polish: int = parameter(
        0,
        "paper, whole: steps of a local search from the best construction, for a lower f",
        minimum=0,
        maximum=1_000_000,
    )

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Return the best construction; the objective is f in the cluster's currency."""
        problem = build(snapshot, charged=self.mode == "paper")
        solution = self.solve(problem)
        return to_plan(problem, solution, "randomized_greedy", self.f.value(problem, solution))

    @property
    def f(self) -> Objective:
        if self.mode == "coded":
            return Objective(self.rho)
        return Objective(self.rho, self.objective == "whole", self.hysteresis)

    def solve(self, problem: Problem) -> Solution:
        """Return the best of deterministic and randomised runs, polished on request."""
        arguments = self.search_arguments(problem)
        node, config, _, _ = search(**arguments)
        if self.polish and self.f.whole and len(problem.rows):
            node, config = polish(arguments["data"], node, config, self.polish, arguments["seed"])
        return Solution(node, config)

    def search_arguments(self, problem: Problem) -> dict[str, Any]:
        coded, orders, iterations = self.mode == "coded", self._orders(problem), self.iterations
        if coded:
            choices = len(problem.nodes) * len(problem.rows) * problem.snapshot.max_gpus
            iterations = min(iterations, choices)
        return {
            "data": instance(problem, choose(problem, self.f.hysteresis), self.f),
            "orders": orders,
            "least": least_gpus(problem, orders),
            "mode": CODED if coded else PAPER,
            "iterations": iterations,
            "rate": self.pi if coded else self.intensity,
            "swap": self.swap if coded else self.intensity,
            "alpha": self.alpha,
            "seed": nonzero_seed(problem.snapshot.seed),
        }

    def _orders(self, problem: Problem) -> Ints:
        """int64[S, E]: orders by pressure Delta_j = T_c + min t - d_j (eq. 2), ties by arrival.

        In mode paper also with running jobs first. t counts a launch for running jobs too: else a
        job just launched is less pressing than while it waited, and two jobs would swap places in
        every round.
        """
        fastest = np.where(np.isfinite(problem.fastest_s), problem.fastest_s, 0.0)
        pressure: Floats = fastest - problem.slack_s
        if self.mode == "paper":
            late, weight = pressure > 0.0, problem.column("tardiness_weight")
            pressure = np.where(late, np.maximum(pressure, 0.0) * weight, pressure)
        order = np.lexsort((problem.column("arrival_s"), -pressure)).astype(np.int64)
        if self.mode == "coded":
            return order[None, :]
        return np.stack([order, order[np.argsort(~problem.running[order], kind="stable")]])
