"""Lower bound of the cost of a schedule on empty nodes, over CP-SAT, for small instances.

`schedule_gap` measures `policies.search.cost_search` by it. All jobs are there at once and none
runs, prices do not change, nothing but GPUs is scarce. Data: J jobs, N nodes with the energy cost
base + slope * g of a second with g > 0 GPUs in use, and the *seats* (j, n, g) in which a job runs
for t[j, n, g] whole seconds. Variables: x[j, n, g] the job takes the seat (binary); start s[j] and
end e[j]; tau[j] how late it is; o[n] how long the node is open. Minimise

    sum_j w_j tau_j + sum_n base_n o_n + sum_jng slope_n g t[j, n, g] x[j, n, g]

over every schedule without pre-emption; those of the search are among them. A node is open from the
first second to its last end: a gap in which none of its GPUs works could be closed by starting the
rest of its jobs sooner, which costs nothing. Run times are rounded down and due dates up, so that
the bound holds for the true times.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from policies.contract.plan import PlanStatus
from policies.cost_model.kernels import NONE
from policies.cp_sat import run_solver
from policies.search.kernels.local_search import Found
from policies.search.kernels.rollout import RolloutData

RESOLUTION = 2**40
"""Units of cost in the initial schedule."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Lower bound of the cost, whether it is reached, and the best schedule's cost."""

    bound: float
    proven: bool
    cost: float


@dataclass(frozen=True, slots=True)
class Seat:
    """Job j on g GPUs of node n for `time_s`, and its cost without tardiness and node."""

    job: int
    node: int
    gpus: int
    time_s: int
    cost: float


@dataclass
class Model:
    """Variables; a method per constraint. `begin`: a schedule that bounds the cost."""

    data: RolloutData
    begin: Found
    cp: cp_model.CpModel = field(default_factory=cp_model.CpModel)

    def __post_init__(self) -> None:
        new, data = self.cp.new_int_var, self.data
        self.gpus = np.isfinite(data.release_s).sum(axis=1).tolist()
        self.of_class = (
            np.searchsorted(data.first, np.arange(len(self.gpus)), side="right") - 1
        ).tolist()
        self.jobs = [j for j in range(len(data.slack_s)) if self.begin.node[j] != NONE]
        self.seats = _seats(data, self.jobs, self.gpus, self.of_class)
        most_s = sum(max(s.time_s for s in self.seats if s.job == j) for j in self.jobs)
        self.x = {s: self.cp.new_bool_var(f"x{s.job, s.node, s.gpus}") for s in self.seats}
        self.start = {j: new(0, most_s, f"s{j}") for j in self.jobs}
        self.end = {j: new(0, most_s, f"e{j}") for j in self.jobs}
        self.late = {j: new(0, max(0, most_s - _due(data, j)), f"tau{j}") for j in self.jobs}
        self.opened = [new(0, most_s, f"o{n}") for n in range(len(self.gpus))]

    def one_seat_each(self) -> None:
        """sum_ng x[j, n, g] = 1; e[j] = s[j] + sum_ng t[j, n, g] x[j, n, g]."""
        for j in self.jobs:
            mine = [s for s in self.seats if s.job == j]
            self.cp.add_exactly_one(self.x[s] for s in mine)
            self.cp.add(self.end[j] == self.start[j] + sum(s.time_s * self.x[s] for s in mine))

    def gpus_of_nodes(self) -> None:
        """GPUs of a node suffice at all times; GPU seconds fit under its last end."""
        for n, gpus in enumerate(self.gpus):
            mine = [s for s in self.seats if s.node == n]
            runs = [
                self.cp.new_optional_fixed_size_interval_var(
                    self.start[s.job], s.time_s, self.x[s], f"{s}"
                )
                for s in mine
            ]
            if gpus == 1:
                self.cp.add_no_overlap(runs)
            else:
                self.cp.add_cumulative(runs, [s.gpus for s in mine], gpus)
            self.cp.add(sum(s.gpus * s.time_s * self.x[s] for s in mine) <= gpus * self.opened[n])

    def open_until_the_last_end(self) -> None:
        """o[n] >= e[j] where x[j, n, g]; of equal nodes the first is open longest."""
        for s, x in self.x.items():
            self.cp.add(self.opened[s.node] >= self.end[s.job]).only_enforce_if(x)
        for n in range(1, len(self.gpus)):
            if (self.of_class[n], self.gpus[n]) == (self.of_class[n - 1], self.gpus[n - 1]):
                self.cp.add(self.opened[n - 1] >= self.opened[n])

    def tardiness(self) -> None:
        """tau[j] >= e[j] - d[j]."""
        for j in self.jobs:
            self.cp.add(self.late[j] >= self.end[j] - _due(self.data, j))

    def cost(self) -> Any:
        """Tardiness, open nodes and GPUs in use in units, rounded down for the bound."""
        late = sum(self.units(float(self.data.weight[j])) * late for j, late in self.late.items())
        opened = sum(
            self.units(float(self.data.base[self.of_class[n]])) * o
            for n, o in enumerate(self.opened)
        )
        return late + opened + sum(self.units(s.cost) * x for s, x in self.x.items())

    def units(self, cost: float) -> int:
        return int(np.floor(cost / self.unit))

    @property
    def unit(self) -> float:
        """Currency in one unit of cost."""
        return max(self.begin.cost, 1e-9) / RESOLUTION

    def hint(self) -> None:
        """Hint the initial schedule, its nodes in the model's order."""
        rank = self._ranked()
        for j in self.jobs:
            k = self.begin.config[j]
            seat = (j, rank[int(self.begin.node[j])], int(self.data.config_gpus[k]))
            for s in (s for s in self.seats if s.job == j):
                self.cp.add_hint(self.x[s], (s.job, s.node, s.gpus) == seat)
            self.cp.add_hint(self.start[j], int(self.begin.start_s[j]))

    def _ranked(self) -> dict[int, int]:
        """Equal nodes by their last ends, longest first."""
        ends: dict[int, float] = defaultdict(float)
        for j in self.jobs:
            n, k = int(self.begin.node[j]), self.begin.config[j]
            ends[n] = max(
                ends[n],
                float(self.begin.start_s[j] + self.data.time_s[j, k] + self.data.launch_s[j]),
            )
        alike = [(self.of_class[n], self.gpus[n]) for n in range(len(self.gpus))]
        by_end = sorted(range(len(alike)), key=lambda n: (alike[n], -ends[n]))
        return dict(
            zip(by_end, sorted(range(len(alike)), key=lambda n: (alike[n], n)), strict=True)
        )


