"""ANDREAS' exact model (Filippini et al., Appendix A, eq. 4) over CP-SAT.

Data: J jobs, N nodes, the *seats* (j, n, g) in which a job can run: on g GPUs of node n in t[j, n,
g] seconds from now. Variables, all binary: x[j, n, g] the job takes the seat; z[j, n] it runs on
the node; w[n] the node is open; y[n, g] the node has g GPUs in use; alpha[j, n] the job is the
first to end on the node. Costs are integers of `Data.unit`.

What differs from the paper, where it is silent or wrong: times count from now on (4i, 4j left out
T_c); alpha belongs to the job that ends first (nothing tied it); the open nodes are as many as a
maximum matching of jobs to nodes (4n: min(N, J), which types, drains or a power cap can make
infeasible), or free; a node's energy may be priced at its GPUs in use, not at each job's own (4k).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from ortools.sat.python import cp_model

from policies.andreas.objective import Objective
from policies.contract.plan import PlanStatus
from policies.cost_model.kernels import extra_watts
from policies.cost_model.problem import Problem
from policies.cost_model.solution import Solution
from policies.cp_sat import run_solver

Seat: TypeAlias = tuple[int, int, int]
RESOLUTION = 2**40
"""Units of cost in the dearest possible solution."""
TIE = 4
FINE = 10**6
"""Resolution of watts, cores and gigabytes."""
SLACK = 1e-3


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a choice: run time, tardiness, move; `priced_s`: time of its energy."""

    time_s: float
    priced_s: float
    others: float


@dataclass(frozen=True)
class Data:
    """Costs of every choice and of leaving a job out."""

    problem: Problem
    objective: Objective
    seats: Mapping[Seat, Cost]

    @classmethod
    def of(cls, problem: Problem, objective: Objective) -> Data:
        return cls(problem, objective, dict(_seats(problem, objective)))

    def rate(self, n: int, gpus: int) -> float:
        """c[n, g]: cost of a priced second of node n with `gpus` GPUs in use."""
        return float(self.problem.cost[self.problem.node_class[n], gpus])

    @cached_property
    def postponed(self) -> tuple[float, ...]:
        """Cost of leaving each job without a node."""
        return tuple(self.objective.postponing(self.problem).tolist())

    @cached_property
    def unit(self) -> float:
        """Currency in one unit of the model's integer costs."""
        dearest: dict[int, float] = defaultdict(float)
        for (j, n, _), cost in self.seats.items():
            most = max(abs(self.rate(n, g)) for g in range(1, len(self.problem.devices[n]) + 1))
            dearest[j] = max(dearest[j], abs(cost.others) + most * cost.priced_s)
        total = sum(max(dearest[j], abs(cost)) for j, cost in enumerate(self.postponed))
        return max(total, 1e-9) / RESOLUTION

    def units(self, cost: float) -> int:
        return round(cost / self.unit)


def _seats(problem: Problem, objective: Objective) -> Iterable[tuple[Seat, Cost]]:
    moving, weight = objective.moving(problem), problem.column("tardiness_weight")
    for n, devices in enumerate(problem.devices):
        roomy = np.all(problem.demand <= problem.capacity[n] + SLACK / FINE, axis=1)
        for k in np.flatnonzero(
            (problem.config_class == problem.node_class[n]) & (problem.config_gpus <= len(devices))
        ):
            stays = (problem.current_node == n) & (problem.current_config == k)
            times = problem.run_s[:, k] + np.where(stays, 0.0, problem.move_s)
            priced = problem.prices.priced_s(times)
            for j in np.flatnonzero(np.isfinite(times) & roomy).tolist():
                late_s = max(0.0, float(times[j] - problem.slack_s[j]))
                others = float(weight[j]) * late_s + (0.0 if stays[j] else float(moving[j]))
                yield (
                    (j, n, int(problem.config_gpus[k])),
                    Cost(float(times[j]), float(priced[j]), others),
                )


