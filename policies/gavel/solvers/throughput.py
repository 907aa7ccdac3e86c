"""The highest sum of throughputs, relative to the fastest (Gavel, section 4.2)."""

from __future__ import annotations

from policies.contract.snapshot import Floats
from policies.gavel.allocation.problem import AllocationProblem, Shares
from policies.gavel.solvers.levels import idle, inverse
from policies.gavel.solvers.program import Method, Program


def total_throughput(problem: AllocationProblem, *, method: Method | None = None) -> Shares:
    """Shares that maximise sum_m throughput(m, X) / throughput(m, X_fastest) over all jobs, which
    is their objective.

    Raises SolverFailedError.
    """
    return best_total(problem, inverse(problem.fastest_rates), method)


def best_total(problem: AllocationProblem, value: Floats, method: Method | None = None) -> Shares:
    """Shares that maximise the sum over all jobs of value[m] * throughput(m, X). Raises
    SolverFailedError.

    Without a method by the simplex, which is quicker here than for the lowest of many throughputs.
    """
    program = Program(problem)
    if not program.variables.size:
        return idle(problem)
    program.maximise(program.variables.sums(value))
    return program.shares(program.solve(method or Method.SIMPLEX))