def judge(data: RolloutData, begin: Found, *, budget: float, seed: int = 0) -> Judged:
    """Bound the cost of a schedule. `budget`: CP-SAT's deterministic time, about seconds.

    ValueError if a job runs, a price changes, or anything but GPUs is scarce; SolverFailedError
    without any bound.
    """
    scarce = data.demand.shape[1] > 0 or np.isfinite(data.watts)
    if scarce or (data.current_node != NONE).any() or data.step_s.size > 1 or data.haste.any():
        raise ValueError(
            "judged are jobs with due dates on empty nodes, at one price, with enough of everything"
            " but GPUs"
        )
    model = Model(data, begin)
    model.one_seat_each()
    model.gpus_of_nodes()
    model.open_until_the_last_end()
    model.tardiness()
    model.hint()
    model.cp.minimize(model.cost())
    solver, status = run_solver(model.cp, budget, seed)
    bound, cost = solver.best_objective_bound * model.unit, solver.objective_value * model.unit
    return Judged(bound, status is PlanStatus.OPTIMAL, cost)


def _seats(
    data: RolloutData, jobs: Sequence[int], gpus: Sequence[int], of_class: Sequence[int]
) -> list[Seat]:
    found = []
    for j in jobs:
        for k in np.flatnonzero(np.isfinite(data.time_s[j])).tolist():
            c, g = int(data.config_class[k]), int(data.config_gpus[k])
            time_s = float(data.time_s[j, k] + data.launch_s[j])
            whole = int(np.floor(time_s))
            found += [
                Seat(j, n, g, whole, float(data.slope[c]) * g * time_s)
                for n in range(len(gpus))
                if of_class[n] == c and gpus[n] >= g
            ]
    return found


def _due(data: RolloutData, j: int) -> int:
    """Seconds from now to a due date, rounded up; negative if past."""
    slack_s = float(data.slack_s[j])
    return int(np.ceil(min(slack_s, 1e9)))