@dataclass
class Model:
    """Variables; each method adds the constraint it is named after."""

    data: Data
    cp: cp_model.CpModel = field(default_factory=cp_model.CpModel)

    def __post_init__(self) -> None:
        problem, new = self.data.problem, self.cp.new_bool_var
        self.jobs, self.nodes = range(len(problem.rows)), range(len(problem.nodes))
        self.gpus = {n: range(1, len(problem.devices[n]) + 1) for n in self.nodes}
        self.x = {s: new(f"x{s}") for s in self.data.seats}
        self.z = {(j, n): new(f"z{j, n}") for j, n in dict.fromkeys((j, n) for j, n, _ in self.x)}
        self.w = [new(f"w{n}") for n in self.nodes]
        self.y = {(n, g): new(f"y{n, g}") for n in self.nodes for g in self.gpus[n]}
        self.alpha: dict[tuple[int, int], Any] = {}
        self.of_node: dict[int, list[Seat]] = defaultdict(list)
        for seat in self.x:
            self.of_node[seat[1]].append(seat)

    def one_configuration_on_a_node(self) -> None:
        """(4a, 4c, 4e) sum_g x[j, n, g] = z[j, n]."""
        for (j, n), z in self.z.items():
            self.cp.add(sum(self.x[j, n, g] for g in self.gpus[n] if (j, n, g) in self.x) == z)

    def only_on_open_nodes(self) -> None:
        """(4b) z[j, n] <= w[n]."""
        for (_, n), z in self.z.items():
            self.cp.add_implication(z, self.w[n])

    def one_node_each(self) -> None:
        """(4d) sum_n z[j, n] <= 1."""
        for j in self.jobs:
            self.cp.add_at_most_one(self.z[j, n] for n in self.nodes if (j, n) in self.z)

    def one_number_of_gpus_in_use(self) -> None:
        """(4f) sum_g y[n, g] = w[n]; (4g, 4h) sum_jg g x[j, n, g] = sum_g g y[n, g]."""
        for n in self.nodes:
            self.cp.add(sum(self.y[n, g] for g in self.gpus[n]) == self.w[n])
            used = sum(g * self.x[j, n, g] for j, _, g in self.of_node[n])
            self.cp.add(used == sum(g * self.y[n, g] for g in self.gpus[n]))

    def resources_of_nodes(self) -> None:
        """Scarce resources: sum_j demand[j, r] z[j, n] <= capacity[n, r]."""
        demand, capacity = self.data.problem.demand, self.data.problem.capacity
        for n in self.nodes:
            for r in np.flatnonzero(np.isfinite(capacity[n])).tolist():
                wanted = [_up(demand[j, r]) * self.z[j, n] for j in self.jobs if (j, n) in self.z]
                self.cp.add(sum(wanted) <= max(0, _down(capacity[n, r])))

    def power_cap(self) -> None:
        """Power: sum_ng (P_n(busy + g) - P_n(busy)) y[n, g] <= what the cap leaves."""
        problem = self.data.problem
        if not np.isfinite(problem.watts):
            return
        busy, of_class = problem.busy, problem.node_class
        watts = {(n, g): extra_watts(problem.power, of_class[n], busy[n], g) for n, g in self.y}
        self.cp.add(sum(_up(watts[at]) * y for at, y in self.y.items()) <= _down(problem.watts))

    def open_nodes(self, least: int) -> None:
        """(4n) sum_n w[n] >= the size of a maximum matching of jobs to nodes."""
        self.cp.add(sum(self.w) >= least)

    def one_first_ending_job(self) -> None:
        """(4l) sum_j alpha[j, n] = w[n]; (4m) alpha[j, n] <= z[j, n]."""
        self.alpha = {(j, n): self.cp.new_bool_var(f"alpha{j, n}") for j, n in self.z}
        for n in self.nodes:
            self.cp.add(sum(self.alpha[j, n] for j in self.jobs if (j, n) in self.z) == self.w[n])
        for at, alpha in self.alpha.items():
            self.cp.add_implication(alpha, self.z[at])

    def none_ends_before_it(self) -> None:
        """alpha[j, n] + x[j, n, g] + x[k, n, g'] <= 2 wherever t[k, n, g'] < t[j, n, g]."""
        for n, seats in self.of_node.items():
            for j, _, g in seats:
                sooner: dict[int, list[Any]] = defaultdict(list)
                for other in seats:
                    if (
                        other[0] != j
                        and self.data.seats[other].time_s < self.data.seats[j, n, g].time_s
                    ):
                        sooner[other[0]].append(self.x[other])
                for of_one in sooner.values():
                    self.cp.add(self.alpha[j, n] + self.x[j, n, g] + sum(of_one) <= 2)

    def energy(self) -> Any:
        """Energy of whole runs, or of each node until its first end, by GPUs of jobs or node."""
        first_end, own = not self.data.objective.whole, self.data.objective.own_gpus
        if first_end:
            self.one_first_ending_job()
            self.none_ends_before_it()
            return sum(self._until_first_end(n, own) for n in self.nodes if self.of_node[n])
        if own:
            return sum(
                self.data.units(self.data.rate(s[1], s[2]) * c.priced_s) * self.x[s]
                for s, c in self.data.seats.items()
            )
        return sum(self._whole_runs(n, g) for n, g in self.y)

    def _until_first_end(self, n: int, own: bool) -> Any:
        """pi[n] >= c[n, g] t[j, n, g] where alpha[j, n] = 1 (4k); g: own GPUs, or y's."""
        costs = {
            (s, u): self.data.units(self.data.rate(n, u) * self.data.seats[s].priced_s)
            for s in self.of_node[n]
            for u in ([s[2]] if own else self.gpus[n])
        }
        pi = self.cp.new_int_var(min(0, *costs.values()), max(0, *costs.values()), f"pi{n}")
        for (seat, u), cost in costs.items():
            because = [self.alpha[seat[0], n], self.x[seat], *([] if own else [self.y[n, u]])]
            self.cp.add(pi >= cost).only_enforce_if(because)
        self.cp.add(pi >= 0).only_enforce_if(~self.w[n])
        return pi

    def _whole_runs(self, n: int, used: int) -> Any:
        """c[n, u] / u * sum_jg g t[j, n, g] v[j, n, g, u], v = x y: node n uses u GPUs."""
        rate, terms = self.data.rate(n, used) / used, []
        of_job: dict[int, list[Any]] = defaultdict(list)
        for j, _, g in self.of_node[n]:
            if g > used:
                continue
            v = self.v[(j, n, g), used]
            of_job[j].append(v)
            terms.append((g, v, self.data.units(rate * g * self.data.seats[j, n, g].priced_s)))
        self.cp.add(sum(g * v for g, v, _ in terms) == used * self.y[n, used])
        for of_one in of_job.values():
            self.cp.add(sum(of_one) <= self.y[n, used])
        return sum(cost * v for _, v, cost in terms)

    @cached_property
    def v(self) -> dict[tuple[Seat, int], Any]:
        """v[j, n, g, u], with sum_u v[j, n, g, u] = x[j, n, g]."""
        made: dict[tuple[Seat, int], Any] = {}
        for seat, x in self.x.items():
            of_seat = {
                (seat, u): self.cp.new_bool_var(f"v{seat, u}")
                for u in self.gpus[seat[1]]
                if u >= seat[2]
            }
            self.cp.add(sum(of_seat.values()) == x)
            made |= of_seat
        return made

    def cost(self) -> Any:
        """Weighted tardiness of the placed, moves, postponement of the others, and energy.

        Running is better by `TIE` units than waiting at the same cost.
        """
        data = self.data
        placed = sum(
            (data.units(c.others - data.postponed[s[0]]) - TIE) * self.x[s]
            for s, c in data.seats.items()
        )
        return placed + sum(data.units(cost) + TIE for cost in data.postponed) + self.energy()


