"""ANDREAS' exact model (Filippini et al., Appendix A, eq. 4) over CP-SAT.

Data: J jobs, N nodes, the *seats* (j, n, g) in which a job can run: on g GPUs of node n in t[j, n,
g] seconds from now. Variables, all binary:

    x[j, n, g]   the job takes the seat
    z[j, n]      the job runs on the node
    w[n]         the node is open: it has GPUs in use
    y[n, g]      the node has g GPUs in use
    alpha[j, n]  the job is the first to end on the node

Costs are integers of `Data.unit`.

Differences from the paper, where it is silent or wrong:

- Times count from now on (4i and 4j leave out T_c).
- alpha belongs to the job that ends first (in the paper nothing ties it to one).
- At least as many nodes are open as a maximum matching of jobs to nodes allows, or the number is
  free. The paper's min(N, J) (4n) can be infeasible because of types, drains or a power cap.
- A node's energy may be priced at its GPUs in use, not at each job's own (4k).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
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
"""Job, node and number of GPUs."""

RESOLUTION = 2**40
"""Units of cost in the dearest possible solution."""

TIE = 4
"""Units by which running a job is better than postponing it at the same cost."""

FINE = 10**6
"""Integers per watt, core or gigabyte."""

SLACK = 1e-3
"""Fraction of such an integer that counts as a rounding error."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Run time of a seat and its cost.

    `time_s`: seconds from now to its end. `priced_s`: the same in priced seconds, by which energy
    is paid. `others`: cost of tardiness and of a move.
    """

    time_s: float
    priced_s: float
    others: float


@dataclass(frozen=True)
class Data:
    """Costs of every seat and of leaving a job out."""

    problem: Problem
    objective: Objective
    seats: Mapping[Seat, Cost]

    @classmethod
    def of(cls, problem: Problem, objective: Objective) -> Data:
        """Return the data of a problem with all its seats."""
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
        """Currency in one unit of the model's integer costs: the dearest solution has RESOLUTION.

        A seat costs most if its node has the dearest number of GPUs in use.
        """
        dearest_seat: dict[int, float] = defaultdict(float)
        for (j, n, _), cost in self.seats.items():
            rates = [abs(self.rate(n, g)) for g in range(1, len(self.problem.devices[n]) + 1)]
            seat_cost = abs(cost.others) + max(rates) * cost.priced_s
            dearest_seat[j] = max(dearest_seat[j], seat_cost)
        total = sum(max(dearest_seat[j], abs(cost)) for j, cost in enumerate(self.postponed))
        return max(total, 1e-9) / RESOLUTION

    def units(self, cost: float) -> int:
        """Return a cost in whole units."""
        return round(cost / self.unit)


def _seats(problem: Problem, objective: Objective) -> Iterator[tuple[Seat, Cost]]:
    """Yield every seat that a job can take on the empty cluster, with its cost."""
    moving = objective.moving(problem)
    weight = problem.column("tardiness_weight")
    for n, devices in enumerate(problem.devices):
        has_resources = np.all(problem.demand <= problem.capacity[n] + SLACK / FINE, axis=1)
        is_of_class = problem.config_class == problem.node_class[n]
        is_small_enough = problem.config_gpus <= len(devices)
        for k in np.flatnonzero(is_of_class & is_small_enough).tolist():
            gpus = int(problem.config_gpus[k])
            stays = (problem.current_node == n) & (problem.current_config == k)
            times_s = problem.run_s[:, k] + np.where(stays, 0.0, problem.move_s)
            priced_s = problem.prices.priced_s(times_s)
            for j in np.flatnonzero(np.isfinite(times_s) & has_resources).tolist():
                late_s = max(0.0, float(times_s[j] - problem.slack_s[j]))
                others = float(weight[j]) * late_s
                if not stays[j]:
                    others += float(moving[j])
                yield (j, n, gpus), Cost(float(times_s[j]), float(priced_s[j]), others)


@dataclass
class Model:
    """Variables as in the paper; each method adds the constraint it is named after.

    `gpus`: by node the possible numbers of its GPUs in use.
    """

    data: Data
    cp: cp_model.CpModel = field(default_factory=cp_model.CpModel)

    def __post_init__(self) -> None:
        problem = self.data.problem
        new_variable = self.cp.new_bool_var
        self.jobs = range(len(problem.rows))
        self.nodes = range(len(problem.nodes))
        self.gpus = {n: range(1, len(problem.devices[n]) + 1) for n in self.nodes}
        self.seats_of_node: dict[int, list[Seat]] = defaultdict(list)
        for seat in self.data.seats:
            self.seats_of_node[seat[1]].append(seat)

        self.x = {seat: new_variable(f"x{seat}") for seat in self.data.seats}
        job_and_node = dict.fromkeys((j, n) for j, n, _ in self.x)
        self.z = {(j, n): new_variable(f"z{j, n}") for j, n in job_and_node}
        self.w = [new_variable(f"w{n}") for n in self.nodes]
        self.y = {(n, g): new_variable(f"y{n, g}") for n in self.nodes for g in self.gpus[n]}
        self.alpha: dict[tuple[int, int], Any] = {}

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
            used = sum(g * self.x[j, n, g] for j, _, g in self.seats_of_node[n])
            self.cp.add(used == sum(g * self.y[n, g] for g in self.gpus[n]))

    def resources_of_nodes(self) -> None:
        """Scarce resources: sum_j demand[j, r] z[j, n] <= capacity[n, r]."""
        demand = self.data.problem.demand
        capacity = self.data.problem.capacity
        for n in self.nodes:
            jobs = [j for j in self.jobs if (j, n) in self.z]
            for r in np.flatnonzero(np.isfinite(capacity[n])).tolist():
                used = sum(_rounded_up(demand[j, r]) * self.z[j, n] for j in jobs)
                self.cp.add(used <= max(0, _rounded_down(capacity[n, r])))

    def power_cap(self) -> None:
        """Power: sum_ng (P_n(busy + g) - P_n(busy)) y[n, g] <= watts left under the cap."""
        problem = self.data.problem
        if not np.isfinite(problem.watts):
            return
        used: Any = 0
        for (n, g), y in self.y.items():
            watts = extra_watts(problem.power, problem.node_class[n], problem.busy[n], g)
            used += _rounded_up(watts) * y
        self.cp.add(used <= _rounded_down(problem.watts))

    def open_nodes(self, least: int) -> None:
        """(4n) sum_n w[n] >= the size of a maximum matching of jobs to nodes."""
        self.cp.add(sum(self.w) >= least)

    def one_first_ending_job(self) -> None:
        """(4l) sum_j alpha[j, n] = w[n]; (4m) alpha[j, n] <= z[j, n]."""
        self.alpha = {(j, n): self.cp.new_bool_var(f"alpha{j, n}") for j, n in self.z}
        for n in self.nodes:
            self.cp.add(sum(self.alpha[j, n] for j in self.jobs if (j, n) in self.z) == self.w[n])
        for (j, n), alpha in self.alpha.items():
            self.cp.add_implication(alpha, self.z[j, n])

    def none_ends_before_it(self) -> None:
        """alpha[j, n] + x[j, n, g] + x[k, n, g'] <= 2 wherever t[k, n, g'] < t[j, n, g]."""
        for n, seats in self.seats_of_node.items():
            for j, _, g in seats:
                # Another job has one seat at most, so its seats count together.
                sooner_seats: dict[int, list[Any]] = defaultdict(list)
                for other in seats:
                    ends_sooner = self.data.seats[other].time_s < self.data.seats[j, n, g].time_s
                    if other[0] != j and ends_sooner:
                        sooner_seats[other[0]].append(self.x[other])
                for seats_of_other in sooner_seats.values():
                    self.cp.add(self.alpha[j, n] + self.x[j, n, g] + sum(seats_of_other) <= 2)

    def energy(self) -> Any:
        """Return the energy cost of whole runs, or of each node until its first end.

        Its rate is that of each job's own GPUs, or of the node's GPUs in use.
        """
        if not self.data.objective.whole:
            self.one_first_ending_job()
            self.none_ends_before_it()
            used_nodes = [n for n in self.nodes if self.seats_of_node[n]]
            return sum(self._energy_until_first_end(n) for n in used_nodes)
        if not self.data.objective.own_gpus:
            return sum(self._energy_of_whole_runs(n, g) for n, g in self.y)
        terms = []
        for seat, cost in self.data.seats.items():
            _, n, g = seat
            terms.append(self.data.units(self.data.rate(n, g) * cost.priced_s) * self.x[seat])
        return sum(terms)

    def _energy_until_first_end(self, n: int) -> Any:
        """Return pi[n] >= c[n, u] t[j, n, g] where alpha[j, n] = 1 (4k).

        u is the job's own GPUs g, or the node's GPUs in use.
        """
        # 1. The cost of each seat if its job ends first, by u.
        is_by_own_gpus = self.data.objective.own_gpus
        costs: dict[tuple[Seat, int], int] = {}
        for seat in self.seats_of_node[n]:
            numbers_in_use = [seat[2]] if is_by_own_gpus else self.gpus[n]
            for u in numbers_in_use:
                cost = self.data.rate(n, u) * self.data.seats[seat].priced_s
                costs[seat, u] = self.data.units(cost)

        # 2. pi[n] is at least the cost that applies.
        pi = self.cp.new_int_var(min(0, *costs.values()), max(0, *costs.values()), f"pi{n}")
        for (seat, u), cost_units in costs.items():
            conditions = [self.alpha[seat[0], n], self.x[seat]]
            if not is_by_own_gpus:
                conditions.append(self.y[n, u])
            self.cp.add(pi >= cost_units).only_enforce_if(conditions)
        self.cp.add(pi >= 0).only_enforce_if(~self.w[n])
        return pi

    def _energy_of_whole_runs(self, n: int, used: int) -> Any:
        """Return the energy cost of node n if it has u = `used` GPUs in use, else 0.

        It is c[n, u] / u * sum_jg g t[j, n, g] v[j, n, g, u], with v = x[j, n, g] y[n, u].
        """
        rate = self.data.rate(n, used) / used
        v_of_job: dict[int, list[Any]] = defaultdict(list)
        gpus = []
        costs = []
        for j, _, g in self.seats_of_node[n]:
            if g > used:
                continue
            v = self.v[(j, n, g), used]
            v_of_job[j].append(v)
            gpus.append(g * v)
            costs.append(self.data.units(rate * g * self.data.seats[j, n, g].priced_s) * v)
        self.cp.add(sum(gpus) == used * self.y[n, used])
        for v_of_one in v_of_job.values():
            self.cp.add(sum(v_of_one) <= self.y[n, used])
        return sum(costs)

    @cached_property
    def v(self) -> dict[tuple[Seat, int], Any]:
        """v[j, n, g, u], with sum_u v[j, n, g, u] = x[j, n, g]."""
        v: dict[tuple[Seat, int], Any] = {}
        for seat, x in self.x.items():
            _, n, g = seat
            numbers_in_use = [u for u in self.gpus[n] if u >= g]
            for u in numbers_in_use:
                v[seat, u] = self.cp.new_bool_var(f"v{seat, u}")
            self.cp.add(sum(v[seat, u] for u in numbers_in_use) == x)
        return v

    def cost(self) -> Any:
        """Return the cost of tardiness and moves of placed jobs, postponed ones, and energy."""
        data = self.data
        placed = []
        for seat, cost in data.seats.items():
            more_than_postponed = cost.others - data.postponed[seat[0]]
            placed.append((data.units(more_than_postponed) - TIE) * self.x[seat])
        postponed = sum(data.units(cost) + TIE for cost in data.postponed)
        return sum(placed) + postponed + self.energy()


@dataclass(frozen=True, slots=True)
class Solved:
    """Best solution found, its quality, a lower bound of the cost, and its number of open nodes."""

    solution: Solution
    status: PlanStatus
    bound: float
    open_nodes: int


def solve(data: Data, *, matching: bool, budget: float, seed: int) -> Solved:
    """Minimise the cost. Raises PolicyError if no solution is found within the budget.

    `matching`: as many nodes are open as can be. `budget`: deterministic time of each search.
    """
    # 1. The most nodes that can be open: they become a constraint of a new model.
    model = _constrained(data)
    if matching:
        model.cp.maximize(sum(model.w))
        matched, _ = run_solver(model.cp, budget, seed)
        model = _constrained(data)
        model.open_nodes(least=round(matched.objective_value))

    # 2. The least cost.
    model.cp.minimize(model.cost())
    solver, status = run_solver(model.cp, budget, seed)
    open_nodes = sum(solver.boolean_value(w) for w in model.w)

    # 3. Its bound in the currency; each job may have added units for ties and by rounding.
    most_added = (TIE + 1) * len(data.postponed)
    bound = (solver.best_objective_bound - most_added) * data.unit
    return Solved(_solution(model, solver), status, bound, open_nodes)


def _constrained(data: Data) -> Model:
    """Return the model with the constraints of every objective."""
    model = Model(data)
    model.one_configuration_on_a_node()
    model.only_on_open_nodes()
    model.one_node_each()
    model.one_number_of_gpus_in_use()
    model.resources_of_nodes()
    model.power_cap()
    return model


def _solution(model: Model, solver: cp_model.CpSolver) -> Solution:
    """Return the solver's solution: the seats that are taken."""
    problem = model.data.problem
    solution = Solution.empty(problem)
    for (j, n, g), x in model.x.items():
        if solver.boolean_value(x):
            solution.node[j] = n
            solution.config[j] = problem.config_number[int(problem.node_class[n]), g]
    return solution


def _rounded_up(amount: float) -> int:
    """Return an amount of a resource, or watts, as an integer of the model."""
    return int(np.ceil(amount * FINE - SLACK))


def _rounded_down(amount: float) -> int:
    """Return the same of a capacity, rounded down."""
    return int(np.floor(amount * FINE + SLACK))
