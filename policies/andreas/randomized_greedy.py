"""ANDREAS' Randomized Greedy (Filippini et al., Algorithm 1): energy and tardiness."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from policies.andreas.configuration import (
    kernel_instance,
    least_gpus_of_rest,
    preferences_of,
)
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

    Each construction takes the jobs in the order of their pressure and gives each a configuration,
    a node's type and a number of GPUs. Randomised constructions swap neighbours in the order and
    draw configurations. The one of the least f (`Objective`) is the plan.

    Mode `coded` is as in the authors' program, with its constants, its f and free moves. Mode
    `paper` is as published, where that is silent so:

    - a configuration is drawn among the three cheapest, in inverse proportion to their cost;
    - neighbours swap in inverse proportion to their weight, with a halving intensity;
    - the pressure of a late job is multiplied by its tardiness weight;
    - run times include launches;
    - f counts the energy of whole runs, not only until the first end (`objective`);
    - a running job moves only where that saves enough (`hysteresis`).

    `polish` adds a local search beyond the paper.
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
        """The objective by which constructions are compared."""
        if self.mode == "coded":
            return Objective(self.rho)
        return Objective(self.rho, whole=self.objective == "whole", hysteresis=self.hysteresis)

    def solve(self, problem: Problem) -> Solution:
        """Return the best of deterministic and randomised constructions, polished on request."""
        arguments = self.search_arguments(problem)
        node, config, _, _ = search(**arguments)
        if self.polish and self.f.whole and len(problem.rows):
            node, config = polish(arguments["data"], node, config, self.polish, arguments["seed"])
        return Solution(node, config)

    def search_arguments(self, problem: Problem) -> dict[str, Any]:
        """Return the arguments of the kernel `search`."""
        is_coded = self.mode == "coded"
        iterations = self.iterations
        if is_coded:
            choices = len(problem.nodes) * len(problem.rows) * problem.snapshot.max_gpus
            iterations = min(iterations, choices)
        orders = self._job_orders(problem)
        preferences = preferences_of(problem, self.f.hysteresis)
        return {
            "data": kernel_instance(problem, preferences, self.f),
            "orders": orders,
            "least": least_gpus_of_rest(problem, orders),
            "mode": CODED if is_coded else PAPER,
            "iterations": iterations,
            "rate": self.pi if is_coded else self.intensity,
            "swap": self.swap if is_coded else self.intensity,
            "alpha": self.alpha,
            "seed": nonzero_seed(problem.snapshot.seed),
        }

    def _job_orders(self, problem: Problem) -> Ints:
        """int64[S, E]: orders of the jobs in which constructions begin, by falling pressure.

        Pressure of job j is Delta_j = T_c + min t - d_j (eq. 2), ties by arrival. Mode paper has a
        second order, with running jobs first. t counts a launch for running jobs too: else a job
        just launched is less pressing than while it waited, and two jobs would swap places in every
        round.
        """
        # 1. Pressure. Above 0, the job is late wherever it runs.
        fastest_s = np.where(np.isfinite(problem.fastest_s), problem.fastest_s, 0.0)
        pressure: Floats = fastest_s - problem.slack_s
        if self.mode == "paper":
            weighted = np.maximum(pressure, 0.0) * problem.column("tardiness_weight")
            pressure = np.where(pressure > 0.0, weighted, pressure)

        # 2. The orders by it.
        by_pressure = np.lexsort((problem.column("arrival_s"), -pressure)).astype(np.int64)
        if self.mode == "coded":
            return by_pressure[None, :]
        running_first = np.argsort(~problem.running[by_pressure], kind="stable")
        return np.stack([by_pressure, by_pressure[running_first]])
