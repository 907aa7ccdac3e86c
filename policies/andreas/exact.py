"""ANDREAS' exact model (Filippini et al., Appendix A), for small clusters and as a judge."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from policies.andreas.objective import Objective
from policies.contract.plan import Plan, PlanStatus
from policies.contract.policy import PolicyError, fraction, parameter
from policies.contract.snapshot import Snapshot
from policies.cost_model.problem import Problem, build
from policies.cost_model.solution import to_plan

if TYPE_CHECKING:
    from policies.andreas.exact_model import Solved


@dataclass(frozen=True, slots=True)
class Exact:
    """Least energy and tardiness cost by an exact model, for small clusters (ANDREAS, Appendix A).

    The plan's status says whether the optimum is proven, its bound what no plan can be below, and
    its message which pricing judged. A cluster that is too large is refused, never decided on by
    another policy. A job that no node can hold waits: the model spreads no job over nodes.
    """

    objective: str = parameter(
        "whole",
        "whole: the energy of whole runs counts; first_end: of each node until its first job"
        " ends, as published",
        choices=("whole", "first_end"),
    )
    pricing: str = parameter(
        "used",
        "used: a node's power by its GPUs in use, as it is billed; own: by each job's GPUs alone"
        " (the paper's 4k)",
        choices=("used", "own"),
    )
    opening: str = parameter(
        "matching",
        "matching: as many nodes are open as jobs can be matched to; free: nodes may idle where"
        " that costs less",
        choices=("matching", "free"),
    )
    rho: float = parameter(
        100.0, "weight of the worst-case tardiness of a postponed job", minimum=0.0, maximum=1e9
    )
    hysteresis: float = fraction(
        0.5, "whole: what moving or stopping a running job must save, as a fraction of its energy"
    )
    budget: float = parameter(
        10.0,
        "CP-SAT's deterministic time, about seconds on a fast core",
        minimum=0.001,
        maximum=3600.0,
    )
    most_seats: int = parameter(
        20_000,
        "most choices of (job, node, GPUs); a larger cluster is refused",
        minimum=1,
        maximum=1_000_000,
    )

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Return the optimum, or the best solution within the budget. Raises PolicyError."""
        problem = build(snapshot, spreads=False)
        solved = self.solve(problem)
        value = self.f.value(problem, solved.solution)
        plan = to_plan(problem, solved.solution, "exact", value, self._message(problem, solved))
        bound = value if solved.status is PlanStatus.OPTIMAL else min(value, solved.bound)
        return replace(plan, status=solved.status, bound=bound)

    @property
    def f(self) -> Objective:
        """The objective that the model minimises."""
        is_whole = self.objective == "whole"
        return Objective(
            self.rho,
            whole=is_whole,
            hysteresis=self.hysteresis if is_whole else 0.0,
            own_gpus=self.pricing == "own",
        )

    def solve(self, problem: Problem) -> Solved:
        """Minimise f. Raises PolicyError: too large, or no solution within the budget."""
        # Imported here because the solver's library is large, and lists of policies do without.
        from policies.andreas.exact_model import Data, solve

        data = Data.of(problem, self.f)
        if len(data.seats) > self.most_seats:
            size = (
                f"{len(problem.rows)} jobs on {len(problem.nodes)} nodes have {len(data.seats)}"
                " (job, node, GPUs) to choose from"
            )
            raise PolicyError(
                f"{size}, more than most_seats ({self.most_seats}): choose randomized_greedy for a"
                " cluster of this size"
            )
        return solve(
            data,
            matching=self.opening == "matching",
            budget=self.budget,
            seed=problem.snapshot.seed,
        )

    def _message(self, problem: Problem, solved: Solved) -> str:
        """Return the plan's message: which costs were counted, and how many nodes are open."""
        is_whole = self.objective == "whole"
        energy = "energy of whole runs" if is_whole else "energy until each node's first end"
        gpus = "the node's GPUs in use" if self.pricing == "used" else "each job's own GPUs"
        nodes = f"{solved.open_nodes} of {len(problem.nodes)} nodes open"
        return f"{energy}, priced at {gpus}; {nodes}"