@dataclass(frozen=True, slots=True)
class Solved:
    """Best solution found, its quality, and a lower bound of the cost."""

    solution: Solution
    status: PlanStatus
    bound: float
    open_nodes: int


def solve(data: Data, *, matching: bool, budget: float, seed: int) -> Solved:
    """Minimise the cost. `matching`: as many nodes are open as can be; `budget`: per search."""
    model = _constrained(data)
    if matching:
        model.cp.maximize(sum(model.w))
        matched, _ = run_solver(model.cp, budget, seed)
        model = _constrained(data)
        model.open_nodes(least=round(matched.objective_value))
    model.cp.minimize(model.cost())
    solver, status = run_solver(model.cp, budget, seed)
    opened = sum(solver.boolean_value(w) for w in model.w)
    added = (TIE + 1) * len(data.postponed)  # for ties, and by rounding
    bound = (solver.best_objective_bound - added) * data.unit
    return Solved(_solution(model, solver), status, bound, opened)


def _constrained(data: Data) -> Model:
    model = Model(data)
    model.one_configuration_on_a_node()
    model.only_on_open_nodes()
    model.one_node_each()
    model.one_number_of_gpus_in_use()
    model.resources_of_nodes()
    model.power_cap()
    return model


def _solution(model: Model, solver: cp_model.CpSolver) -> Solution:
    problem = model.data.problem
    found = Solution.empty(problem)
    for (j, n, g), x in model.x.items():
        if solver.boolean_value(x):
            config = problem.config_number[int(problem.node_class[n]), g]
            found.node[j], found.config[j] = n, config
    return found


def _up(amount: float) -> int:
    return int(np.ceil(amount * FINE - SLACK))


def _down(amount: float) -> int:
    return int(np.floor(amount * FINE + SLACK))
