"""Max-min fairness of throughputs (Least Attained Service), weighted (Gavel, section 4.1).

    max min_m  s_m / w_m * throughput(m, X) / throughput(m, X_equal)

The least is as high as it can be; of those who could have more nothing is said. `fill` gives what
is left over to whom it brings most, `water_filling.fair_shares` by the same rule again, until
nobody could have more.
"""

from __future__ import annotations

from policies.contract.snapshot import Floats
from policies.gavel.allocation.problem import AllocationProblem, Shares
from policies.gavel.solvers.levels import inverse, max_min
from policies.gavel.solvers.program import Method


def fairness(
    problem: AllocationProblem, *, fill: bool = False, method: Method | None = None
) -> Shares:
    """Shares of the highest least normalised throughput, which is their objective. Jobs that can
    run nowhere do not count.

    Raises SolverFailedError.
    """
    return max_min(problem, fair_scaling(problem) / problem.weight, fill, method)


def fair_scaling(problem: AllocationProblem) -> Floats:
    """float64[M]: s_m / throughput(m, X_equal), the normalisation; 0 if it cannot run."""
    return problem.scale * inverse(problem.equal_rates)
